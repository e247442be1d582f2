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
        requests[i] = (mds_request){source, i, {0, 0}};
        if (mds_record_span(source, i, &span) != MDS_OK) {
            all_fit = 0;
            continue;
        }
        CHECK(span.begin <= span.end && span.end <= source->map.size);
        const mds_span payload = mds_record_payload(source, span);
        CHECK(payload.begin == span.begin && payload.begin <= payload.end && payload.end <= span.end);
        mds_readahead_note(&readahead, source, span);
    }
    unsigned cold = 0;
    size_t failed = 0;
    const mds_status status = mds_records_fetch(requests, order, source->count, &cold, &failed);
    CHECK(status == (all_fit ? MDS_OK : MDS_CORRUPT));
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
    mds_source source = {{data, n, 0}, whole, 0, 0, count, MDS_FRAMING_LINES};
    read_all(&source);

    if (n >= 16) {
        uint64_t *bounds = fuzz_room(n / 8, sizeof *bounds);
        memcpy(bounds, data, n / 8 * 8);
        for (size_t k = 0; k < n / 8; k++)
            if (k % 3)
                bounds[k] %= n + 2;
        for (int framing = MDS_FRAMING_NONE; framing <= MDS_FRAMING_FIRST_LINE; framing++) {
            source = (mds_source){{data, n, 0}, bounds, 0, 0, n / 8 - 1, (mds_framing)framing};
            read_all(&source);
        }
        source = (mds_source){{data, n, 0}, NULL, bounds[0], bounds[1] ? bounds[1] : 1, n / 8 - 1, MDS_FRAMING_NONE};
        read_all(&source);
        free(bounds);
    }
    free(data);
    free(whole);
    free(pieces);
    return 0;
}
