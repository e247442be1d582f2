/* fuzz_records.c - hostile text and hostile bounds through the line scanner and the record reader.
 *
 * Property: a scan in two pieces equals a scan in one; every record that it finds reads back; a record with other bounds is
 * refused or lies inside the source, and a batch is refused if one of its records is.
 * Input: a source. Its bytes also serve as bounds. */
#include "fuzz.h"

static size_t scan(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t cut, uint64_t *starts)
{
    mds_lines state = {0, 0};
    size_t count = mds_lines_scan(kernels, data, cut, 0, &state, starts);
    return count + mds_lines_scan(kernels, data + cut, n - cut, cut, &state, starts + count);
}

static void read_all(const mds_source *source)
{
    mds_request *requests = fuzz_room(source->count, sizeof *requests);
    mds_request **order = fuzz_room(source->count, sizeof *order);
    mds_readahead readahead = {NULL, 0, 0};
    int all_fit = 1;
    for (uint64_t i = 0; i < source->count; i++) {
        mds_span span;
        requests[i] = (mds_request){.source = source, .i = i};
        if (mds_record_span(source, i, &span) != MDS_OK) {
            all_fit = 0;
            continue;
        }
        CHECK(span.begin <= span.end && span.end <= source->map->size);
        const uint64_t size = span.end - span.begin;
        const mds_span payload = mds_record_payload(source->framing, source->map->data + span.begin, size);
        CHECK(payload.begin == 0 && payload.end <= size);
        mds_readahead_note(&readahead, source, span);
    }
    for (int ask = 0; ask < 2; ask++) {
        size_t failed = 0;
        uint64_t room = 0;
        const mds_status status = mds_records_locate(requests, order, source->count, ask, &room, &failed);
        CHECK(status == (all_fit ? MDS_OK : MDS_CORRUPT) && room == 0);
    }
    if (all_fit) {
        size_t failed = 0;
        CHECK(mds_records_load(requests, source->count, (uint8_t *)requests, 1, &failed) == MDS_OK);
        for (uint64_t i = 0; i < source->count; i++)
            CHECK(requests[i].data == source->map->data + requests[i].span.begin);
    }
    free(requests);
    free(order);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    uint8_t *data = fuzz_copy(input, n);
    uint64_t *whole = fuzz_room(2 * MDS_LINES_CAPACITY(n) + 1, sizeof *whole);
    uint64_t *pieces = fuzz_room(2 * MDS_LINES_CAPACITY(n) + 1, sizeof *pieces);
    size_t count = 0;
    for (size_t v = 0; mds_kernels_at(v); v++) {
        const mds_kernels *kernels = mds_kernels_at(v);
        count = scan(kernels, data, n, 0, whole);
        CHECK(count <= MDS_LINES_CAPACITY(n));
        CHECK(scan(kernels, data, n, n ? data[n - 1] % n : 0, pieces) == count);
        CHECK(memcmp(whole, pieces, count * sizeof *whole) == 0);
    }
    whole[count] = n;
    const mds_map map = {data, n, 0, NULL};
    mds_source source = {.map = &map, .bounds = whole, .count = count, .framing = MDS_FRAMING_LINES};
    read_all(&source);

    if (n >= 16) {
        uint64_t *bounds = fuzz_room(n / 8, sizeof *bounds);
        memcpy(bounds, data, n / 8 * 8);
        for (size_t k = 0; k < n / 8; k++)
            if (k % 3)
                bounds[k] %= n + 2;
        for (int framing = MDS_FRAMING_NONE; framing <= MDS_FRAMING_FIRST_LINE; framing++) {
            source = (mds_source){.map = &map, .bounds = bounds, .count = n / 8 - 1, .framing = (mds_framing)framing};
            read_all(&source);
        }
        source = (mds_source){.map = &map, .first = bounds[0], .stride = bounds[1] ? bounds[1] : 1, .count = n / 8 - 1};
        read_all(&source);
        free(bounds);
    }
    free(data);
    free(whole);
    free(pieces);
    return 0;
}
