/* digits.c - runs of short integers, as lists of tokens have them: "17, 2, 40961, ".
 *
 * The portable variant finds the length of a number, and with it where the next one begins, by a look at its digits. AVX2
 * first finds all commas of a chunk, so that it knows where numbers begin and end, and then reads four at a time:
 *
 *     text                 17, 2, 40961, 8
 *     comma                ..1..1......1..
 *     ends                 -2 2 5 12        the first is where the one before text[0] would be, with a gap of 2
 *     begin = end before + gap; size = end - begin
 *     words                "17, 2, 4" "2, 40961" "40961, 8"     eight bytes from each begin
 *     digits               00000017   00000002   00040961       what is not of the number, shifted out at the top
 *     numbers              pairs, then fours, then eights of digits added up, each digit times its power of ten
 *
 * With a vector of four, bench/bench_fields.py reads a list in half the time. Text that ends the run may be anything: a
 * byte that is not a digit, and a size that is not 1 to 8, end a run before the four numbers that it is among, which the
 * portable variant looks at again. */
#include "json_values.h"

#include <string.h>

size_t mds_short_numbers_portable(const uint8_t *data, size_t n, size_t gap, uint32_t *out, size_t capacity,
                                  size_t *consumed)
{
    size_t i = 0, count = 0;
    while (count < capacity && n - i >= 16) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        const unsigned run = mds_digit_run(word);
        if (run == 0 || ((uint8_t)word == '0' && run > 1) || data[i + run] != ',' ||
            (gap == 2 && data[i + run + 1] != ' '))
            break;
        out[count++] = (uint32_t)mds_digits_value(word, run);
        i += run + gap;
    }
    *consumed = i;
    return count;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,bmi,popcnt"))) /* processors that have the first have the others */
#define WORDS 8                                         /* of 64 bytes, in a chunk */

AVX2 static uint64_t equal(__m256i low, __m256i high, char byte)
{
    const __m256i wanted = _mm256_set1_epi8(byte);
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)) |
           (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)) << 32;
}

#define PLACES 12 /* more commas than most words have */

/* Write the places of the bits of a mask, `base` added, and up to PLACES - 1 more entries; return how many bits there are.
 * Places beyond those are written without a look at how many there are, which would often be guessed wrong. */
AVX2 static size_t write_places(uint64_t mask, int32_t base, int32_t *places)
{
    const size_t count = (size_t)__builtin_popcountll(mask);
    for (size_t k = 0; k < count; k += PLACES) {
        for (size_t j = 0; j < PLACES; j++) {
            places[k + j] = base + (int32_t)_tzcnt_u64(mask);
            mask = _blsr_u64(mask);
        }
    }
    return count;
}

/* The places of the commas of a chunk after which a number ends and another begins, up to the first that has no gap after
 * it or a needless zero. */
AVX2 static size_t find_commas(const uint8_t *data, size_t words, size_t gap, int32_t *places)
{
    uint64_t comma[WORDS + 1], space[WORDS + 1], zero[WORDS];
    for (size_t w = 0; w < words; w++) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(data + 64 * w));
        const __m256i high = _mm256_loadu_si256((const __m256i *)(data + 64 * w + 32));
        comma[w] = equal(low, high, ',');
        space[w] = equal(low, high, ' ');
        zero[w] = equal(low, high, '0');
    }
    comma[words] =
        1; /* a number that goes on behind the chunk is not read, nor is one that a comma at its end begins */
    space[words] = 0;
    size_t count = 0;
    uint64_t begins = 1; /* those of a word that are known from the word before */
    for (size_t w = 0; w < words; w++) {
        const uint64_t after_space = space[w] >> 1 | space[w + 1] << 63,
                       after_comma = comma[w] >> 1 | comma[w + 1] << 63;
        uint64_t ends = gap == 2 ? comma[w] & ~after_space : 0;
        ends |= (comma[w] << gap | begins) & zero[w] & ~after_comma;
        begins = comma[w] >> (64 - gap);
        const uint64_t kept = ends ? (ends & -ends) - 1 : UINT64_MAX;
        count += write_places(comma[w] & kept, (int32_t)(64 * w), places + count);
        if (ends)
            break;
    }
    return count;
}

static int64_t word_at(const uint8_t *data)
{
    int64_t word;
    memcpy(&word, data, 8);
    return word;
}

/* Read four numbers, which lie between five ends; 0 if one is not 1 to 8 digits. */
AVX2 static int read_four(const uint8_t *data, const int32_t *ends, size_t gap, uint32_t *out)
{
    const __m128i begins = _mm_add_epi32(_mm_loadu_si128((const __m128i *)ends), _mm_set1_epi32((int32_t)gap));
    const __m128i sizes = _mm_sub_epi32(_mm_loadu_si128((const __m128i *)(ends + 1)), begins);
    const __m128i above = _mm_sub_epi32(sizes, _mm_set1_epi32(1)), most = _mm_set1_epi32(7);
    const __m128i fit = _mm_cmpeq_epi32(_mm_min_epu32(above, most), above);
    const __m256i shifts = _mm256_cvtepu32_epi64(_mm_slli_epi32(_mm_sub_epi32(most, above), 3));
    data += gap;
    const __m256i words = _mm256_set_epi64x(word_at(data + ends[3]), word_at(data + ends[2]), word_at(data + ends[1]),
                                            word_at(data + ends[0]));
    const __m256i digits = _mm256_sllv_epi64(_mm256_xor_si256(words, _mm256_set1_epi8('0')), shifts);
    const __m256i others = _mm256_or_si256(digits, _mm256_add_epi8(digits, _mm256_set1_epi8(0x76)));
    if (_mm_movemask_epi8(fit) != 0xffff || _mm256_movemask_epi8(others) != 0)
        return 0;
    const __m256i pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(10 + (1 << 8)));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(100 + (1 << 16)));
    const __m256i packed = _mm256_packus_epi32(fours, fours);
    const __m256i eights = _mm256_madd_epi16(packed, _mm256_set1_epi32(10000 + (1 << 16)));
    const __m256i numbers = _mm256_permute4x64_epi64(eights, 0x08);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(numbers));
    return 1;
}

AVX2 size_t mds_short_numbers_avx2(const uint8_t *data, size_t n, size_t gap, uint32_t *out, size_t capacity,
                                   size_t *consumed)
{
    int32_t ends[1 + WORDS * 64 + PLACES];
    size_t i = 0, count = 0, rest;
    while (n - i >= 64 + 8) {
        const size_t words = (n - i - 8) / 64 < WORDS ? (n - i - 8) / 64 : WORDS;
        ends[0] = -(int32_t)gap;
        const size_t commas = find_commas(data + i, words, gap, ends + 1);
        size_t k = 0;
        while (k + 4 <= commas && count + 4 <= capacity && read_four(data + i, ends + k, gap, out + count)) {
            k += 4;
            count += 4;
        }
        i += (size_t)(ends[k] + (int32_t)gap);
        if (k + 4 <= commas || k == 0)
            break;
    }
    count += mds_short_numbers_portable(data + i, n - i, gap, out + count, capacity - count, &rest);
    *consumed = i + rest;
    return count;
}
#endif
