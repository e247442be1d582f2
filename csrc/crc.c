/* crc.c - CRC32C (Castagnoli), the checksum of TFRecord: by instruction where there is one, else eight bytes a step.
 *
 * Polynomial 0x1edc6f41, reflected: RFC 3720, 12.1. The instruction works off 8 bytes in 3 cycles, as fast as one core
 * reads memory, so there is no need to interleave streams. */
#include "kernels.h"

#include <string.h>

/* A CRC is linear, so the table of what byte b does from k bytes away is the sum of what its bits do. One number
 * follows from the other by a shift: they are the remainders of x^32, x^33, ... x^95, bit 7 of the nearest byte
 * first. */
#define BITS(b, c7, c6, c5, c4, c3, c2, c1, c0)                                                                        \
    (((b) & 1 ? c0 : 0) ^ ((b) & 2 ? c1 : 0) ^ ((b) & 4 ? c2 : 0) ^ ((b) & 8 ? c3 : 0) ^ ((b) & 16 ? c4 : 0) ^         \
     ((b) & 32 ? c5 : 0) ^ ((b) & 64 ? c6 : 0) ^ ((b) & 128 ? c7 : 0))
#define FOUR(b, ...)                                                                                                   \
    BITS(b, __VA_ARGS__), BITS((b) + 1, __VA_ARGS__), BITS((b) + 2, __VA_ARGS__), BITS((b) + 3, __VA_ARGS__)
#define SIXTEEN(b, ...)                                                                                                \
    FOUR(b, __VA_ARGS__), FOUR((b) + 4, __VA_ARGS__), FOUR((b) + 8, __VA_ARGS__), FOUR((b) + 12, __VA_ARGS__)
#define SIXTY_FOUR(b, ...)                                                                                             \
    SIXTEEN(b, __VA_ARGS__), SIXTEEN((b) + 16, __VA_ARGS__), SIXTEEN((b) + 32, __VA_ARGS__),                           \
        SIXTEEN((b) + 48, __VA_ARGS__)
#define ALL(...)                                                                                                       \
    SIXTY_FOUR(0, __VA_ARGS__), SIXTY_FOUR(64, __VA_ARGS__), SIXTY_FOUR(128, __VA_ARGS__), SIXTY_FOUR(192, __VA_ARGS__)

static const uint32_t table[8][256] = {
    {ALL(0x82f63b78, 0x417b1dbc, 0x20bd8ede, 0x105ec76f, 0x8ad958cf, 0xc79a971f, 0xe13b70f7, 0xf26b8303)},
    {ALL(0xfbc3faf9, 0xff17c604, 0x7f8be302, 0x3fc5f181, 0x9d14c3b8, 0x4e8a61dc, 0x274530ee, 0x13a29877)},
    {ALL(0x8b277743, 0xc76580d9, 0xe144fb14, 0x70a27d8a, 0x38513ec5, 0x9edea41a, 0x4f6f520d, 0xa541927e)},
    {ALL(0x52a0c93f, 0xaba65fe7, 0xd725148b, 0xe964b13d, 0xf64463e6, 0x7b2231f3, 0xbf672381, 0xdd45aab8)},
    {ALL(0x6ea2d55c, 0x37516aae, 0x1ba8b557, 0x8f2261d3, 0xc5670b91, 0xe045beb0, 0x7022df58, 0x38116fac)},
    {ALL(0x1c08b7d6, 0x0e045beb, 0x85f4168d, 0xc00c303e, 0x6006181f, 0xb2f53777, 0xdb8ca0c3, 0xef306b19)},
    {ALL(0xf56e0ef4, 0x7ab7077a, 0x3d5b83bd, 0x9c5bfaa6, 0x4e2dfd53, 0xa5e0c5d1, 0xd0065990, 0x68032cc8)},
    {ALL(0x34019664, 0x1a00cb32, 0x0d006599, 0x847609b4, 0x423b04da, 0x211d826d, 0x9278fa4e, 0x493c7d27)},
};

uint32_t mds_crc32c_portable(uint32_t crc, const uint8_t *data, size_t n)
{
    crc = ~crc;
    for (; n >= 8; data += 8, n -= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; n; data++, n--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) uint32_t mds_crc32c_sse42(uint32_t crc, const uint8_t *data, size_t n)
{
    uint64_t wide = ~crc;
    for (; n >= 8; data += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; n; data++, n--)
        crc = _mm_crc32_u8(crc, *data);
    return ~crc;
}
#endif

#if defined(__aarch64__)
/* Assembly, as compilers disagree on how a function asks for the extension. */
uint32_t mds_crc32c_arm(uint32_t crc, const uint8_t *data, size_t n)
{
    crc = ~crc;
    for (; n >= 8; data += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; n; data++, n--)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*data));
    return ~crc;
}
#endif

uint32_t mds_crc32c(const mds_kernels *kernels, uint32_t crc, const uint8_t *data, size_t n)
{
    return kernels->crc32c(crc, data, n);
}
