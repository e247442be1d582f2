/* fuzz_records.c - hostile text and hostile bounds through the scanner and the record reader.
 *
 * The input is a source. Its scan, cut at a place that the input chooses, must equal its scan in one piece; every record
 * that comes out must read back; and bounds made of the input's own bytes must be refused or lie inside it. With
 * libFuzzer: clang -fsanitize=fuzzer,address,undefined. Without: fuzz_main.c replays files and makes inputs of its own. */
#include "../../csrc/mmapds.h"

#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static size_t scan(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t cut, uint64_t *starts)
{
    mds_lines state = {0, 0};
    size_t count = mds_lines_scan(kernels, data, cut, 0, &state, starts);
    return count + mds_lines_scan(kernels, data + cut, n - cut, cut, &state, starts + count);
}

static void read_all(const mds_source *source)
{
    mds_request *requests = calloc(source->count + 1, sizeof *requests);
    mds_request **order = calloc(source->count + 1, sizeof *order);
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
    /* Copies of the exact size, so that a read beyond the end is seen. */
    uint8_t *data = malloc(n ? n : 1);
    memcpy(data, input, n);
    uint64_t *whole = malloc((2 * MDS_LINES_CAPACITY(n) + 1) * sizeof *whole);
    uint64_t *pieces = malloc((2 * MDS_LINES_CAPACITY(n) + 1) * sizeof *pieces);
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
        uint64_t *bounds = malloc(n);
        memcpy(bounds, data, n);
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
