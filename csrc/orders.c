/* orders.c - orders that need more than one permutation: chunks, and mixtures. Neither keeps anything per record. */
#include "mmapds.h"

/* Streams keep the keys of different uses apart. */
#define STREAM_MIX (UINT64_C(1) << 62)
#define STREAM_MEMBER (UINT64_C(1) << 61)

#define NOBODY UINT32_MAX /* end of a list of members */

/* How many of sorted[0..n) are <= value. */
static size_t count_up_to(const uint64_t *sorted, size_t n, uint64_t value)
{
    size_t low = 0;
    while (n) {
        const size_t half = n / 2;
        if (sorted[low + half] <= value) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

/* ---- chunks ------------------------------------------------------------------------------------------------- */

/* Position at which a slot begins: all earlier slots are full, except short chunks. */
static uint64_t slot_begin(const mds_chunks *c, uint64_t slot)
{
    const size_t before = slot ? count_up_to(c->short_slots, c->short_chunks, slot - 1) : 0;
    return slot * c->chunk_size - c->short_missing[before];
}

static uint64_t slot_at(const mds_chunks *c, uint64_t position)
{
    const size_t before = count_up_to(c->short_ends, c->short_chunks, position);
    return (position + c->short_missing[before]) / c->chunk_size;
}

/* The mix that holds a position: which of the epoch, and the positions it covers. */
typedef struct {
    uint64_t number, begin, end;
} mix;

static mix mix_at(const mds_chunks *c, uint64_t position)
{
    const uint64_t number = slot_at(c, position) / c->mix_chunks, first = number * c->mix_chunks;
    const uint64_t last = c->chunks - first < c->mix_chunks ? c->chunks : first + c->mix_chunks;
    return (mix){number, slot_begin(c, first), slot_begin(c, last)};
}

#define BATCH 256

void mds_chunks_at(const mds_kernels *kernels, const mds_chunks *c, const mds_permutation *order,
                   const int64_t *positions, size_t count, int64_t *out)
{
    int64_t place[BATCH], slot[BATCH];
    mix current = {MDS_NONE, 0, 0};
    mds_permutation inside;
    for (size_t done = 0; done < count;) {
        const uint64_t position = (uint64_t)positions[done];
        if (current.number == MDS_NONE || position < current.begin || position >= current.end) {
            current = mix_at(c, position);
            mds_permutation_init(&inside, current.end - current.begin, c->seed, c->epoch, STREAM_MIX | current.number);
        }
        /* Take the next positions in the same mix, up to a batch: permuting many at once is faster. */
        size_t n = 0;
        for (; n < BATCH && done + n < count; n++) {
            const uint64_t p = (uint64_t)positions[done + n];
            if (p < current.begin || p >= current.end)
                break;
            place[n] = (int64_t)(p - current.begin);
        }
        mds_permute_array(kernels, &inside, place, n, 0, place);
        for (size_t k = 0; k < n; k++) {
            place[k] += (int64_t)current.begin;
            slot[k] = (int64_t)slot_at(c, (uint64_t)place[k]);
            place[k] -= (int64_t)slot_begin(c, (uint64_t)slot[k]);
        }
        mds_permute_array(kernels, order, slot, n, 0, slot);
        for (size_t k = 0; k < n; k++) {
            const uint64_t chunk = (uint64_t)slot[k];
            const size_t source = count_up_to(c->first_chunk, c->sources, chunk) - 1;
            out[done + k] =
                (int64_t)(c->first_record[source] + (chunk - c->first_chunk[source]) * c->chunk_size) + place[k];
        }
        done += n;
    }
}

/* ---- mixtures ----------------------------------------------------------------------------------------------- */

/* A member of weight w deserves its i-th position after i * total / w positions and before (i + 1) * total / w. Giving
 * each position to the member that deserves it already and must have it soonest keeps all counts within 1 of their
 * shares whenever that can be done, and it always can: R. Tijdeman, "The chairman assignment problem", 1980; S. Baruah
 * et al., "Proportionate progress", 1996, who schedule tasks so. */

/* Return whether a member must have its next position before another member; ties go to the first. */
static int is_sooner(const mds_claim *claims, uint32_t one, uint32_t other)
{
    const uint64_t a = claims[one].deadline, b = claims[other].deadline;
    return a != b ? a < b : one < other;
}

static void push_claim(mds_claim *claims, size_t n, uint32_t member)
{
    size_t at = n;
    for (; at && is_sooner(claims, member, claims[(at - 1) / 2].heap); at = (at - 1) / 2)
        claims[at].heap = claims[(at - 1) / 2].heap;
    claims[at].heap = member;
}

static uint32_t pop_claim(mds_claim *claims, size_t n)
{
    const uint32_t first = claims[0].heap, last = claims[n - 1].heap;
    size_t at = 0, next;
    for (; (next = 2 * at + 1) < n - 1; at = next) {
        next += next + 2 < n && is_sooner(claims, claims[next + 1].heap, claims[next].heap);
        if (!is_sooner(claims, claims[next].heap, last))
            break;
        claims[at].heap = claims[next].heap;
    }
    claims[at].heap = last;
    return first;
}

/* Let a member wait in the list of the position at which it deserves its next one; until a position is given, rank[p]
 * is the first member in its list. */
static void await(mds_claim *claims, uint32_t member, uint64_t position, uint32_t *rank)
{
    claims[member].next = rank[position];
    rank[position] = member;
}

void mds_mixture_period(const uint64_t *weights, size_t members, uint32_t total, mds_claim *claims, uint32_t *which,
                        uint32_t *rank)
{
    size_t due = 0;
    for (uint32_t p = 0; p < total; p++)
        rank[p] = NOBODY;
    for (size_t d = 0; d < members; d++) {
        claims[d].given = 0;
        if (weights[d])
            await(claims, (uint32_t)d, 0, rank);
    }
    for (uint32_t p = 0; p < total; p++) {
        for (uint32_t d = rank[p]; d != NOBODY; d = claims[d].next) {
            claims[d].deadline = ((claims[d].given + 1) * total + weights[d] - 1) / weights[d];
            push_claim(claims, due++, d);
        }
        const uint32_t d = pop_claim(claims, due--);
        which[p] = d;
        rank[p] = (uint32_t)claims[d].given++;
        if (claims[d].given < weights[d]) {
            const uint64_t deserved = claims[d].given * total / weights[d];
            await(claims, d, deserved > p ? deserved : p + UINT64_C(1), rank);
        }
    }
}

void mds_mixture_at(const mds_mixture *m, mds_member *members, const int64_t *positions, size_t count, int64_t *out)
{
    for (size_t k = 0; k < count; k++) {
        const uint64_t period = (uint64_t)positions[k] / m->total, p = (uint64_t)positions[k] % m->total;
        const uint32_t d = m->which[p];
        const uint64_t draw = period * m->weights[d] + m->rank[p];
        const uint64_t pass = draw / m->sizes[d];
        uint64_t i = draw % m->sizes[d];
        if (m->shuffle) {
            if (members[d].pass != pass) {
                members[d].pass = pass;
                mds_permutation_init(&members[d].permutation, m->sizes[d], mds_key(m->seed, STREAM_MEMBER | d, pass),
                                     m->epoch, 0);
            }
            i = mds_permute(&members[d].permutation, i);
        }
        out[k] = (int64_t)(m->first_record[d] + i);
    }
}

void mds_mixture_which(const mds_mixture *m, const int64_t *positions, size_t count, int64_t *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = m->which[(uint64_t)positions[k] % m->total];
}

/* ---- checks ------------------------------------------------------------------------------------------------- */

static int sources_agree(const mds_chunks *c, const char **table, size_t *entry)
{
    uint64_t unused;
    *entry = 0;
    for (size_t s = 0; s <= c->sources; s++) {
        const uint64_t record = c->first_record[s], before = s ? c->first_record[s - 1] : 0;
        *entry = s;
        *table = "first_record";
        if (record < before || record > INT64_MAX || (s == 0 && record != 0))
            return 0;
        const uint64_t size = record - before, chunks = size / c->chunk_size + (size % c->chunk_size != 0);
        *table = "first_chunk";
        if (c->first_chunk[s] != (s ? c->first_chunk[s - 1] : 0) + chunks)
            return 0;
    }
    return c->chunks == c->first_chunk[c->sources] && c->chunks > 0 &&
           !__builtin_mul_overflow(c->chunks, c->chunk_size, &unused);
}

/* How many records the chunk in a slot lacks. */
static uint64_t missing_in(const mds_chunks *c, const mds_permutation *order, uint64_t slot)
{
    const uint64_t chunk = mds_permute(order, slot);
    const size_t source = count_up_to(c->first_chunk, c->sources, chunk) - 1;
    const uint64_t size = c->first_record[source + 1] - c->first_record[source];
    const uint64_t before = (chunk - c->first_chunk[source]) * c->chunk_size;
    return size - before < c->chunk_size ? c->chunk_size - (size - before) : 0;
}

int mds_chunks_agree(const mds_chunks *c, const mds_permutation *order, const char **table, size_t *entry)
{
    if (!sources_agree(c, table, entry))
        return 0;
    *table = "order";
    if (order->n != c->chunks)
        return 0;
    for (size_t t = 0; t < c->short_chunks; t++) {
        const uint64_t slot = c->short_slots[t], missing = c->short_missing[t + 1] - c->short_missing[t];
        *entry = t;
        *table = "short_slots";
        if (slot >= c->chunks || (t && slot <= c->short_slots[t - 1]))
            return 0;
        *table = "short_missing";
        if (missing < 1 || missing != missing_in(c, order, slot))
            return 0;
        *table = "short_ends";
        if (c->short_ends[t] != (slot + 1) * c->chunk_size - c->short_missing[t + 1])
            return 0;
    }
    *entry = c->short_chunks;
    *table = "short_missing";
    return c->short_missing[0] == 0 &&
           c->short_missing[c->short_chunks] == c->chunks * c->chunk_size - c->first_record[c->sources];
}

size_t mds_first_outside(const int64_t *numbers, size_t n, uint64_t limit)
{
    size_t k = 0;
    while (k < n && (uint64_t)numbers[k] < limit)
        k++;
    return k;
}

/* ---- draws by weight ----------------------------------------------------------------------------------------------
 *
 * A tree halves the records again and again, at whole blocks of the coarse sums as long as it can. With replacement, a
 * draw is a number below the total, and the tree finds its record.
 *
 * Without replacement, a node knows how many draws its records get: their expected number, rounded up or down. It gives
 * each half the expected number of that half, rounded so that both add up, and such that each half is rounded up with the
 * probability of its fraction. So every record gets its expected number, rounded without bias, and nothing is stored but
 * the sums. This is dependent rounding along a tree (A. Srinivasan, "Distributions on level-sets with applications to
 * approximation algorithms", FOCS 2001). */

/* The sum of the weights of the first `records` records, at least one. */
static uint64_t sum_of(const mds_sums *s, uint64_t records)
{
    return records % MDS_SUMS_BLOCK ? s->ends[records - 1] : s->coarse[records / MDS_SUMS_BLOCK - 1];
}

static uint64_t middle_of(uint64_t first, uint64_t last)
{
    const uint64_t middle = first + (last - first) / 2;
    if (last - first <= MDS_SUMS_BLOCK)
        return middle;
    const uint64_t whole = middle / MDS_SUMS_BLOCK * MDS_SUMS_BLOCK;
    return whole > first ? whole : whole + MDS_SUMS_BLOCK;
}

static uint64_t weighted_at(const mds_sums *s, uint64_t drawn)
{
    uint64_t first = 0, last = s->n;
    while (last - first > 1) {
        const uint64_t middle = middle_of(first, last);
        if (drawn < sum_of(s, middle))
            last = middle;
        else
            first = middle;
    }
    return first;
}

void mds_weighted_many(const mds_sums *sums, uint64_t key, const int64_t *at, size_t count, int64_t *out)
{
    const uint64_t total = sums->ends[sums->n - 1];
    for (size_t k = 0; k < count; k++)
        out[k] = (int64_t)weighted_at(sums, mds_draw(key, (uint64_t)at[k], total));
}

typedef struct {
    uint64_t whole, part; /* an expected number is whole + part / total */
} expected;

/* Whether to round up the left half, if exactly one half is: the parts of both say with which probability. */
static int left_is_up(uint64_t left, uint64_t right, uint64_t total, uint64_t key, uint64_t node)
{
    if (left < total - right) /* the sum of both fractions is below 1 */
        return mds_draw(key, node, left + right) < left;
    return mds_draw(key, node, (total - left) + (total - right)) < total - right;
}

static uint64_t rounded_at(const mds_sums *s, uint64_t draws, uint64_t key, uint64_t at)
{
    const uint64_t total = s->ends[s->n - 1];
    uint64_t first = 0, last = s->n, before = 0, given = draws;
    expected own = {draws, 0};
    while (last - first > 1) {
        const uint64_t middle = middle_of(first, last), end = sum_of(s, middle);
        const unsigned __int128 of_left = (unsigned __int128)(end - before) * draws;
        const expected left = {(uint64_t)(of_left / total), (uint64_t)(of_left % total)};
        const uint64_t borrows = own.part < left.part;
        const expected right = {own.whole - left.whole - borrows, own.part - left.part + (borrows ? total : 0)};
        const uint64_t up = given - left.whole - right.whole; /* of both halves, 0 to 2 are rounded up */
        const int takes_one = up == 2 || (up == 1 && left_is_up(left.part, right.part, total, key, middle));
        const uint64_t to_left = left.whole + (uint64_t)takes_one;
        if (at < to_left) {
            last = middle;
            own = left;
            given = to_left;
        } else {
            at -= to_left;
            first = middle;
            before = end;
            own = right;
            given -= to_left;
        }
    }
    return first;
}

void mds_rounded_many(const mds_sums *sums, uint64_t draws, uint64_t key, const int64_t *at, size_t count, int64_t *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = (int64_t)rounded_at(sums, draws, key, (uint64_t)at[k]);
}
