/* fuzz_zstd.c - hostile files through the walk over frames of zstd.
 *
 * Property: the frames that a walk finds follow one another and lie inside the file; a walk in steps of any size, with room
 * for one frame, equals a walk in one; from any state, a walk ends and writes no more than there is room for.
 * Input: a file, taken as it is, and as a recipe, 4 bytes a frame or block; then a state. */
#include "fuzz.h"

#define MOST_COOKED 4096

static mds_zstd_status walk(const mds_map *map, uint64_t step, size_t room, uint64_t window, mds_zstd *state,
                            uint64_t *begins, uint64_t *contents, size_t *total)
{
    mds_zstd_status status = MDS_ZSTD_OK;
    *total = 0;
    while (status == MDS_ZSTD_OK && state->at < map->size) {
        size_t count;
        const uint64_t end = step < map->size - state->at ? state->at + step : map->size;
        status = mds_zstd_walk(map, end, window, state, begins + *total, contents + *total, room, &count);
        CHECK(count <= room && state->at <= map->size);
        *total += count;
    }
    return status;
}

static void one(const uint8_t *input, size_t n)
{
    uint8_t *data = fuzz_copy(input, n);
    const mds_map map = {data, n, 0, NULL};
    const uint64_t window = n && data[n - 1] & 1 ? UINT64_MAX : 1 << 27;
    uint64_t *begins = fuzz_room(2 * n + 2, sizeof *begins), *contents = begins + n + 1;
    uint64_t *again = fuzz_room(2 * n + 2, sizeof *again);
    mds_zstd whole = {0}, pieces = {0}, any = {0};
    size_t count, other;
    const mds_zstd_status status = walk(&map, n + 1, n + 1, window, &whole, begins, contents, &count);
    CHECK(walk(&map, n ? data[0] % 64 + 1 : 1, 1, window, &pieces, again, again + n + 1, &other) == status);
    CHECK(count == other && memcmp(&whole, &pieces, sizeof whole) == 0);
    CHECK(memcmp(begins, again, count * sizeof *begins) == 0);
    CHECK(memcmp(contents, again + n + 1, count * sizeof *contents) == 0);
    CHECK(status != MDS_ZSTD_OK || (whole.at == n && !whole.is_open));
    for (size_t i = 0; i < count; i++) {
        CHECK(begins[i] + 9 <= (i + 1 < count ? begins[i + 1] : n));
        CHECK(contents[i] == MDS_NONE || contents[i] <= (uint64_t)n << 21); /* a run of 2 MiB in 4 bytes */
    }
    memcpy(&any, data, n < sizeof any ? n : sizeof any);
    walk(&map, n + 1, n + 1, window, &any, again, again + n + 1, &other);
    free(begins);
    free(again);
    free(data);
}

static void put(uint8_t *out, size_t *at, uint64_t number, size_t bytes)
{
    memcpy(out + *at, &number, bytes);
    *at += bytes;
}

/* Make frames of a recipe. Most of them are good, since a walk ends at the first that is not. */
static size_t cook(fuzz_input *input, uint8_t *out)
{
    size_t at = 0;
    while (input->left && at + 600 < MOST_COOKED) {
        const uint64_t kind = fuzz_take(input, 1), size = fuzz_take(input, 1);
        if (kind % 8 == 0) {
            put(out, &at, 0x184D2A50 + size % 16, 4);
            put(out, &at, size, 4);
            at += size;
            continue;
        }
        const uint64_t descriptor = fuzz_take(input, 1) & ~UINT64_C(11), is_single = descriptor >> 5 & 1;
        const size_t widths[] = {is_single, 2, 4, 8};
        put(out, &at, 0xFD2FB528, 4);
        put(out, &at, descriptor | (kind == 255 ? 3 : 0), 1);
        put(out, &at, kind % 128, !is_single);
        put(out, &at, 0, kind == 255 ? 4 : 0);
        put(out, &at, size, widths[descriptor >> 6 & 3]);
        for (uint64_t left = kind % 3;; left--) {
            const uint64_t type = left ? 1 : kind % 2;
            put(out, &at, (left == 0) | type << 1 | (size % 64) << 3, 3);
            at += type ? 1 : size % 64;
            if (!left)
                break;
        }
        at += descriptor & 4;
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    uint8_t made[MOST_COOKED] = {0};
    fuzz_input recipe = {input, n};
    one(input, n);
    one(made, cook(&recipe, made));
    return 0;
}
