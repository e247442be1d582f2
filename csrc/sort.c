/* sort.c - the length order: a stable radix sort of record numbers by length, the longest first. */
#include "mmapds.h"
#include "words.h"

#include <string.h>

uint64_t mds_lengths_largest(const void *lengths, unsigned width, size_t n)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t length = mds_word_at(lengths, width, i);
        largest = length > largest ? length : largest;
    }
    return largest;
}

mds_status mds_lengths_sort(const void *lengths, unsigned width, size_t n, unsigned shift, uint64_t mask, size_t digits,
                            uint64_t *counts, const void *in, void *out, unsigned order_width)
{
    memset(counts, 0, digits * sizeof *counts);
    for (size_t i = 0; i < n; i++) {
        const uint64_t digit = mds_word_at(lengths, width, i) >> shift & mask;
        if (digit >= digits)
            return MDS_CORRUPT;
        counts[digit]++;
    }
    uint64_t before = 0;
    for (size_t d = digits; d-- > 0;) {
        const uint64_t count = counts[d];
        counts[d] = before;
        before += count;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t record = i;
        if (in) {
            if (i + 16 < n)
                __builtin_prefetch((const char *)lengths + width * mds_word_at(in, order_width, i + 16));
            record = mds_word_at(in, order_width, i);
        }
        const uint64_t digit = mds_word_at(lengths, width, record) >> shift & mask; /* a mapped file may change */
        const uint64_t place = digit < digits ? counts[digit]++ : n;
        if (place >= n)
            return MDS_CORRUPT;
        if (order_width == 4)
            ((uint32_t *)out)[place] = (uint32_t)record;
        else
            ((uint64_t *)out)[place] = record;
    }
    return MDS_OK;
}

size_t mds_runs_of(const uint64_t *ends, size_t digits, uint64_t *values, uint64_t *counts)
{
    size_t runs = 0;
    uint64_t before = 0;
    for (size_t d = digits; d-- > 0;) {
        if (ends[d] == before)
            continue;
        values[runs] = d;
        counts[runs++] = ends[d] - before;
        before = ends[d];
    }
    return runs;
}

size_t mds_lengths_runs(const void *lengths, unsigned width, const void *order, unsigned order_width, size_t n,
                        uint64_t *values, uint64_t *counts, size_t room)
{
    size_t runs = 0;
    uint64_t last = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t length = mds_word_at(lengths, width, mds_word_at(order, order_width, i));
        if (i == 0 || length != last) {
            if (values && runs == room)
                return room + 1;
            if (values) {
                values[runs] = length;
                counts[runs] = 0;
            }
            runs++;
            last = length;
        }
        if (values)
            counts[runs - 1]++;
    }
    return runs;
}
