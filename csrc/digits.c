/* digits.c - runs of short integers, as lists of tokens have them: "17, 2, 40961, ".
 *
 * The portable variant finds the length of a number, and with it where the next one begins, by a look at its digits.
 * AVX2 first finds all commas of a chunk, so that it knows where numbers begin and end, and then reads four at a time:
 *
 *     text                 17, 2, 40961, 8
 *     comma                ..1..1......1..
 *     ends                 -2 2 5 12        the first is where the one before text[0] would be, with a gap of 2
 *     begin = end before + gap; size = end - begin
 *     words                "17, 2, 4" "2, 40961" "40961, 8"     eight bytes from each begin
 *     digits               00000017   00000002   00040961       what is not of the number, shifted out at the top
 *     numbers              pairs, then fours, then eights of digits added up, each digit times its power of ten
 *
 * With a vector of four, bench/bench_fields.py reads a list in half the time. AVX-512 does the same with eight, and
 * packs the places of commas by one instruction, which takes another fifth of the time away. Text that ends the run may
 * be anything: a byte that is not a digit, and a size that is not 1 to 8, end a run before the four or eight numbers
 * that it is among, which the variant below looks at again. */
#include "json_values.h"

#include <string.h>

#define NEAR_END 16 /* bytes: a number with fewer from its beginning to the end of the data is not read */

size_t mds_short_numbers_portable(const uint8_t *data, size_t n, size_t gap, uint32_t *out, size_t capacity,
                                  size_t *consumed)
{
    size_t i = 0, count = 0;
    while (count < capacity && n - i >= NEAR_END) {
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

#define AVX2 __attribute__((target("avx2,bmi,popcnt"))) /* processors with the first have the others */
#define WORDS 8                                         /* of 64 bytes, in a chunk */

/* Bytes of a chunk, a bit each, and one word more. */
typedef struct {
    uint64_t comma[WORDS + 1], space[WORDS + 1], zero[WORDS];
} chunk_masks;

/* The commas of word w after which a number ends and another begins, up to the first that has no gap after it or a
 * needless zero; *ended says whether there is one. */
static inline uint64_t commas_of(const chunk_masks *m, size_t w, size_t gap, int *ended)
{
    const uint64_t after_space = m->space[w] >> 1 | m->space[w + 1] << 63,
                   after_comma = m->comma[w] >> 1 | m->comma[w + 1] << 63;
    const uint64_t begins = m->comma[w] << gap | (w ? m->comma[w - 1] >> (64 - gap) : 1);
    const uint64_t ends = (gap == 2 ? m->comma[w] & ~after_space : 0) | (begins & m->zero[w] & ~after_comma);
    *ended = ends != 0;
    return m->comma[w] & (ends ? (ends & -ends) - 1 : UINT64_MAX);
}

/* Exclude a number that crosses the end of the chunk, or begins after a comma at its end. */
static inline void close_chunk(chunk_masks *m, size_t words)
{
    m->comma[words] = 1;
    m->space[words] = 0;
}

AVX2 static uint64_t equal(__m256i low, __m256i high, char byte)
{
    const __m256i wanted = _mm256_set1_epi8(byte);
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)) |
           (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)) << 32;
}

#define PLACES 12 /* more commas than most words have */
#define BEHIND 16 /* the most entries written after the places of a chunk */

/* Write the places of the bits of a mask, plus `base`, and up to PLACES - 1 unused entries; return the number of bits.
 * A fixed number of entries avoids a branch on the number of bits, which is hard to predict. */
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

/* The places of the commas of a chunk: see commas_of. */
AVX2 static size_t find_commas(const uint8_t *data, size_t words, size_t gap, int32_t *places)
{
    chunk_masks m;
    for (size_t w = 0; w < words; w++) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(data + 64 * w));
        const __m256i high = _mm256_loadu_si256((const __m256i *)(data + 64 * w + 32));
        m.comma[w] = equal(low, high, ',');
        m.space[w] = equal(low, high, ' ');
        m.zero[w] = equal(low, high, '0');
    }
    close_chunk(&m, words);
    size_t count = 0;
    int ended = 0;
    for (size_t w = 0; w < words && !ended; w++)
        count += write_places(commas_of(&m, w, gap, &ended), (int32_t)(64 * w), places + count);
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

/* Finds the places of the commas of a chunk, as find_commas does, with room for some more. */
typedef size_t find_places(const uint8_t *data, size_t words, size_t gap, int32_t *places);

/* Reads numbers that lie between ends, as read_four does. */
typedef int read_numbers(const uint8_t *data, const int32_t *ends, size_t gap, uint32_t *out);

/* Read numbers chunk by chunk, `at_once` at a time; return how many. Where this is inlined, the compiler knows both
 * functions, and inlines them too. */
static inline __attribute__((always_inline)) size_t read_chunks(const uint8_t *data, size_t n, size_t gap,
                                                                uint32_t *out, size_t capacity, size_t *consumed,
                                                                find_places *find, read_numbers *read, size_t at_once)
{
    int32_t ends[1 + WORDS * 64 + BEHIND];
    size_t i = 0, count = 0;
    while (n - i >= 64 + NEAR_END) {
        const size_t words = (n - i - NEAR_END) / 64 < WORDS ? (n - i - NEAR_END) / 64 : WORDS;
        ends[0] = -(int32_t)gap;
        const size_t commas = find(data + i, words, gap, ends + 1);
        size_t k = 0;
        while (k + at_once <= commas && count + at_once <= capacity && read(data + i, ends + k, gap, out + count)) {
            k += at_once;
            count += at_once;
        }
        i += (size_t)(ends[k] + (int32_t)gap);
        if (k + at_once <= commas || k == 0)
            break;
    }
    *consumed = i;
    return count;
}

AVX2 size_t mds_short_numbers_avx2(const uint8_t *data, size_t n, size_t gap, uint32_t *out, size_t capacity,
                                   size_t *consumed)
{
    size_t i, rest;
    size_t count = read_chunks(data, n, gap, out, capacity, &i, find_commas, read_four, 4);
    count += mds_short_numbers_portable(data + i, n - i, gap, out + count, capacity - count, &rest);
    *consumed = i + rest;
    return count;
}

/* ---- AVX-512: places of commas are packed by one instruction, and eight numbers are read at a time --------------- */

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi2,bmi,popcnt")))

static const uint8_t up_to_63[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                     32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                     48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Write the places of the bits of a mask, `base` added, and up to 15 more entries; return how many bits there are. */
AVX512 static size_t pack_places(uint64_t mask, int32_t base, int32_t *places)
{
    const size_t count = (size_t)__builtin_popcountll(mask);
    const __m512i packed = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(up_to_63));
    const __m512i bases = _mm512_set1_epi32(base);
    _mm512_storeu_si512(places, _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm512_castsi512_si128(packed)), bases));
    if (count > 16) {
        uint8_t rest[64];
        _mm512_storeu_si512(rest, packed);
        for (size_t k = 16; k < count; k += 16) {
            const __m128i some = _mm_loadu_si128((const __m128i *)(rest + k));
            _mm512_storeu_si512(places + k, _mm512_add_epi32(_mm512_cvtepu8_epi32(some), bases));
        }
    }
    return count;
}

/* The same as find_commas. */
AVX512 static size_t pack_commas(const uint8_t *data, size_t words, size_t gap, int32_t *places)
{
    const __m512i commas = _mm512_set1_epi8(','), spaces = _mm512_set1_epi8(' '), zeros = _mm512_set1_epi8('0');
    chunk_masks m;
    for (size_t w = 0; w < words; w++) {
        const __m512i text = _mm512_loadu_si512(data + 64 * w);
        m.comma[w] = _mm512_cmpeq_epi8_mask(text, commas);
        m.space[w] = _mm512_cmpeq_epi8_mask(text, spaces);
        m.zero[w] = _mm512_cmpeq_epi8_mask(text, zeros);
    }
    close_chunk(&m, words);
    size_t count = 0;
    int ended = 0;
    for (size_t w = 0; w < words && !ended; w++)
        count += pack_places(commas_of(&m, w, gap, &ended), (int32_t)(64 * w), places + count);
    return count;
}

/* Read eight numbers, which lie between nine ends; 0 if one is not 1 to 8 digits. */
AVX512 static int read_eight(const uint8_t *data, const int32_t *ends, size_t gap, uint32_t *out)
{
    const __m256i begins = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)ends), _mm256_set1_epi32((int32_t)gap));
    const __m256i sizes = _mm256_sub_epi32(_mm256_loadu_si256((const __m256i *)(ends + 1)), begins);
    const __m256i above = _mm256_sub_epi32(sizes, _mm256_set1_epi32(1)), most = _mm256_set1_epi32(7);
    const __mmask8 fit = _mm256_cmple_epu32_mask(above, most);
    const __m512i shifts = _mm512_cvtepu32_epi64(_mm256_slli_epi32(_mm256_sub_epi32(most, above), 3));
    data += gap;
    const __m512i words = _mm512_set_epi64(word_at(data + ends[7]), word_at(data + ends[6]), word_at(data + ends[5]),
                                           word_at(data + ends[4]), word_at(data + ends[3]), word_at(data + ends[2]),
                                           word_at(data + ends[1]), word_at(data + ends[0]));
    const __m512i digits = _mm512_sllv_epi64(_mm512_xor_si512(words, _mm512_set1_epi8('0')), shifts);
    const __mmask64 others = _mm512_cmpgt_epu8_mask(digits, _mm512_set1_epi8(9));
    if (fit != 0xff || others)
        return 0;
    const __m512i pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(10 + (1 << 8)));
    const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(100 + (1 << 16)));
    const __m512i numbers =
        _mm512_add_epi64(_mm512_mul_epu32(fours, _mm512_set1_epi64(10000)), _mm512_srli_epi64(fours, 32));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi64_epi32(numbers));
    return 1;
}

AVX512 size_t mds_short_numbers_avx512(const uint8_t *data, size_t n, size_t gap, uint32_t *out, size_t capacity,
                                       size_t *consumed)
{
    size_t i, rest;
    size_t count = read_chunks(data, n, gap, out, capacity, &i, pack_commas, read_eight, 8);
    count += mds_short_numbers_avx2(data + i, n - i, gap, out + count, capacity - count, &rest);
    *consumed = i + rest;
    return count;
}
#endif
