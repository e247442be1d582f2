/* fuzz_bits.c - sets of numbers as bits.
 *
 * Property: a set has the numbers that were put into it, and finds them in any order of their ranks. Whatever the words
 * and the directory hold, nothing outside them is read, and no number of the limit or above comes out.
 * Input: the limit, the numbers, ranks to look up, then what is damaged. */
#include "fuzz.h"

#define MOST_WORDS 70 /* three blocks of the directory */
#define NUMBERS 200
#define RANKS 64

/* Look up ranks in turn, together and one by one; return whether each has a number. */
static int look_up(const mds_bits *bits, const int64_t *ranks, int64_t *out)
{
    int64_t together[RANKS];
    const mds_status status = mds_bits_select(bits, ranks, RANKS, together);
    int all = 1;
    for (size_t k = 0; k < RANKS; k++) {
        out[k] = -1;
        if (mds_bits_select(bits, ranks + k, 1, out + k) != MDS_OK) {
            all = 0;
            continue;
        }
        CHECK((uint64_t)out[k] < bits->limit && bits->words[out[k] / 64] >> out[k] % 64 & 1);
        if (status == MDS_OK)
            CHECK(together[k] < (int64_t)bits->limit);
    }
    return all && status == MDS_OK && memcmp(together, out, sizeof together) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_input input = {data, n};
    const uint64_t limit = fuzz_between(&input, 0, 64 * MOST_WORDS);
    const size_t words = (size_t)((limit + 63) / 64), blocks = (words + MDS_BITS_BLOCK - 1) / MDS_BITS_BLOCK;
    uint64_t *held = fuzz_room(words, 8), *before = fuzz_room(blocks + 1, 8);
    uint8_t *oracle = fuzz_room((size_t)limit, 1);
    int64_t *numbers = fuzz_room(NUMBERS, 8), found[RANKS], ranks[RANKS];
    const size_t count = limit ? (size_t)fuzz_between(&input, 0, NUMBERS) : 0;
    for (size_t k = 0; k < count; k++) {
        numbers[k] = (int64_t)fuzz_between(&input, 0, limit - 1);
        oracle[numbers[k]] = 1;
    }
    CHECK(mds_bits_first_outside(numbers, count, limit, held) == count);
    mds_bits_count(held, words, before);
    const mds_bits bits = {held, before, words, limit, NULL};
    int64_t sorted[NUMBERS];
    uint64_t ones = 0;
    for (uint64_t number = 0; number < limit; number++) {
        if (oracle[number])
            sorted[ones++] = (int64_t)number;
    }
    CHECK(before[blocks] == ones);
    for (size_t k = 0; k < RANKS; k++)
        ranks[k] = ones ? (int64_t)fuzz_between(&input, 0, ones - 1) : 0;
    CHECK(look_up(&bits, ranks, found) == (ones > 0));
    for (size_t k = 0; ones && k < RANKS; k++)
        CHECK(found[k] == sorted[ranks[k]]);
    const int64_t beyond = (int64_t)ones;
    CHECK(mds_bits_select(&bits, &beyond, 1, found) == MDS_CORRUPT);
    if (count) { /* the first that is too large is named, and those before it are set */
        const size_t at = (size_t)fuzz_between(&input, 0, count - 1);
        numbers[at] = (int64_t)fuzz_magnitude(&input, limit, UINT64_MAX);
        CHECK(mds_bits_first_outside(numbers, count, limit, held) == at);
    }
    for (size_t k = 0; words && k < 4; k++) { /* what is damaged */
        const uint64_t wrong = fuzz_magnitude(&input, 0, UINT64_MAX);
        if (fuzz_take(&input, 1) & 1)
            before[fuzz_between(&input, 0, blocks)] = wrong;
        else
            held[fuzz_between(&input, 0, words - 1)] ^= wrong;
        for (size_t r = 0; r < RANKS; r++)
            ranks[r] = (int64_t)fuzz_magnitude(&input, 0, UINT64_MAX);
        look_up(&bits, ranks, found);
    }
    free(held);
    free(before);
    free(oracle);
    free(numbers);
    return 0;
}
