/* fuzz_inflate.c - hostile files through the decoder of gzip members.
 *
 * Property: content that is decoded in pieces of any size equals that which is decoded at once, and ends for the same
 * reason; no call writes outside its room or goes on behind the file; good blocks have the content that they were made of.
 * Input: the blocks of a member; the same as a whole file; and as a recipe, some bytes a symbol. */
#include "fuzz.h"

#define MOST (64 << 10) /* bytes of content that are compared */
#define MOST_COOKED 4096

static const uint8_t header[10] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff};

/* Decode up to MOST bytes with this room behind the window; return why it ended, FULL where there is more content. */
static mds_inflate_status decode(const mds_map *map, size_t step, size_t room, uint8_t *content, size_t *total)
{
    static mds_inflate_state state;
    const size_t size = MDS_INFLATE_WINDOW + MDS_INFLATE_SLACK + room;
    uint8_t *out = fuzz_room(size, 1);
    size_t filled = 0;
    mds_inflate_status status = MDS_INFLATE_FULL;
    memset(&state, 0, sizeof state);
    *total = 0;
    while (status <= MDS_INFLATE_MEMBER && *total < MOST) {
        if (filled > MDS_INFLATE_WINDOW) {
            memmove(out, out + filled - MDS_INFLATE_WINDOW, MDS_INFLATE_WINDOW);
            filled = MDS_INFLATE_WINDOW;
        }
        const size_t before = filled;
        const uint64_t at = state.at;
        status = mds_inflate(map, &state, out, &filled, step, size);
        CHECK(filled >= before && filled <= size && state.at >= at);
        CHECK(status > MDS_INFLATE_MEMBER || state.at <= map->size * 8);
        CHECK(status != MDS_INFLATE_FULL || filled > before);
        CHECK(status != MDS_INFLATE_END || state.at == map->size * 8);
        const size_t n = filled - before < MOST - *total ? filled - before : MOST - *total;
        memcpy(content + *total, out + before, n);
        *total += n;
    }
    free(out);
    return *total < MOST ? status : MDS_INFLATE_FULL;
}

static mds_inflate_status one(const uint8_t *data, size_t n, size_t step, uint8_t *content, size_t *total)
{
    uint8_t *again = fuzz_room(MOST, 1);
    size_t other;
    const mds_map map = {data, n, 0, NULL};
    const mds_inflate_status status = decode(&map, MOST, MOST, content, total);
    const mds_inflate_status found = decode(&map, step, 1 + 2 * step * step, again, &other);
    /* What is decoded before a failure depends on the pieces, and so does whether MOST is reached before it. */
    CHECK(found == status || (found == MDS_INFLATE_FULL && status > MDS_INFLATE_END) ||
          (status == MDS_INFLATE_FULL && found > MDS_INFLATE_END));
    CHECK(status > MDS_INFLATE_END || found > MDS_INFLATE_END || other == *total);
    CHECK(memcmp(content, again, other < *total ? other : *total) == 0);
    free(again);
    return status;
}

/* ---- a recipe */

typedef struct {
    uint8_t data[MOST_COOKED + 64], content[MOST];
    size_t bits, size;
} cooked;

static void put(cooked *out, uint64_t value, unsigned count)
{
    for (unsigned k = 0; k < count; k++, out->bits++)
        out->data[out->bits / 8] |= (uint8_t)((value >> k & 1) << (out->bits % 8));
}

static void put_code(cooked *out, unsigned code, unsigned count)
{
    while (count--)
        put(out, code >> count & 1, 1);
}

static void put_symbol(cooked *out, unsigned symbol)
{
    if (symbol < 144)
        put_code(out, 0x30 + symbol, 8);
    else if (symbol < 256)
        put_code(out, 0x190 + symbol - 144, 9);
    else
        put_code(out, symbol - 256, 7); /* up to 279 */
}

/* A match of 3 to 10 bytes: these lengths have no bits behind their codes. */
static void put_match(cooked *out, size_t length, size_t distance)
{
    put_symbol(out, (unsigned)(254 + length));
    unsigned code = 0, base = 1, more = 0;
    while (code < 29 && base + (1U << more) <= distance) {
        base += 1U << more;
        code++;
        more = code < 2 ? 0 : code / 2 - 1;
    }
    put_code(out, code, 5);
    put(out, distance - base, more);
    for (size_t k = 0; k < length; k++, out->size++)
        out->content[out->size] = out->content[out->size - distance];
}

static void cook_codes(fuzz_input *input, cooked *out)
{
    put(out, 1, 2);
    for (uint64_t count = fuzz_take(input, 1); count && input->left && out->bits / 8 + 600 < MOST_COOKED; count--) {
        const uint64_t kind = fuzz_take(input, 1), length = 3 + kind % 8;
        const uint64_t distance = fuzz_between(input, 1, MDS_INFLATE_WINDOW);
        if (kind > 99 && distance <= out->size) {
            put_match(out, (size_t)length, (size_t)distance);
        } else {
            put_symbol(out, (unsigned)(distance % 256));
            out->content[out->size++] = (uint8_t)distance;
        }
    }
    put_symbol(out, 256);
}

static void cook_stored(fuzz_input *input, cooked *out)
{
    const uint64_t size = fuzz_take(input, 1);
    put(out, 0, 2);
    out->bits = (out->bits + 7) / 8 * 8;
    put(out, size | (size ^ 0xffff) << 16, 32);
    for (uint64_t k = 0; k < size; k++) {
        out->content[out->size] = (uint8_t)fuzz_take(input, 1);
        put(out, out->content[out->size++], 8);
    }
}

/* Make a file of one good member. */
static void cook(fuzz_input *input, cooked *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->data, header, sizeof header);
    out->bits = 8 * sizeof header;
    while (input->left && out->bits / 8 + 600 < MOST_COOKED) {
        put(out, 0, 1);
        if (fuzz_take(input, 1) % 4)
            cook_codes(input, out);
        else
            cook_stored(input, out);
    }
    put(out, 3, 3);
    put_symbol(out, 256);
    out->bits = (out->bits + 7) / 8 * 8;
    put(out, 0, 32);
    put(out, out->size, 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    static cooked made;
    uint8_t *content = fuzz_room(MOST, 1), *data = fuzz_room(sizeof header + n, 1);
    const size_t step = n ? (size_t)input[n - 1] % 64 + 1 : 1;
    size_t total;
    memcpy(data, header, sizeof header);
    if (n)
        memcpy(data + sizeof header, input, n);
    one(data, sizeof header + n, step, content, &total);
    free(data);
    data = fuzz_copy(input, n);
    one(data, n, step, content, &total);
    free(data);
    fuzz_input recipe = {input, n};
    cook(&recipe, &made);
    data = fuzz_copy(made.data, made.bits / 8);
    CHECK(one(data, made.bits / 8, step, content, &total) == MDS_INFLATE_END);
    CHECK(total == made.size && memcmp(content, made.content, total) == 0);
    free(data);
    free(content);
    return 0;
}
