/* bits.c - selections of records: as a bitmap with a directory of counts, or as an array of numbers.
 *
 * The directory has the number of ones before every block of 2,048 bits: 3 % of the size of the bits. A lookup is a
 * binary search there, and a count of the ones in at most 32 words. */
#include "mmapds.h"

static uint64_t ones_in(uint64_t word)
{
    return (uint64_t)__builtin_popcountll(word);
}

size_t mds_bits_first_outside(const int64_t *numbers, size_t n, uint64_t limit, uint64_t *words)
{
    for (size_t k = 0; k < n; k++) {
        const uint64_t number = (uint64_t)numbers[k];
        if (number >= limit)
            return k;
        words[number / 64] |= UINT64_C(1) << number % 64;
    }
    return n;
}

void mds_bits_count(const uint64_t *words, size_t n, uint64_t *before)
{
    uint64_t count = 0;
    for (size_t w = 0; w < n; w++) {
        if (w % MDS_BITS_BLOCK == 0)
            before[w / MDS_BITS_BLOCK] = count;
        count += ones_in(words[w]);
    }
    before[(n + MDS_BITS_BLOCK - 1) / MDS_BITS_BLOCK] = count;
}

/* The bit of the number with a rank in a word, which has more than `rank` ones. */
static uint64_t place_in(uint64_t word, uint64_t rank)
{
    while (rank--)
        word &= word - 1;
    return (uint64_t)__builtin_ctzll(word);
}

/* Not inlined: a function with sigsetjmp keeps its variables in memory. */
__attribute__((noinline)) static mds_status select_numbers(const mds_bits *bits, const int64_t *ranks, size_t n,
                                                           int64_t *out)
{
    const size_t blocks = (bits->n + MDS_BITS_BLOCK - 1) / MDS_BITS_BLOCK;
    size_t word = 0, end = 0;       /* of the block of the previous number, from its word on */
    uint64_t before = 0, after = 0; /* ones before that word, and before the end of the block */
    for (size_t k = 0; k < n; k++) {
        const uint64_t rank = (uint64_t)ranks[k];
        if (rank < before || rank >= after) {
            size_t low = 0, high = blocks;
            while (high - low > 1) {
                const size_t middle = low + (high - low) / 2;
                if (bits->before[middle] <= rank)
                    low = middle;
                else
                    high = middle;
            }
            if (!blocks || bits->before[low] > rank || bits->before[low + 1] <= rank)
                return MDS_CORRUPT;
            word = low * MDS_BITS_BLOCK;
            end = bits->n - word < MDS_BITS_BLOCK ? bits->n : word + MDS_BITS_BLOCK;
            before = bits->before[low];
            after = bits->before[low + 1];
        }
        uint64_t ones;
        while (word < end && (ones = ones_in(bits->words[word])) <= rank - before) {
            before += ones;
            word++;
        }
        if (word == end)
            return MDS_CORRUPT;
        const uint64_t number = word * 64 + place_in(bits->words[word], rank - before);
        if (number >= bits->limit)
            return MDS_CORRUPT;
        out[k] = (int64_t)number;
    }
    return MDS_OK;
}

mds_status mds_bits_select(const mds_bits *bits, const int64_t *ranks, size_t n, int64_t *out)
{
    if (!bits->map)
        return select_numbers(bits, ranks, n, out);
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    const mds_status found = select_numbers(bits, ranks, n, out);
    const mds_status status = mds_map_was_whole(bits->map, bits->map->size, mds_now());
    mds_guard_leave();
    return status == MDS_OK ? found : status;
}

/* ---- numbers as an array ------------------------------------------------------------------------------------ */

/* The number of `width` bytes at a position. */
static int64_t number_at(const uint8_t *numbers, size_t width, int64_t position)
{
    uint64_t wide = 0;
    uint32_t narrow;
    if (width == sizeof wide) {
        memcpy(&wide, numbers + (size_t)position * width, sizeof wide);
        return (int64_t)wide;
    }
    memcpy(&narrow, numbers + (size_t)position * width, sizeof narrow);
    return (int64_t)narrow;
}

__attribute__((noinline)) static void take_numbers(const uint8_t *numbers, size_t width, const int64_t *positions,
                                                   size_t n, int64_t *out)
{
    for (size_t k = 0; k < n; k++)
        out[k] = number_at(numbers, width, positions[k]);
}

mds_status mds_array_select(const mds_map *map, uint64_t begin, size_t width, const int64_t *positions, size_t n,
                            int64_t *out)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    take_numbers(map->data + begin, width, positions, n, out);
    const mds_status status = mds_map_was_whole(map, map->size, mds_now());
    mds_guard_leave();
    return status;
}
