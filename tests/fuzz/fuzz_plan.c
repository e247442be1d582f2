/* fuzz_plan.c - plans for any budget and any lengths.
 *
 * Property: buckets are runs of whole batches, none over budget, also those between others; the batches of a plan, and
 * those of a stream, hold every planned record exactly once.
 * Input: the budget, the lengths and how many records have each, then which checks, records and sizes of buffers. */
#include "fuzz.h"

#define DISTINCT 8
#define MOST 12 /* records of one length */

typedef struct {
    uint64_t values[DISTINCT], counts[DISTINCT], starts[DISTINCT + 1]; /* rank of the first record of each value */
    size_t distinct;
    size_t records;   /* of the dataset; those after the planned ones have lengths that are not planned */
    uint64_t ranks;   /* planned records */
    uint64_t skipped; /* of the order, before the planned ones */
    unsigned width;   /* of the order */
    uint64_t *exact;  /* the length of each record */
    uint8_t *order;   /* skipped + ranks record numbers */
    size_t *rank_of;  /* of each record */
    mds_bucket buckets[2 * (DISTINCT + 2) + 3];
    size_t count;
} planned;

static void put(uint8_t *words, unsigned width, uint64_t i, uint64_t word)
{
    memcpy(words + width * i, &word, width);
}

static void choose_lengths(fuzz_input *input, planned *p)
{
    p->width = fuzz_take(input, 1) & 1 ? 8 : 4;
    p->distinct = (size_t)fuzz_between(input, 1, DISTINCT);
    const uint64_t top = p->width == 8 ? UINT64_MAX - 1 : UINT32_MAX - 1;
    uint64_t length = fuzz_magnitude(input, p->distinct - 1, top);
    for (size_t v = 0; v < p->distinct; v++) {
        p->values[v] = length;
        p->counts[v] = fuzz_between(input, 1, MOST);
        p->starts[v + 1] = p->starts[v] + p->counts[v];
        if (v + 1 < p->distinct) /* leave room for the rest to fall */
            length -= fuzz_magnitude(input, 1, length - (p->distinct - 2 - v));
    }
    p->ranks = p->starts[p->distinct];
    p->skipped = fuzz_between(input, 0, 3);
    p->records = (size_t)(p->ranks + p->skipped);
}

/* Deal the lengths out to record numbers, and sort: the longest first, equally long ones in ascending order. */
static void make_order(fuzz_input *input, planned *p)
{
    p->exact = fuzz_room(p->records, sizeof *p->exact);
    p->order = fuzz_room(p->records, p->width);
    p->rank_of = fuzz_room(p->records, sizeof *p->rank_of);
    mds_permutation dealt;
    mds_permutation_init(&dealt, p->records, fuzz_take(input, 4), 0, 0);
    for (uint64_t k = 0; k < p->records; k++) {
        size_t v = 0;
        while (k < p->ranks && p->starts[v + 1] <= k)
            v++;
        const uint64_t record = mds_permute(&dealt, k);
        p->exact[record] = k < p->ranks ? p->values[v] : p->values[0] + 1;
    }
    uint64_t rank = 0;
    for (size_t v = 0; v <= p->distinct; v++) /* first those that are skipped, being longer */
        for (uint64_t record = 0; record < p->records; record++)
            if (p->exact[record] == (v ? p->values[v - 1] : p->values[0] + 1)) {
                p->rank_of[record] = (size_t)rank;
                put(p->order, p->width, rank++, record);
            }
    CHECK(rank == p->records);
}

/* Whether `size` records, the longest being `length`, keep to the budget. One record may exceed it alone. */
static int fits(const mds_budget *budget, uint64_t length, uint64_t size)
{
    unsigned __int128 cost = length;
    if (budget->quadratic)
        cost += ((unsigned __int128)length * length + budget->quadratic - 1) / budget->quadratic;
    return size <= budget->largest && (size == 1 || cost <= budget->tokens / size);
}

static uint64_t length_at(const planned *p, uint64_t rank)
{
    size_t v = 0;
    while (p->starts[v + 1] <= rank)
        v++;
    return p->values[v];
}

static void check_buckets(const mds_budget *budget, const planned *p)
{
    uint64_t rank = 0, batch = 0;
    for (size_t b = 0; b < p->count; b++) {
        const mds_bucket *bucket = &p->buckets[b];
        CHECK(bucket->first_rank == rank && bucket->first_batch == batch && bucket->batches && bucket->size);
        CHECK(fits(budget, length_at(p, rank), bucket->size));
        const uint64_t full = mds_batch_size(budget, length_at(p, rank));
        CHECK(bucket->size == full || (b + 2 >= p->count && bucket->batches == 1 && bucket->size < full));
        CHECK(bucket->size < budget->multiple || bucket->size % budget->multiple == 0);
        rank += bucket->batches * bucket->size;
        batch += bucket->batches;
    }
    CHECK(rank == p->ranks);
}

static void check_batches(fuzz_input *input, const mds_budget *budget, planned *p, int shuffle)
{
    const mds_bucket *last = &p->buckets[p->count - 1];
    const size_t batches = (size_t)(last->first_batch + last->batches), n = (size_t)p->ranks;
    const mds_plan plan = {p->buckets, p->count, p->skipped, p->ranks, fuzz_take(input, 4), 0, shuffle};
    int64_t *numbers = fuzz_room(batches, 8), *records = fuzz_room(n, 8), *ends = fuzz_room(batches, 8);
    int64_t *places = fuzz_room(n, 8);
    uint8_t *seen = fuzz_room(p->records, 1);
    for (size_t k = 0; k < batches; k++)
        numbers[k] = (int64_t)k;
    const mds_kernels *kernels = mds_kernels_at(0);
    CHECK(mds_plan_batches(kernels, &plan, numbers, batches, records, n, ends) == MDS_OK);
    CHECK((uint64_t)ends[batches - 1] == n);
    for (size_t k = 0; k < n; k++) {
        uint64_t record = 0;
        CHECK((uint64_t)records[k] >= p->skipped && (uint64_t)records[k] < p->records);
        memcpy(&record, p->order + p->width * (uint64_t)records[k], p->width);
        places[k] = records[k];
        records[k] = (int64_t)record;
        CHECK((uint64_t)records[k] < p->records && !seen[records[k]]++ && p->rank_of[records[k]] >= p->skipped);
    }
    for (size_t k = 0, begin = 0; k < batches; begin = (size_t)ends[k++]) {
        uint64_t longest = 0;
        for (size_t i = begin; i < (size_t)ends[k]; i++)
            longest = p->exact[records[i]] > longest ? p->exact[records[i]] : longest;
        CHECK((size_t)ends[k] > begin && fits(budget, longest, (uint64_t)ends[k] - begin));
    }
    /* One batch, with just the room it needs, and with less. */
    const size_t k = (size_t)fuzz_between(input, 0, batches - 1), begin = k ? (size_t)ends[k - 1] : 0;
    const size_t size = (size_t)ends[k] - begin;
    int64_t *one = fuzz_room(size, 8), end;
    CHECK(mds_plan_batches(kernels, &plan, &numbers[k], 1, one, size, &end) == MDS_OK && (size_t)end == size);
    CHECK(memcmp(one, places + begin, size * sizeof *one) == 0);
    CHECK(mds_plan_batches(kernels, &plan, &numbers[k], 1, one, size - 1, &end) == MDS_CORRUPT);
    free(one);
    free(places);
    free(numbers);
    free(records);
    free(ends);
    free(seen);
}

/* Push the records in the order that `dealt` gives them, in pieces, into buffers of the input's choice. */
static void check_stream(fuzz_input *input, const mds_budget *budget, planned *p)
{
    size_t batches = (size_t)(p->buckets[p->count - 1].first_batch + p->buckets[p->count - 1].batches);
    size_t count = p->count, largest = 0;
    mds_bucket *last = &p->buckets[count - 1];
    const int rest = count > 1 && last->batches == 1 && last[-1].batches == 1 && last->size < budget->multiple &&
                     last[-1].size % budget->multiple == 0;
    if (rest) { /* one batch, which the caller cuts again */
        last[-1].size += last->size;
        count--;
        batches--;
    }
    if (count > 1 && p->buckets[count - 1].batches == 1 && p->buckets[count - 1].size <= p->buckets[count - 2].size)
        p->buckets[--count - 1].batches++; /* what makes no whole batch is the last batch of the bucket before */
    uint32_t first_buckets[DISTINCT] = {0};
    uint64_t splits[DISTINCT], open_first[DISTINCT + 2], room = 0;
    for (size_t v = 0; v < p->distinct; v++)
        splits[v] = MDS_NONE;
    for (size_t b = 0; b < count; b++) {
        const uint64_t first = p->buckets[b].first_rank;
        for (size_t v = 0; v < p->distinct; v++) {
            if (first <= p->starts[v])
                first_buckets[v] = (uint32_t)b;
            else if (first < p->starts[v + 1]) {
                CHECK(splits[v] == MDS_NONE); /* the records of one length lie in two buckets at most */
                splits[v] = 0;
                memcpy(&splits[v], p->order + p->width * (p->skipped + first), p->width);
            }
        }
        open_first[b] = room;
        room += p->buckets[b].size;
        largest = p->buckets[b].size > largest ? (size_t)p->buckets[b].size : largest;
    }
    uint32_t table[64];
    const size_t table_size = (size_t)fuzz_between(input, 0, 64);
    for (size_t length = 0; length < table_size; length++) {
        table[length] = UINT32_MAX;
        for (size_t v = 0; v < p->distinct; v++)
            if (p->values[v] == length)
                table[length] = (uint32_t)v;
    }
    uint64_t *taken = fuzz_room(count, sizeof *taken);
    int64_t *open = fuzz_room(room, sizeof *open);
    const mds_stream s = {p->buckets, count, p->ranks,   p->records, p->values, p->distinct, first_buckets,
                          splits,     table, table_size, taken,      open,      open_first};
    int64_t *records = fuzz_room(p->records, sizeof *records);
    uint64_t *lengths = fuzz_room(p->records, sizeof *lengths);
    uint8_t *seen = fuzz_room(p->records, 1);
    mds_permutation dealt;
    mds_permutation_init(&dealt, p->records, fuzz_take(input, 4), 1, 0);
    for (size_t k = 0; k < p->records; k++)
        lengths[k] = p->exact[records[k] = (int64_t)mds_permute(&dealt, k)];
    const size_t piece = (size_t)fuzz_between(input, 1, p->records), most = (size_t)fuzz_between(input, 1, 4);
    const size_t capacity = largest + (size_t)fuzz_between(input, 0, 20);
    int64_t *out = fuzz_room(capacity, sizeof *out), *ends = fuzz_room(most, sizeof *ends);
    size_t consumed, emitted, written, ready = 0, planned_records = 0;
    for (size_t at = 0; at < p->records; at += consumed) {
        const size_t n = p->records - at < piece ? p->records - at : piece;
        CHECK(mds_stream_push(&s, records + at, lengths + at, n, &consumed, out, capacity, ends, most, &emitted,
                              &written) == MDS_OK);
        CHECK(consumed <= n && emitted <= most && written <= capacity && (consumed || emitted));
        CHECK(written == (emitted ? (size_t)ends[emitted - 1] : 0));
        for (size_t k = 0, i = 0; k < emitted; k++) {
            const size_t begin = i;
            uint64_t longest = 0;
            for (; i < (size_t)ends[k]; i++) {
                CHECK((uint64_t)out[i] < p->records && !seen[out[i]]++);
                longest = p->exact[out[i]] > longest ? p->exact[out[i]] : longest;
            }
            const size_t size = i - begin, more = rest && size > budget->multiple ? size % budget->multiple : 0;
            CHECK(i > begin && fits(budget, longest, size - more));
            planned_records += i - begin;
        }
        ready += emitted;
    }
    CHECK(ready == batches && planned_records == p->ranks);
    /* All buckets are full, so a record that comes again is refused, and so is one that there is not. */
    const int64_t again = records[0], wrong = (int64_t)p->records;
    const mds_status status =
        mds_stream_push(&s, &again, lengths, 1, &consumed, out, capacity, ends, most, &emitted, &written);
    CHECK(status == (p->rank_of[again] < p->skipped ? MDS_OK : MDS_CORRUPT));
    CHECK(mds_stream_push(&s, &wrong, lengths, 1, &consumed, out, capacity, ends, most, &emitted, &written) ==
          MDS_CORRUPT);
    free(taken);
    free(open);
    free(records);
    free(lengths);
    free(seen);
    free(out);
    free(ends);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_input input = {data, n};
    planned p = {.distinct = 0};
    mds_budget budget = {.tokens = fuzz_magnitude(&input, 0, UINT64_MAX)};
    budget.largest = fuzz_magnitude(&input, 1, UINT64_C(1) << 31);
    budget.multiple = fuzz_magnitude(&input, 1, UINT64_MAX);
    budget.quadratic = fuzz_magnitude(&input, 0, UINT64_MAX);
    mds_cut cut = {.least = fuzz_magnitude(&input, 1, UINT64_C(1) << 32)};
    cut.most = fuzz_magnitude(&input, cut.least, UINT64_C(1) << 32);
    cut.per_mille = fuzz_between(&input, 0, 1000);
    choose_lengths(&input, &p);
    make_order(&input, &p);
    mds_bucket *buckets = fuzz_room(p.distinct + 2, sizeof *buckets);
    const size_t count = mds_plan_buckets(&budget, p.values, p.counts, p.distinct, &cut, buckets);
    CHECK(count <= p.distinct + 2);
    mds_bucket *between = fuzz_room(2 * count + 3, sizeof *between);
    p.count = mds_plan_between(&budget, p.values, p.counts, p.distinct, &cut, buckets, count, between);
    CHECK(p.count <= 2 * count + 3);
    memcpy(p.buckets, between, p.count * sizeof *between);
    free(between);
    check_buckets(&budget, &p);
    const uint64_t what = fuzz_take(&input, 1) % 4; /* one of them, which is several times as many inputs in a second */
    if (what == 0)
        check_batches(&input, &budget, &p, 1);
    p.count = count;
    memcpy(p.buckets, buckets, count * sizeof *buckets);
    free(buckets);
    check_buckets(&budget, &p);
    if (what == 1 || what == 2)
        check_batches(&input, &budget, &p, what == 1);
    else if (what == 3)
        check_stream(&input, &budget, &p);
    free(p.exact);
    free(p.order);
    free(p.rank_of);
    return 0;
}
