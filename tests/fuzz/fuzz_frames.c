/* fuzz_frames.c - hostile sizes through the frame scanner, hostile bounds through the reader of payloads.
 *
 * Property: the frames that a scan finds follow one another, lie inside the source and read back; a scan in steps of any
 * size equals a scan in one step; a payload lies inside its bounds, whatever these are.
 * Input: a source, taken as it is, and once more with most CRCs of TFRecord put right. */
#include "fuzz.h"

static mds_frames_status scan(const mds_kernels *kernels, const mds_map *map, mds_framing framing, size_t room,
                              uint64_t step, mds_frames *state, uint64_t *starts, uint64_t *sizes, size_t *total)
{
    mds_frames_status status = MDS_FRAMES_OK;
    *total = 0;
    while (status == MDS_FRAMES_OK && state->at < map->size) {
        size_t count;
        const uint64_t end = step < map->size - state->at ? state->at + step : map->size;
        status = mds_frames_scan(kernels, map, framing, end, state, starts + *total, sizes ? sizes + *total : NULL,
                                 room, &count);
        CHECK(count <= room && state->at <= map->size);
        *total += count;
    }
    return status;
}

static void one_framing(const mds_kernels *kernels, const uint8_t *data, size_t n, mds_framing framing)
{
    const mds_map map = {data, n, 0, NULL};
    uint64_t *starts = fuzz_room(n + 1, sizeof *starts), *sizes = fuzz_room(n + 1, sizeof *sizes);
    uint64_t *again = fuzz_room(n + 1, sizeof *again);
    mds_frames whole = {0}, pieces = {0};
    size_t count, other;
    const mds_frames_status status = scan(kernels, &map, framing, n + 1, n + 1, &whole, starts, sizes, &count);
    const size_t room = n ? data[0] % 7 + 1 : 1;
    CHECK(scan(kernels, &map, framing, room, n ? data[n - 1] + 1 : 1, &pieces, again, NULL, &other) == status);
    CHECK(count == other && whole.at == pieces.at && memcmp(starts, again, count * sizeof *starts) == 0);
    CHECK(status != MDS_FRAMES_OK || whole.at == n);
    starts[count] = whole.at;
    for (size_t i = 0; i < count; i++) {
        CHECK(starts[i] < starts[i + 1] && starts[i + 1] <= n);
        const uint64_t size = starts[i + 1] - starts[i];
        const mds_span payload = mds_record_payload(framing, data + starts[i], size);
        CHECK(payload.end - payload.begin == sizes[i] && payload.begin && payload.end <= size);
    }
    if (framing == MDS_FRAMING_TFRECORD) {
        mds_frames state = {0};
        uint64_t right;
        const mds_frames_status verified = mds_frames_verify(kernels, &map, n, &state, &right);
        CHECK(right <= count && state.at == starts[right]);
        CHECK(verified == (right == count ? status : MDS_FRAMES_DATA_CRC));
    }
    if (n >= 16) {
        memcpy(again, data, n / 8 * 8);
        for (size_t k = 0; k < n / 8; k++)
            if (k % 3)
                again[k] %= n + 2;
        for (size_t i = 0; i + 1 < n / 8; i++) {
            if (again[i] > again[i + 1] || again[i + 1] > n)
                continue;
            const uint64_t size = again[i + 1] - again[i];
            const mds_span payload = mds_record_payload(framing, data + again[i], size);
            CHECK(payload.begin <= payload.end && payload.end <= size);
        }
    }
    free(starts);
    free(sizes);
    free(again);
}

/* Make TFRecords of the input: lengths of the input's choice, right CRCs but for some. */
static void mend(const mds_kernels *kernels, uint8_t *data, size_t n)
{
    for (size_t at = 0; at + 16 <= n;) {
        const uint64_t length = data[at] % 64;
        memcpy(data + at, &length, 8);
        uint32_t crc = kernels->crc32c(0, data + at, 8);
        crc = (crc >> 15 | crc << 17) + 0xa282ead8;
        memcpy(data + at + 8, &crc, 4);
        at += 12 + length;
        if (at + 4 > n)
            return;
        crc = kernels->crc32c(0, data + at - length, length);
        crc = (crc >> 15 | crc << 17) + 0xa282ead8;
        if (data[at] % 32)
            memcpy(data + at, &crc, 4);
        at += 4;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    uint8_t *data = fuzz_copy(input, n);
    for (size_t v = 0; mds_kernels_at(v); v++) {
        const mds_kernels *kernels = mds_kernels_at(v);
        for (int framing = MDS_FRAMING_U32LE; framing <= MDS_FRAMING_TFRECORD; framing++)
            one_framing(kernels, data, n, (mds_framing)framing);
        const size_t half = n / 2;
        CHECK(kernels->crc32c(kernels->crc32c(0, data, half), data + half, n - half) ==
              mds_crc32c_portable(0, data, n));
    }
    const size_t integers = mds_varints_count(data, n);
    uint64_t *out = fuzz_room(integers, sizeof *out);
    size_t at;
    const mds_status status = mds_varints_read(data, n, out, &at);
    CHECK(status == MDS_OK || at < n);
    free(out);
    mend(mds_kernels_at(0), data, n);
    one_framing(mds_kernels_at(0), data, n, MDS_FRAMING_TFRECORD);
    free(data);
    return 0;
}
