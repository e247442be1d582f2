/* packing.c - sequences of different lengths in packs of one length, planned on the histogram of the lengths.
 *
 * Best-fit decreasing takes the sequences from the longest down, and puts each into the fullest pack that has room for
 * it (D. S. Johnson et al., "Worst-Case Performance Bounds for Simple One-Dimensional Packing Algorithms", SIAM J.
 * Comput. 3(4), 1974). Packs that hold the same lengths are alike, so one step here places sequences of one length into
 * all packs that are alike. A pack that has got a sequence is still the fullest with room for one more, if there is
 * any, so each gets as many as fit. The result has as many packs as taking the sequences one by one, after some three
 * steps a distinct length, however many sequences there are. That packing needs no more than the histogram is due to
 * M. M. Krell et al., "Efficient Sequence Packing without Cross-contamination", arXiv 2107.02027, 2021.
 *
 * An epoch is a keyed permutation of the sequences of each length over the slots of that length in the plan. So nothing
 * is planned again, and sequences share packs with others. */
#include "kernels.h"

#define STREAM_LENGTH 0x7061636bULL /* separates the permutations of lengths from all others of the seed */
#define NO_ROW UINT32_MAX

/* ---- the plan --------------------------------------------------------------------------------------------------- */

/* Rows whose packs have room, by number: with `widest`, those with the most space come first, else the fullest. */
typedef struct {
    const mds_filled *rows;
    uint32_t *items;
    size_t n;
    int widest;
} heap;

static int comes_before(const heap *h, uint32_t one, uint32_t other)
{
    const mds_filled *a = &h->rows[one], *b = &h->rows[other];
    if (a->space != b->space)
        return h->widest ? a->space > b->space : a->space < b->space;
    return a->left != b->left ? a->left < b->left : one < other;
}

static void push(heap *h, uint32_t item)
{
    size_t at = h->n++;
    for (; at && comes_before(h, item, h->items[(at - 1) / 2]); at = (at - 1) / 2)
        h->items[at] = h->items[(at - 1) / 2];
    h->items[at] = item;
}

static uint32_t pop(heap *h)
{
    const uint32_t first = h->items[0], last = h->items[--h->n];
    size_t at = 0, next;
    for (; (next = 2 * at + 1) < h->n; at = next) {
        next += next + 1 < h->n && comes_before(h, h->items[next + 1], h->items[next]);
        if (!comes_before(h, h->items[next], last))
            break;
        h->items[at] = h->items[next];
    }
    h->items[at] = last;
    return first;
}

size_t mds_pack_lengths(const uint64_t *values, const uint64_t *counts, size_t distinct, uint64_t length, uint64_t most,
                        mds_filled *rows, uint32_t *heaps, size_t capacity)
{
    heap roomy = {rows, heaps, 0, 0};              /* packs with room for the length at hand, the fullest first */
    heap waiting = {rows, heaps + capacity, 0, 1}; /* packs with room for shorter sequences only */
    size_t count = 0;
    for (size_t v = 0; v < distinct; v++) {
        while (waiting.n && rows[waiting.items[0]].space >= values[v])
            push(&roomy, pop(&waiting));
        for (uint64_t left = counts[v]; left;) {
            if (count == capacity)
                return SIZE_MAX;
            mds_filled new = {UINT64_MAX, length, most, 0, (uint32_t)v, NO_ROW};
            if (roomy.n) {
                new = rows[roomy.items[0]];
                new.before = roomy.items[0];
                new.value = (uint32_t)v;
            }
            new.each = new.space / values[v] < new.left ? new.space / values[v] : new.left;
            if (new.each > left) /* the last sequences of this length go into one pack */
                new.each = left;
            new.packs = new.packs < left / new.each ? new.packs : left / new.each;
            new.space -= new.each * values[v];
            new.left -= new.each;
            left -= new.each * new.packs;
            if (roomy.n && !(rows[new.before].packs -= new.packs))
                pop(&roomy);
            rows[count] = new;
            if (new.space && new.left)
                push(new.space >= values[v] ? &roomy : &waiting, (uint32_t)count);
            count++;
        }
    }
    return count;
}

void mds_kinds_count(const mds_filled *rows, size_t count, size_t *kinds, size_t *parts)
{
    *kinds = *parts = 0;
    for (size_t i = 0; i < count; i++) {
        if (!rows[i].packs)
            continue;
        ++*kinds;
        for (uint32_t row = (uint32_t)i; row != NO_ROW; row = rows[row].before)
            ++*parts;
    }
}

void mds_kinds_write(const mds_filled *rows, size_t count, mds_kind *kinds, mds_part *parts)
{
    for (size_t i = 0; i < count; i++) {
        if (!rows[i].packs)
            continue;
        uint64_t n = 0;
        for (uint32_t row = (uint32_t)i; row != NO_ROW; row = rows[row].before)
            n++;
        *kinds++ = (mds_kind){rows[i].packs, n};
        parts += n;
        mds_part *part = parts;
        for (uint32_t row = (uint32_t)i; row != NO_ROW; row = rows[row].before)
            *--part = (mds_part){rows[row].value, rows[row].each};
    }
}

/* ---- reading it ------------------------------------------------------------------------------------------------- */

/* Number the packs and their parts. */
static int number_kinds(const mds_packs *p)
{
    uint64_t packs = 0, parts = 0;
    for (size_t k = 0; k < p->kinds_count; k++) {
        const mds_kind *kind = &p->kinds[k];
        p->first_pack[k] = packs;
        p->first_part[k] = parts;
        if (!kind->packs || !kind->parts || kind->parts > p->parts_count - parts || kind->packs > INT64_MAX - packs)
            return 0;
        for (uint64_t i = parts; i < parts + kind->parts; i++)
            p->kind_of[i] = (uint32_t)k;
        packs += kind->packs;
        parts += kind->parts;
    }
    p->first_pack[p->kinds_count] = packs;
    p->first_part[p->kinds_count] = parts;
    return parts == p->parts_count;
}

/* Number the slots of every length. */
static int number_slots(const mds_packs *p, const uint64_t *counts)
{
    uint64_t *next = p->first_rank; /* the next slot of each length, until the ranks are written */
    for (size_t v = 0; v <= p->distinct; v++)
        next[v] = 0;
    for (size_t i = 0; i < p->parts_count; i++) {
        const mds_part *part = &p->parts[i];
        uint64_t slots;
        if (part->value >= p->distinct || !part->each ||
            __builtin_mul_overflow(part->each, p->kinds[p->kind_of[i]].packs, &slots) ||
            slots > counts[part->value] - next[part->value])
            return 0;
        p->first_slot[i] = next[part->value];
        next[part->value] += slots;
    }
    for (size_t v = 0; v < p->distinct; v++)
        if (next[v] != counts[v])
            return 0;
    return 1;
}

int mds_packs_index(const mds_packs *packs, const uint64_t *counts)
{
    if (!number_kinds(packs) || !number_slots(packs, counts))
        return 0;
    uint64_t rank = 0;
    for (size_t v = 0; v < packs->distinct; v++) {
        packs->first_rank[v] = rank;
        if (counts[v] > INT64_MAX - rank)
            return 0;
        rank += counts[v];
    }
    packs->first_rank[packs->distinct] = rank;
    return 1;
}

/* The last of firsts[0..n) that is not above `number`; firsts[0] is not. */
static size_t last_at(const uint64_t *firsts, size_t n, uint64_t number)
{
    size_t low = 0, high = n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (firsts[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void permutation_of(const mds_packs *p, const mds_packs_epoch *epoch, uint64_t value, mds_permutation *made)
{
    const uint64_t sequences = p->first_rank[value + 1] - p->first_rank[value];
    mds_permutation_init(made, sequences, epoch->seed, epoch->epoch, STREAM_LENGTH + value);
}

mds_status mds_packs_ranks(const mds_kernels *kernels, const mds_packs *packs, const mds_packs_epoch *epoch,
                           const int64_t *numbers, size_t n, int64_t *ranks, size_t capacity, int64_t *ends)
{
    size_t written = 0;
    for (size_t k = 0; k < n; k++) {
        const uint64_t pack = (uint64_t)numbers[k];
        const size_t kind = last_at(packs->first_pack, packs->kinds_count, pack);
        for (uint64_t i = packs->first_part[kind]; i < packs->first_part[kind + 1]; i++) {
            const mds_part *part = &packs->parts[i];
            const uint64_t first = packs->first_slot[i] + (pack - packs->first_pack[kind]) * part->each;
            if (part->each > capacity - written)
                return MDS_CORRUPT;
            int64_t *out = ranks + written;
            if (epoch->shuffle) {
                mds_permutation permutation;
                permutation_of(packs, epoch, part->value, &permutation);
                mds_permute_range(kernels, &permutation, first, 1, part->each, out);
            } else {
                for (uint64_t j = 0; j < part->each; j++)
                    out[j] = (int64_t)(first + j);
            }
            for (uint64_t j = 0; j < part->each; j++)
                out[j] += (int64_t)packs->first_rank[part->value];
            written += part->each;
        }
        ends[k] = (int64_t)written;
    }
    return MDS_OK;
}
