/* fuzz_orders.c - permutations, chunks and mixtures of any size.
 *
 * Property: a permutation and its inverse undo one another, and all SIMD variants and all ways to call it agree; an epoch of
 * chunks covers each record once; at each prefix of a mixture every member is within 1 of its share, and every pass over
 * a member covers each of its records once.
 * Input: which of them, the seeds, the sizes and the weights. */
#include "fuzz.h"

#define SMALL 40 /* records of which all are looked at */

static void permutation(uint64_t n, uint64_t seed, uint64_t epoch, uint64_t stream, uint64_t first)
{
    mds_permutation p;
    mds_permutation_init(&p, n, seed, epoch, stream);
    const size_t count = n < SMALL ? (size_t)n : SMALL;
    first %= n - count + 1; /* look at positions first to first + count - 1 */
    int64_t *positions = fuzz_room(count, sizeof *positions), *values = fuzz_room(count, sizeof *values);
    int64_t *out = fuzz_room(count, sizeof *out);
    uint8_t *seen = fuzz_room(count, 1);
    for (size_t k = 0; k < count; k++) {
        positions[k] = (int64_t)(first + k);
        const uint64_t value = mds_permute(&p, first + k);
        CHECK(value < n && mds_permute_inverse(&p, value) == first + k);
        CHECK(n > count || !seen[value]++);
        values[k] = (int64_t)value;
    }
    for (size_t v = 0; mds_kernels_at(v); v++) {
        mds_permute_range(mds_kernels_at(v), &p, first, 1, count, out);
        CHECK(memcmp(out, values, count * sizeof *out) == 0);
        mds_permute_range(mds_kernels_at(v), &p, first + count - 1, -1, count, out);
        for (size_t k = 0; k < count; k++)
            CHECK(out[k] == values[count - 1 - k]);
        mds_permute_array(mds_kernels_at(v), &p, positions, count, 0, out);
        CHECK(memcmp(out, values, count * sizeof *out) == 0);
        mds_permute_array(mds_kernels_at(v), &p, out, count, 1, out);
        CHECK(memcmp(out, positions, count * sizeof *out) == 0);
    }
    free(positions);
    free(values);
    free(out);
    free(seen);
}

#define SOURCES 5

static void chunks(fuzz_input *input)
{
    uint64_t first_record[SOURCES + 1] = {0}, first_chunk[SOURCES + 1] = {0};
    uint64_t slots[SOURCES], ends[SOURCES], missing[SOURCES + 1] = {0}, sizes[SOURCES];
    mds_chunks c = {.first_chunk = first_chunk, .first_record = first_record, .short_ends = ends, .short_slots = slots};
    c.short_missing = missing;
    c.sources = (size_t)fuzz_between(input, 1, SOURCES);
    c.chunk_size = fuzz_between(input, 1, 12);
    c.seed = fuzz_take(input, 8);
    c.epoch = fuzz_take(input, 1);
    for (size_t s = 0; s < c.sources; s++) {
        sizes[s] = fuzz_between(input, 0, 24);
        first_record[s + 1] = first_record[s] + sizes[s];
        first_chunk[s + 1] = first_chunk[s] + (sizes[s] + c.chunk_size - 1) / c.chunk_size;
    }
    const uint64_t n = first_record[c.sources];
    c.chunks = first_chunk[c.sources];
    if (n == 0)
        return;
    c.mix_chunks = fuzz_between(input, 1, c.chunks);
    mds_permutation order;
    mds_permutation_init(&order, c.chunks, c.seed, c.epoch, 1);
    for (uint64_t slot = 0, end = 0; slot < c.chunks; slot++) { /* the short chunks in the order of their slots */
        const uint64_t chunk = mds_permute(&order, slot);
        uint64_t lacks = 0;
        for (size_t s = 0; s < c.sources; s++)
            if (chunk + 1 == first_chunk[s + 1] && sizes[s] % c.chunk_size && chunk >= first_chunk[s])
                lacks = c.chunk_size - sizes[s] % c.chunk_size;
        end += c.chunk_size - lacks;
        if (lacks) {
            slots[c.short_chunks] = slot;
            ends[c.short_chunks] = end;
            missing[c.short_chunks + 1] = missing[c.short_chunks] + lacks;
            c.short_chunks++;
        }
    }
    int64_t *positions = fuzz_room(n, sizeof *positions), *out = fuzz_room(n, sizeof *out);
    uint8_t *seen = fuzz_room(n, 1);
    for (uint64_t p = 0; p < n; p++)
        positions[p] = (int64_t)p;
    mds_chunks_at(mds_kernels_at(0), &c, &order, positions, n, out);
    for (uint64_t p = 0; p < n; p++)
        CHECK((uint64_t)out[p] < n && !seen[out[p]]++);
    /* Some of them, by themselves and by other kernels. */
    const uint64_t first = fuzz_between(input, 0, n - 1), count = fuzz_between(input, 1, n - first);
    int64_t *again = fuzz_room(count, sizeof *again);
    mds_chunks_at(mds_kernels_find("portable"), &c, &order, positions + first, count, again);
    CHECK(memcmp(again, out + first, count * sizeof *again) == 0);
    free(again);
    free(positions);
    free(out);
    free(seen);
}

#define MEMBERS 6

static void mixture(fuzz_input *input)
{
    uint64_t weights[MEMBERS], sizes[MEMBERS], first_record[MEMBERS + 1] = {0};
    mds_claim claims[MEMBERS];
    mds_member members[MEMBERS];
    uint8_t *seen[MEMBERS];
    mds_mixture m = {.weights = weights, .sizes = sizes, .first_record = first_record};
    m.members = (size_t)fuzz_between(input, 1, MEMBERS);
    m.seed = fuzz_take(input, 8);
    m.epoch = fuzz_take(input, 1);
    m.shuffle = (int)fuzz_take(input, 1) & 1;
    for (size_t d = 0; d < m.members; d++) {
        weights[d] = fuzz_between(input, 0, 20);
        sizes[d] = fuzz_between(input, 1, 20);
        first_record[d + 1] = first_record[d] + sizes[d];
        members[d].pass = MDS_NONE;
        seen[d] = fuzz_room(sizes[d], 1);
        m.total += (uint32_t)weights[d];
    }
    uint32_t *which = fuzz_room(m.total, sizeof *which), *rank = fuzz_room(m.total, sizeof *rank);
    m.which = which;
    m.rank = rank;
    if (m.total)
        mds_mixture_period(weights, m.members, m.total, claims, which, rank);
    uint64_t counts[MEMBERS] = {0};
    for (uint64_t p = 0; p < 2 * (uint64_t)m.total; p++) { /* two periods */
        const uint32_t d = which[p % m.total];
        CHECK(d < m.members && rank[p % m.total] == counts[d] - p / m.total * weights[d]);
        const uint64_t taken = counts[d]++;
        for (size_t e = 0; e < m.members; e++) {
            const int64_t apart = (int64_t)(counts[e] * m.total) - (int64_t)((p + 1) * weights[e]);
            CHECK(apart < (int64_t)m.total && -apart < (int64_t)m.total);
        }
        int64_t position = (int64_t)p, record;
        mds_mixture_at(&m, members, &position, 1, &record);
        CHECK((uint64_t)record >= first_record[d] && (uint64_t)record < first_record[d + 1]);
        if (taken % sizes[d] == 0)
            memset(seen[d], 0, sizes[d]); /* a new pass */
        CHECK(!seen[d][(uint64_t)record - first_record[d]]++);
    }
    for (size_t d = 0; d < m.members; d++)
        free(seen[d]);
    free(which);
    free(rank);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_input input = {data, n};
    const uint64_t what = fuzz_take(&input, 1) % 4; /* one of them, which is four times as many inputs in a second */
    if (what == 0) {
        const uint64_t size = fuzz_magnitude(&input, 1, INT64_MAX), seed = fuzz_take(&input, 8);
        permutation(size, seed, fuzz_take(&input, 2), fuzz_take(&input, 1), fuzz_take(&input, 8));
    } else if (what == 1) {
        const uint64_t size = fuzz_between(&input, 1, SMALL);
        permutation(size, fuzz_take(&input, 8), fuzz_take(&input, 2), fuzz_take(&input, 1), 0);
    } else if (what == 2) {
        chunks(&input);
    } else {
        mixture(&input);
    }
    return 0;
}
