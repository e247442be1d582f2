/* fuzz_blocks.c - records out of decoded blocks, whatever the tables of an index say of both.
 *
 * Property: a block changes the bytes of records that lie in it, and no others; where records end in the order in which
 * they begin, it gives all of these. Once blocks that do not overlap have covered a record, nothing of it is left to come.
 * Input: how much content there is, records, then blocks; the rest is the content. */
#include "fuzz.h"

#define MOST_CONTENT 600
#define MOST 40

typedef struct {
    mds_request requests[MOST];
    mds_block_record records[MOST];
    size_t n;
    int ends_rise;
} wanted;

static int by_begin(const void *a, const void *b)
{
    const mds_span x = ((const mds_request *)a)->span, y = ((const mds_request *)b)->span;
    return x.begin != y.begin ? (x.begin < y.begin ? -1 : 1) : (x.end > y.end) - (x.end < y.end);
}

/* Records anywhere around the content, each with memory of exactly its size. */
static void take_records(fuzz_input *input, uint64_t base, wanted *all)
{
    all->n = (size_t)fuzz_between(input, 0, MOST);
    all->ends_rise = 1;
    for (size_t k = 0; k < all->n; k++) {
        const uint64_t begin = base + fuzz_between(input, 0, MOST_CONTENT);
        const uint64_t most = UINT64_MAX - begin < MOST_CONTENT ? UINT64_MAX - begin : MOST_CONTENT;
        all->requests[k].span = (mds_span){begin, begin + fuzz_between(input, 0, most)};
    }
    qsort(all->requests, all->n, sizeof *all->requests, by_begin);
    for (size_t k = 0; k < all->n; k++) {
        const mds_span span = all->requests[k].span;
        all->ends_rise &= !k || all->requests[k - 1].span.end <= span.end;
        all->records[k] =
            (mds_block_record){&all->requests[k], fuzz_room((size_t)(span.end - span.begin), 1), span.end - span.begin};
    }
}

/* Copy a block, and compare every byte of every record with what should be there now. */
static void copy_block(wanted *all, mds_span block, const uint8_t *data)
{
    uint8_t before[MOST_CONTENT];
    mds_block_record copies[MOST];
    uint8_t *held = fuzz_room(all->n * MOST_CONTENT, 1);
    memcpy(copies, all->records, sizeof copies);
    for (size_t k = 0; k < all->n; k++) {
        const mds_span span = all->requests[k].span;
        memcpy(held + k * MOST_CONTENT, all->records[k].out, (size_t)(span.end - span.begin));
    }
    mds_blocks_copy(all->records, all->n, block.begin, block.end, data);
    for (size_t k = 0; k < all->n; k++) {
        const mds_span span = all->requests[k].span;
        uint64_t came = 0;
        memcpy(before, held + k * MOST_CONTENT, (size_t)(span.end - span.begin));
        for (uint64_t at = span.begin; at < span.end; at++) {
            const int is_inside = at >= block.begin && at < block.end;
            const uint8_t found = all->records[k].out[at - span.begin];
            const uint8_t old = before[at - span.begin];
            CHECK(is_inside ? found == data[at - block.begin] || (!all->ends_rise && found == old) : found == old);
            came += (uint64_t)is_inside;
        }
        CHECK(all->records[k].left <= copies[k].left);
        CHECK(!all->ends_rise ||
              all->records[k].left == copies[k].left - (came < copies[k].left ? came : copies[k].left));
    }
    free(held);
}

int LLVMFuzzerTestOneInput(const uint8_t *input_data, size_t n)
{
    fuzz_input input = {input_data, n};
    wanted all = {0};
    const int is_far = (int)fuzz_between(&input, 0, 1);
    const uint64_t base = is_far ? UINT64_MAX - fuzz_between(&input, MOST_CONTENT, 2 * MOST_CONTENT) : 0;
    take_records(&input, base, &all);
    uint64_t at = base;
    int is_cover = 1;
    for (size_t k = (size_t)fuzz_between(&input, 0, 20); k; k--) {
        const int is_next = fuzz_between(&input, 0, 3) != 0;
        const uint64_t begin = is_next ? at : base + fuzz_between(&input, 0, MOST_CONTENT);
        const uint64_t most = UINT64_MAX - begin < MOST_CONTENT ? UINT64_MAX - begin : MOST_CONTENT;
        const mds_span block = {begin, begin + fuzz_between(&input, 0, most)};
        const size_t size = (size_t)(block.end - block.begin);
        uint8_t *data = fuzz_room(size, 1);
        for (size_t i = 0; i < size; i++)
            data[i] = (uint8_t)fuzz_take(&input, 1);
        copy_block(&all, block, data);
        free(data);
        is_cover &= is_next;
        at = block.end;
    }
    for (size_t k = 0; k < all.n; k++) {
        const mds_span span = all.requests[k].span;
        CHECK(!is_cover || !all.ends_rise || span.end > at || !all.records[k].left);
        free(all.records[k].out);
    }
    return 0;
}
