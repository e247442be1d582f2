/* fuzz_packing.c - packs of any length for any lengths.
 *
 * Property: there are as many packs as best-fit decreasing makes of the sequences one by one; each keeps its limits; the packs of an epoch hold
 * every sequence exactly once; tables that do not agree are refused.
 * Input: the limits, the lengths and how many sequences have each; then what is damaged. */
#include "fuzz.h"

#define DISTINCT 10
#define MOST 12 /* sequences of one length */

typedef struct {
    uint64_t length, most, values[DISTINCT], counts[DISTINCT], sequences;
    size_t distinct;
} packed;

static void choose(fuzz_input *input, packed *p)
{
    p->distinct = (size_t)fuzz_between(input, 1, DISTINCT);
    p->length = fuzz_magnitude(input, p->distinct, UINT64_MAX);
    p->most = fuzz_between(input, 1, 12);
    uint64_t value = fuzz_between(input, 0, 1) ? p->length : fuzz_magnitude(input, p->distinct, p->length);
    for (size_t v = 0; v < p->distinct; v++) {
        p->values[v] = value;
        p->counts[v] = fuzz_between(input, 1, MOST);
        p->sequences += p->counts[v];
        if (v + 1 < p->distinct) /* leave room for the rest to fall */
            value -= fuzz_magnitude(input, 1, value - (p->distinct - 1 - v));
    }
}

/* Place the sequences one by one, each into the fullest pack that has room for it. */
static uint64_t packs_one_by_one(const packed *p)
{
    uint64_t *space = fuzz_room((size_t)p->sequences, sizeof *space), *left = fuzz_room((size_t)p->sequences, 8);
    size_t packs = 0;
    for (size_t v = 0; v < p->distinct; v++)
        for (uint64_t i = 0; i < p->counts[v]; i++) {
            size_t best = packs;
            for (size_t k = 0; k < packs; k++)
                if (left[k] && space[k] >= p->values[v] &&
                    (best == packs || space[k] < space[best] || (space[k] == space[best] && left[k] < left[best])))
                    best = k;
            if (best == packs) {
                space[packs] = p->length;
                left[packs++] = p->most;
            }
            space[best] -= p->values[v];
            left[best]--;
        }
    free(space);
    free(left);
    return packs;
}

static void check_kinds(const packed *p, const mds_kind *kinds, size_t count, const mds_part *parts)
{
    uint64_t packs = 0;
    for (size_t k = 0; k < count; k++) {
        uint64_t used = 0, sequences = 0;
        for (uint64_t i = 0; i < kinds[k].parts; i++, parts++) {
            CHECK(parts->value < p->distinct && parts->each);
            CHECK(!i || parts->value > parts[-1].value);
            CHECK(parts->each <= (p->length - used) / p->values[parts->value]);
            used += parts->each * p->values[parts->value];
            sequences += parts->each;
        }
        CHECK(sequences <= p->most);
        packs += kinds[k].packs;
    }
    CHECK(packs == packs_one_by_one(p));
}

static int index_packs(const packed *p, mds_packs *packs)
{
    packs->first_pack = fuzz_room(packs->kinds_count + 1, 8);
    packs->first_part = fuzz_room(packs->kinds_count + 1, 8);
    packs->first_slot = fuzz_room(packs->parts_count, 8);
    packs->kind_of = fuzz_room(packs->parts_count, 4);
    packs->first_rank = fuzz_room(p->distinct + 1, 8);
    packs->distinct = p->distinct;
    return mds_packs_index(packs, p->counts);
}

static void free_packs(mds_packs *packs)
{
    void *tables[] = {packs->first_pack, packs->first_part, packs->first_slot, packs->kind_of, packs->first_rank};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        free(tables[i]);
}

static void check_epoch(fuzz_input *input, const packed *p, const mds_packs *packs)
{
    const mds_packs_epoch epoch = {fuzz_take(input, 4), fuzz_take(input, 1), (int)fuzz_between(input, 0, 1)};
    const size_t count = (size_t)packs->first_pack[packs->kinds_count], n = (size_t)p->sequences;
    int64_t *numbers = fuzz_room(count, 8), *ends = fuzz_room(count, 8);
    int64_t *ranks = fuzz_room(n, 8);
    uint8_t *seen = fuzz_room(n, 1);
    const mds_kernels *kernels = mds_kernels_at(0);
    for (size_t k = 0; k < count; k++)
        numbers[k] = (int64_t)(count - 1 - k);
    CHECK(mds_packs_ranks(kernels, packs, &epoch, numbers, count, ranks, n, ends) == MDS_OK);
    CHECK((uint64_t)ends[count - 1] == p->sequences);
    for (size_t k = 0, i = 0; k < count; k++) {
        uint64_t left = p->length;
        CHECK((size_t)ends[k] > i);
        for (; i < (size_t)ends[k]; i++) {
            CHECK((uint64_t)ranks[i] < p->sequences && !seen[ranks[i]]++);
            size_t v = 0;
            while (packs->first_rank[v + 1] <= (uint64_t)ranks[i])
                v++;
            CHECK(p->values[v] <= left);
            left -= p->values[v];
        }
    }
    CHECK(mds_packs_ranks(kernels, packs, &epoch, numbers, count, ranks, n - 1, ends) == MDS_CORRUPT);
    free(numbers);
    free(ends);
    free(ranks);
    free(seen);
}

/* Change one number of the tables. Only if packs are as they were, or hold the same sequences in another way, may they
 * be accepted; reading them must stay inside. */
static void check_damaged(fuzz_input *input, const packed *p, const mds_packs *good, mds_kind *kinds, mds_part *parts)
{
    const uint64_t number = fuzz_magnitude(input, 0, UINT64_MAX);
    const size_t kind = (size_t)fuzz_between(input, 0, good->kinds_count - 1);
    const size_t part = (size_t)fuzz_between(input, 0, good->parts_count - 1);
    switch (fuzz_take(input, 1) % 4) {
    case 0:
        kinds[kind].packs = number;
        break;
    case 1:
        kinds[kind].parts = number;
        break;
    case 2:
        parts[part].value = number;
        break;
    default:
        parts[part].each = number;
    }
    mds_packs packs = {.kinds = kinds, .parts = parts, .kinds_count = good->kinds_count};
    packs.parts_count = good->parts_count;
    if (index_packs(p, &packs)) {
        const mds_packs_epoch epoch = {1, 2, 1};
        const size_t n = (size_t)p->sequences;
        int64_t *ranks = fuzz_room(n, 8), last = (int64_t)packs.first_pack[packs.kinds_count] - 1, end;
        CHECK(mds_packs_ranks(mds_kernels_at(0), &packs, &epoch, &last, 1, ranks, n, &end) == MDS_OK);
        free(ranks);
    }
    free_packs(&packs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    packed p = {.distinct = 0};
    choose(&input, &p);
    const size_t capacity = (size_t)p.sequences; /* each step places one sequence or more */
    mds_filled *rows = fuzz_room(capacity, sizeof *rows);
    uint32_t *heaps = fuzz_room(2 * capacity, sizeof *heaps);
    const size_t count = mds_pack_lengths(p.values, p.counts, p.distinct, p.length, p.most, rows, heaps, capacity);
    CHECK(count <= capacity);
    mds_packs packs = {.kinds = NULL};
    mds_kinds_count(rows, count, &packs.kinds_count, &packs.parts_count);
    mds_kind *kinds = fuzz_room(packs.kinds_count, sizeof *kinds);
    mds_part *parts = fuzz_room(packs.parts_count, sizeof *parts);
    mds_kinds_write(rows, count, kinds, parts);
    check_kinds(&p, kinds, packs.kinds_count, parts);
    packs.kinds = kinds;
    packs.parts = parts;
    CHECK(index_packs(&p, &packs));
    check_epoch(&input, &p, &packs);
    check_damaged(&input, &p, &packs, kinds, parts);
    free_packs(&packs);
    CHECK(mds_pack_lengths(p.values, p.counts, p.distinct, p.length, p.most, rows, heaps, count - 1) == SIZE_MAX);
    free(kinds);
    free(parts);
    free(rows);
    free(heaps);
    return 0;
}
