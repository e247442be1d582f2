/* fuzz_sort.c - the length order.
 *
 * Property: whatever the lengths and the width of a digit, passes from the lowest digit to the highest give all records once,
 * the longest first and equally long ones in ascending order; the runs are those of that order.
 * Input: the widths, then the lengths. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    const unsigned width = fuzz_take(&input, 1) & 1 ? 8 : 4, order_width = fuzz_take(&input, 1) & 1 ? 8 : 4;
    const unsigned digit = (unsigned)fuzz_between(&input, 1, 12), used = (unsigned)fuzz_between(&input, 1, 8 * width);
    const size_t n = input.left / 2, digits = (size_t)1 << digit;
    uint8_t *lengths = fuzz_room(n, width), *order = fuzz_room(n, order_width), *last = fuzz_room(n, order_width);
    uint64_t *exact = fuzz_room(n, sizeof *exact), largest = 0;
    for (size_t i = 0; i < n; i++) {
        exact[i] = fuzz_take(&input, 2) * UINT64_C(0x9e3779b97f4a7c15) & (UINT64_MAX >> (64 - used));
        memcpy(lengths + width * i, &exact[i], width);
        largest = exact[i] > largest ? exact[i] : largest;
    }
    CHECK(mds_lengths_largest(lengths, width, n) == largest);

    uint64_t *ends = fuzz_room(digits, sizeof *ends);
    for (unsigned shift = 0; shift < used; shift += digit) {
        CHECK(mds_lengths_sort(lengths, width, n, shift, digits - 1, digits, ends, shift ? last : NULL, order,
                               order_width) == MDS_OK);
        memcpy(last, order, n * order_width);
    }
    uint64_t *records = fuzz_room(n, sizeof *records);
    uint8_t *seen = fuzz_room(n, 1);
    size_t distinct = 0;
    for (size_t k = 0; k < n; k++) {
        memcpy(&records[k], order + order_width * k, order_width);
        CHECK(records[k] < n && !seen[records[k]]++);
        const uint64_t length = exact[records[k]], before = k ? exact[records[k - 1]] : 0;
        CHECK(k == 0 || length < before || (length == before && records[k - 1] < records[k]));
        distinct += k == 0 || length < before;
    }
    CHECK(mds_lengths_runs(lengths, width, order, order_width, n, NULL, NULL, 0) == distinct);
    uint64_t *values = fuzz_room(distinct, sizeof *values), *counts = fuzz_room(distinct, sizeof *counts);
    CHECK(mds_lengths_runs(lengths, width, order, order_width, n, values, counts, distinct) == distinct);
    for (size_t v = 0, k = 0; v < distinct; k += counts[v++])
        CHECK(counts[v] && exact[records[k]] == values[v] && exact[records[k + counts[v] - 1]] == values[v]);
    if (used <= digit) { /* one pass, so the digits are the lengths */
        uint64_t *again = fuzz_room(distinct, sizeof *again), *how_many = fuzz_room(distinct, sizeof *how_many);
        CHECK(mds_runs_of(ends, digits, again, how_many) == distinct);
        CHECK(memcmp(again, values, distinct * 8) == 0 && memcmp(how_many, counts, distinct * 8) == 0);
        free(again);
        free(how_many);
    }
    free(lengths);
    free(order);
    free(last);
    free(exact);
    free(ends);
    free(records);
    free(seen);
    free(values);
    free(counts);
    return 0;
}
