/* cpu.c - the SIMD variants, and which of them this machine can run. */
#include "mmapds.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void mask_bytes_avx2(const uint8_t *data, size_t words, uint8_t byte,
                                                            uint64_t *masks)
{
    const __m256i wanted = _mm256_set1_epi8((char)byte);
    for (size_t w = 0; w < words; w++, data += 64) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)data);
        const __m256i high = _mm256_loadu_si256((const __m256i *)(data + 32));
        const uint32_t low_mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted));
        const uint32_t high_mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted));
        masks[w] = low_mask | (uint64_t)high_mask << 32;
    }
}
#endif

#if defined(__aarch64__)
#include <arm_neon.h>

/* NEON has no movemask: weigh each matching byte by its bit, then add neighbours until 16 bytes are 2. */
static void mask_bytes_neon(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks)
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
#endif

/* Eight bytes at a time. The sum below sets the high bit of every byte that differs from the wanted one, without
 * carries between bytes; the multiplication gathers the eight low bits of the complement into the top byte. */
static void mask_bytes_portable(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks)
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

const mds_kernels *mds_kernels_available(void)
{
    static const mds_kernels all[] = {
#if defined(__x86_64__)
        {"avx2", mask_bytes_avx2, mds_permute_rounds_avx2},
#endif
#if defined(__aarch64__)
        {"neon", mask_bytes_neon, mds_permute_rounds_portable},
#endif
        {"portable", mask_bytes_portable, mds_permute_rounds_portable},
        {NULL, NULL, NULL},
    };
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2"))
        return all + 1;
#endif
    return all;
}

const mds_kernels *mds_kernels_find(const char *name)
{
    const mds_kernels *kernels = mds_kernels_available();
    if (!name)
        return kernels;
    for (; kernels->name; kernels++)
        if (strcmp(kernels->name, name) == 0)
            return kernels;
    return NULL;
}
