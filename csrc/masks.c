/* masks.c - text as bits: 64 bytes become one 64-bit mask, in which bit b is set where byte b is wanted.
 *
 * The idea, the same in every variant:
 *
 *     for each block of 64 bytes:
 *         equal = compare all bytes with the wanted one         a byte of ones where they are equal
 *         mask  = gather one bit of every byte of `equal`       bit b of the mask is byte b of the block
 *
 * lines.c and json.c then visit set bits instead of bytes. mds_text_run looks for the first byte of three kinds
 * instead:
 *
 *     for each block:
 *         stop = bytes equal to '"', equal to '\\' or below 32
 *         if stop is not empty: add the bytes before its lowest bit and return
 *         add the whole block
 *
 * The three parts of this file do so with plain 64-bit words, AVX2 and NEON (which takes the portable mds_text_run).
 * kernels.c chooses among them. */
#include "kernels.h"

#include <string.h>

/* ---- portable ---------------------------------------------------------------------------------------------- */

/* Eight bytes at a time. The sum below sets the high bit of every byte that differs from the wanted one, without
 * carries between bytes; the multiplication gathers the eight low bits of the complement into the top byte. */
void mds_mask_bytes_portable(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks)
{
    const uint64_t low7 = 0x7f7f7f7f7f7f7f7fULL, wanted = 0x0101010101010101ULL * byte;
    for (size_t w = 0; w < words; w++) {
        uint64_t mask = 0;
        for (int k = 0; k < 8; k++, data += 8) {
            uint64_t x;
            memcpy(&x, data, 8);
            x ^= wanted;
            const uint64_t equal = ~(((x & low7) + low7) | x | low7) >> 7;
            mask |= (equal * 0x0102040810204080ULL >> 56) << (8 * k);
        }
        masks[w] = mask;
    }
}

void mds_json_blocks_portable(const uint8_t *data, size_t blocks, uint8_t extra, mds_json_masks *masks)
{
    for (size_t b = 0; b < blocks; b++, data += 64) {
        uint8_t folded[64];
        for (int k = 0; k < 64; k++)
            folded[k] = data[k] | 0x20; /* makes braces of brackets */
        mds_mask_bytes_portable(data, 1, '"', &masks[b].quote);
        masks[b].inside = mds_prefix_xor(masks[b].quote);
        mds_mask_bytes_portable(data, 1, '\\', &masks[b].backslash);
        uint64_t close;
        mds_mask_bytes_portable(folded, 1, '{', &masks[b].brackets);
        mds_mask_bytes_portable(folded, 1, '}', &close);
        masks[b].brackets |= close;
        mds_mask_bytes_portable(data, 1, ':', &masks[b].colon);
        mds_mask_bytes_portable(data, 1, extra, &masks[b].extra);
    }
}

size_t mds_text_run_portable(const uint8_t *data, size_t n, size_t *continuing, int *beyond)
{
    size_t i = 0, trails = 0;
    uint8_t all = 0;
    for (; i < n && data[i] > 31 && data[i] != '"' && data[i] != '\\'; i++) {
        all |= data[i];
        trails += (data[i] & 0xc0) == 0x80;
    }
    *continuing = trails;
    *beyond = all >> 7;
    return i;
}

/* ---- AVX2: a block is two registers, and movemask gathers 32 bits ------------------------------------------ */

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

AVX2 static uint64_t joined(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

AVX2 void mds_mask_bytes_avx2(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks)
{
    const __m256i wanted = _mm256_set1_epi8((char)byte);
    for (size_t w = 0; w < words; w++, data += 64) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)data);
        const __m256i high = _mm256_loadu_si256((const __m256i *)(data + 32));
        masks[w] = joined(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted));
    }
}

AVX2 static uint64_t either(__m256i low, __m256i high, __m256i one, __m256i other)
{
    return joined(_mm256_or_si256(_mm256_cmpeq_epi8(low, one), _mm256_cmpeq_epi8(low, other)),
                  _mm256_or_si256(_mm256_cmpeq_epi8(high, one), _mm256_cmpeq_epi8(high, other)));
}

/* Bit b of a product without carries with all ones is the xor of bits 0 to b. */
__attribute__((target("avx2,pclmul"))) void mds_json_blocks_avx2(const uint8_t *data, size_t blocks, uint8_t extra,
                                                                 mds_json_masks *masks)
{
    const __m256i quote = _mm256_set1_epi8('"'), backslash = _mm256_set1_epi8('\\'), colon = _mm256_set1_epi8(':');
    const __m256i open = _mm256_set1_epi8('{'), close = _mm256_set1_epi8('}'), other = _mm256_set1_epi8((char)extra);
    const __m256i fold = _mm256_set1_epi8(0x20); /* makes braces of brackets */
    const __m128i ones = _mm_set1_epi8(-1);
    for (size_t b = 0; b < blocks; b++, data += 64) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)data);
        const __m256i high = _mm256_loadu_si256((const __m256i *)(data + 32));
        const uint64_t quotes = joined(_mm256_cmpeq_epi8(low, quote), _mm256_cmpeq_epi8(high, quote));
        masks[b].quote = quotes;
        masks[b].inside =
            (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)quotes), ones, 0));
        masks[b].backslash = joined(_mm256_cmpeq_epi8(low, backslash), _mm256_cmpeq_epi8(high, backslash));
        masks[b].brackets = either(_mm256_or_si256(low, fold), _mm256_or_si256(high, fold), open, close);
        masks[b].colon = joined(_mm256_cmpeq_epi8(low, colon), _mm256_cmpeq_epi8(high, colon));
        masks[b].extra = joined(_mm256_cmpeq_epi8(low, other), _mm256_cmpeq_epi8(high, other));
    }
}

AVX2 size_t mds_text_run_avx2(const uint8_t *data, size_t n, size_t *continuing, int *beyond)
{
    const __m256i quote = _mm256_set1_epi8('"'), backslash = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(31);
    size_t i = 0, trails = 0;
    uint32_t high_bits = 0;
    for (; n - i >= 32; i += 32) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(data + i));
        const __m256i ends =
            _mm256_or_si256(_mm256_or_si256(_mm256_cmpeq_epi8(x, quote), _mm256_cmpeq_epi8(x, backslash)),
                            _mm256_cmpeq_epi8(_mm256_min_epu8(x, control), x));
        const uint32_t stop = (uint32_t)_mm256_movemask_epi8(ends);
        /* As signed bytes, those that continue a sequence are the ones below -64. */
        const uint32_t trail = (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8(-64), x));
        const uint32_t taken = stop ? (stop & -stop) - 1 : UINT32_MAX;
        trails += (size_t)__builtin_popcount(trail & taken);
        high_bits |= (uint32_t)_mm256_movemask_epi8(x) & taken;
        if (stop) {
            *continuing = trails;
            *beyond = high_bits != 0;
            return i + (size_t)__builtin_ctz(stop);
        }
    }
    const size_t rest = mds_text_run_portable(data + i, n - i, continuing, beyond);
    *continuing += trails;
    *beyond |= high_bits != 0;
    return i + rest;
}
#endif

/* ---- NEON: a block is four registers ----------------------------------------------------------------------- */

#if defined(__aarch64__)
#include <arm_neon.h>

/* NEON has no movemask: weigh each matching byte by its bit, then add neighbours until 16 bytes are 2. */
void mds_mask_bytes_neon(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks)
{
    static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t weight = vld1q_u8(weights), wanted = vdupq_n_u8(byte);
    for (size_t w = 0; w < words; w++, data += 64) {
        const uint8x16_t a = vandq_u8(vceqq_u8(vld1q_u8(data), wanted), weight);
        const uint8x16_t b = vandq_u8(vceqq_u8(vld1q_u8(data + 16), wanted), weight);
        const uint8x16_t c = vandq_u8(vceqq_u8(vld1q_u8(data + 32), wanted), weight);
        const uint8x16_t d = vandq_u8(vceqq_u8(vld1q_u8(data + 48), wanted), weight);
        uint8x16_t sum = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
        sum = vpaddq_u8(sum, sum);
        masks[w] = vgetq_lane_u64(vreinterpretq_u64_u8(sum), 0);
    }
}

void mds_json_blocks_neon(const uint8_t *data, size_t blocks, uint8_t extra, mds_json_masks *masks)
{
    const uint8x16_t fold = vdupq_n_u8(0x20); /* makes braces of brackets */
    for (size_t b = 0; b < blocks; b++, data += 64) {
        uint8_t folded[64];
        for (int k = 0; k < 64; k += 16)
            vst1q_u8(folded + k, vorrq_u8(vld1q_u8(data + k), fold));
        mds_mask_bytes_neon(data, 1, '"', &masks[b].quote);
        masks[b].inside = mds_prefix_xor(masks[b].quote);
        mds_mask_bytes_neon(data, 1, '\\', &masks[b].backslash);
        uint64_t close;
        mds_mask_bytes_neon(folded, 1, '{', &masks[b].brackets);
        mds_mask_bytes_neon(folded, 1, '}', &close);
        masks[b].brackets |= close;
        mds_mask_bytes_neon(data, 1, ':', &masks[b].colon);
        mds_mask_bytes_neon(data, 1, extra, &masks[b].extra);
    }
}
#endif
