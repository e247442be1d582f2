/* plan.c - batches under a budget: the length order is cut into buckets once, and each epoch permutes the buckets.
 *
 * A bucket is a run of the length order that holds whole batches of one size. The size fits the longest record of the
 * bucket, so records may trade places inside it without any batch exceeding the budget. An epoch is therefore a keyed
 * permutation inside each bucket, and nothing is planned again.
 *
 * In a bucket of few batches, the same records would meet in every epoch. So every second epoch cuts these buckets in
 * the middle: half of the pairs of records in a bucket are in different buckets in the next epoch. */
#include "mmapds.h"

#include <string.h>

#define STREAM_BUCKET 0x6d61746573ULL /* separates the permutations of buckets from all others of the seed */

/* ---- buckets --------------------------------------------------------------------------------------------------- */

uint64_t mds_batch_size(const mds_budget *budget, uint64_t length)
{
    unsigned __int128 cost = length;
    if (budget->quadratic)
        cost += ((unsigned __int128)length * length + budget->quadratic - 1) / budget->quadratic;
    uint64_t size = cost ? (uint64_t)(budget->tokens / cost) : budget->largest;
    if (size > budget->largest)
        size = budget->largest;
    if (size >= budget->multiple)
        size -= size % budget->multiple;
    return size ? size : 1;
}

/* The state of cutting: where the next bucket begins. */
typedef struct {
    const uint64_t *values, *counts;
    uint64_t multiple;
    uint64_t rank, batch, left; /* records and batches in the buckets before, and records after them */
    uint64_t used;              /* records of values[v] in earlier buckets */
    size_t v, found;
} cutting;

static cutting begin_cutting(const mds_budget *budget, const uint64_t *values, const uint64_t *counts, size_t distinct)
{
    cutting c = {.values = values, .counts = counts, .multiple = budget->multiple};
    for (size_t i = 0; i < distinct; i++)
        c.left += counts[i];
    return c;
}

/* Add a bucket; if less than a batch is left, one batch of the rest, or of the largest allowed multiple. */
static void add_bucket(cutting *c, uint64_t batches, uint64_t size, mds_bucket *buckets)
{
    if (batches > c->left / size)
        batches = c->left / size;
    if (!batches) {
        batches = 1;
        size = c->left >= c->multiple ? c->left - c->left % c->multiple : c->left;
    }
    buckets[c->found++] = (mds_bucket){c->rank, c->batch, batches, size};
    uint64_t records = batches * size;
    c->rank += records;
    c->left -= records;
    c->batch += batches;
    while (records && records >= c->counts[c->v] - c->used) {
        records -= c->counts[c->v] - c->used;
        c->used = 0;
        c->v++;
    }
    c->used += records;
}

size_t mds_plan_buckets(const mds_budget *budget, const uint64_t *values, const uint64_t *counts, size_t distinct,
                        const mds_cut *cut, mds_bucket *buckets)
{
    cutting c = begin_cutting(budget, values, counts, distinct);
    while (c.left) {
        const uint64_t length = values[c.v], size = mds_batch_size(budget, length);
        /* Sizes are no larger than budget->largest <= 2^31, and `most` <= 2^32, so the product fits. */
        const uint64_t most = cut->most * size, own = counts[c.v] - c.used;
        uint64_t within = own; /* records that are about as long */
        for (size_t next = c.v + 1; next < distinct && within < most; next++) {
            if ((unsigned __int128)values[next] * 1000 < (unsigned __int128)length * (1000 - cut->per_mille))
                break;
            within += counts[next];
        }
        uint64_t batches = (within < most ? within : most) / size;
        if (batches < cut->least)
            batches = cut->least;
        if (batches < own / size + (own % size != 0))
            batches = own / size + (own % size != 0);
        add_bucket(&c, batches, size, buckets);
    }
    return c.found;
}

size_t mds_plan_between(const mds_budget *budget, const uint64_t *values, const uint64_t *counts, size_t distinct,
                        const mds_cut *cut, const mds_bucket *others, size_t count, mds_bucket *buckets)
{
    cutting c = begin_cutting(budget, values, counts, distinct);
    const uint64_t total = c.left;
    size_t at = 0;
    int middle = 0; /* whether the next place to cut is in others[at], or where it begins */
    while (c.left) {
        const uint64_t size = mds_batch_size(budget, values[c.v]);
        uint64_t target = total;
        for (; at < count; at += (size_t)middle, middle = !middle) {
            const mds_bucket *other = &others[at];
            const int large = other->batches >= cut->most;
            if (!middle && !large && (!at || others[at - 1].batches < cut->most))
                continue;
            if (middle && (large || other->batches < 2))
                continue;
            const uint64_t place = other->first_rank + (middle ? other->batches / 2 * other->size : 0);
            if (place >= c.rank + (size + 1) / 2) {
                target = place;
                break;
            }
        }
        const uint64_t batches = (target - c.rank) / size + ((target - c.rank) % size >= (size + 1) / 2);
        add_bucket(&c, batches ? batches : 1, size, buckets);
    }
    return c.found;
}

size_t mds_buckets_follow(const mds_bucket *buckets, size_t count, uint64_t *ranks, uint64_t *batches)
{
    *ranks = *batches = 0;
    for (size_t b = 0; b < count; b++) {
        const mds_bucket *bucket = &buckets[b];
        uint64_t records;
        if (bucket->first_rank != *ranks || bucket->first_batch != *batches || !bucket->batches || !bucket->size ||
            __builtin_mul_overflow(bucket->batches, bucket->size, &records) || records > INT64_MAX - *ranks)
            return b;
        *ranks += records;
        *batches += bucket->batches;
    }
    return count;
}

size_t mds_lengths_fall(const uint64_t *values, const uint64_t *counts, size_t distinct)
{
    uint64_t total = 0;
    for (size_t i = 0; i < distinct; i++) {
        if (!counts[i] || counts[i] >= (uint64_t)INT64_MAX - total || (i && values[i] >= values[i - 1]))
            return i;
        total += counts[i];
    }
    return distinct;
}

static size_t bucket_of_batch(const mds_bucket *buckets, size_t count, uint64_t batch)
{
    size_t low = 0, high = count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (buckets[middle].first_batch <= batch)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void permutation_of(const mds_plan *plan, size_t b, mds_permutation *permutation)
{
    const mds_bucket *bucket = &plan->buckets[b];
    mds_permutation_init(permutation, bucket->batches * bucket->size, plan->seed, plan->epoch, STREAM_BUCKET + b);
}

mds_status mds_plan_batches(const mds_kernels *kernels, const mds_plan *plan, const int64_t *batches, size_t n,
                            int64_t *ranks, size_t capacity, int64_t *ends)
{
    size_t written = 0, last = SIZE_MAX;
    mds_permutation permutation;
    for (size_t k = 0; k < n; k++) {
        const uint64_t batch = (uint64_t)batches[k];
        const size_t b = bucket_of_batch(plan->buckets, plan->count, batch);
        const mds_bucket *bucket = &plan->buckets[b];
        const uint64_t first = (batch - bucket->first_batch) * bucket->size;
        if (batch - bucket->first_batch >= bucket->batches || bucket->size > capacity - written ||
            bucket->first_rank + bucket->batches * bucket->size > plan->ranks)
            return MDS_CORRUPT;
        int64_t *out = ranks + written;
        if (plan->shuffle) {
            if (b != last)
                permutation_of(plan, b, &permutation);
            last = b;
            mds_permute_range(kernels, &permutation, first, 1, bucket->size, out);
        } else {
            for (uint64_t i = 0; i < bucket->size; i++)
                out[i] = (int64_t)(first + i);
        }
        const int64_t base = (int64_t)(plan->first_rank + bucket->first_rank);
        for (uint64_t i = 0; i < bucket->size; i++)
            out[i] += base;
        written += bucket->size;
        ends[k] = (int64_t)written;
    }
    return MDS_OK;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* The bucket of a record, or SIZE_MAX if its length is not planned. A bucket may begin among the records of one length:
 * those from splits[v] on belong to it, the others to the bucket before. */
static size_t bucket_of_record(const mds_stream *s, uint64_t record, uint64_t length)
{
    size_t low = 0, high = s->distinct; /* the first value that is not larger */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (s->values[middle] > length)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == s->distinct || s->values[low] != length)
        return SIZE_MAX;
    return s->first_buckets[low] + (record >= s->splits[low]);
}

mds_status mds_stream_push(const mds_stream *s, const int64_t *records, const uint64_t *lengths, size_t n,
                           size_t *consumed, int64_t *out, size_t capacity, int64_t *ends, size_t most, size_t *emitted,
                           size_t *written)
{
    *emitted = *written = *consumed = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t record = (uint64_t)records[i];
        if (record >= s->records)
            return MDS_CORRUPT;
        const uint64_t length = lengths[i];
        size_t b;
        if (length < s->table_size) {
            const uint32_t v = s->table[length];
            b = v == UINT32_MAX ? SIZE_MAX : s->first_buckets[v] + (record >= s->splits[v]);
        } else {
            b = bucket_of_record(s, record, length);
        }
        if (b != SIZE_MAX) {
            const mds_bucket *bucket = &s->buckets[b];
            const uint64_t total = (b + 1 < s->count ? bucket[1].first_rank : s->ranks) - bucket->first_rank;
            if (s->taken[b] >= total)
                return MDS_CORRUPT; /* the order gave a record twice */
            int64_t *open = s->open + s->open_first[b];
            const uint64_t slot = s->taken[b] % bucket->size;
            if (slot + 1 == bucket->size || s->taken[b] + 1 == total) {
                if (*emitted == most || capacity - *written <= slot)
                    return MDS_OK;
                memcpy(out + *written, open, slot * sizeof *open);
                out[*written + slot] = (int64_t)record;
                *written += slot + 1;
                ends[(*emitted)++] = (int64_t)*written;
            } else {
                open[slot] = (int64_t)record;
            }
            s->taken[b]++;
        }
        *consumed = i + 1;
    }
    return MDS_OK;
}

int mds_stream_agrees(const mds_stream *s, const char **table, size_t *entry)
{
    *table = "first_buckets";
    for (*entry = 0; *entry < s->distinct; ++*entry)
        if ((uint64_t)s->first_buckets[*entry] + (s->splits[*entry] != MDS_NONE) >= s->count)
            return 0;
    *table = "table";
    for (*entry = 0; *entry < s->table_size; ++*entry)
        if (s->table[*entry] != UINT32_MAX && s->table[*entry] >= s->distinct)
            return 0;
    return 1;
}
