/* kernels.h - the inner loops that come in a variant for each kind of processor. Private to the core.
 *
 * kernels.c picks one row of this table; masks.c, permute.c, crc.c and digits.c hold the functions. To add a variant:
 * write the function, declare it below, put it in the table of kernels.c. Tests compare every row with "portable". */
#ifndef MMAPDS_KERNELS_H
#define MMAPDS_KERNELS_H

#include "mmapds.h"

/* Write a mask for each 64-byte word of `data`: bit b is set if byte b equals `byte`. */
typedef void mds_mask_bytes_fn(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks);

/* Where a 64-byte block has the bytes that give JSON its structure, inside strings or not: bit b stands for byte b. */
typedef struct {
    uint64_t quote;
    uint64_t inside; /* the xor of bits 0 to b of `quote`: bytes in strings, if no quote is escaped and none was open */
    uint64_t backslash;
    uint64_t brackets; /* [ { ] } */
    uint64_t colon;
    uint64_t extra; /* one more byte, which the caller chooses */
} mds_json_masks;

/* Bit b becomes the xor of bits 0 to b. */
static inline uint64_t mds_prefix_xor(uint64_t x)
{
    for (int shift = 1; shift < 64; shift *= 2)
        x ^= x << shift;
    return x;
}

typedef void mds_json_blocks_fn(const uint8_t *data, size_t blocks, uint8_t extra, mds_json_masks *masks);

/* Return how many bytes of data[0..n) come before the first '"', '\\' or control character. Sets *continuing to how
 * many of these bytes continue a UTF-8 sequence, and *beyond to whether any of them is not ASCII. */
typedef size_t mds_text_run_fn(const uint8_t *data, size_t n, size_t *continuing, int *beyond);

/* Run the rounds of a permutation over MDS_PERMUTE_LANES positions, split into halves, in place. */
#define MDS_PERMUTE_LANES 16
typedef void mds_permute_rounds_fn(const mds_permutation *p, uint32_t *left, uint32_t *right);

/* Continue a CRC32C over data[0..n): `crc` is that of the bytes before, 0 if there are none. */
typedef uint32_t mds_crc32c_fn(uint32_t crc, const uint8_t *data, size_t n);

/* Read integers of 1 to 8 digits from data[0..n), each followed by a comma and `gap` - 1 spaces, 0 or 1; return how
 * many, at most `capacity`. Stops at the first number in any other form, such as a sign or a leading zero, or in the
 * last 15 bytes; *consumed is where it begins. May write anything to the rest of `out`. */
typedef size_t mds_short_numbers_fn(const uint8_t *data, size_t n, size_t gap, uint32_t *out, size_t capacity,
                                    size_t *consumed);

struct mds_kernels {
    const char *name;
    mds_mask_bytes_fn *mask_bytes;
    mds_json_blocks_fn *json_blocks;
    mds_text_run_fn *text_run;
    mds_permute_rounds_fn *permute_rounds;
    mds_crc32c_fn *crc32c;
    mds_short_numbers_fn *short_numbers;
};

mds_mask_bytes_fn mds_mask_bytes_portable;
mds_json_blocks_fn mds_json_blocks_portable;
mds_text_run_fn mds_text_run_portable;
mds_permute_rounds_fn mds_permute_rounds_portable;
mds_crc32c_fn mds_crc32c_portable;
mds_short_numbers_fn mds_short_numbers_portable;

#if defined(__x86_64__)
mds_mask_bytes_fn mds_mask_bytes_avx2;
mds_json_blocks_fn mds_json_blocks_avx2;
mds_text_run_fn mds_text_run_avx2;
mds_permute_rounds_fn mds_permute_rounds_avx2;
mds_crc32c_fn mds_crc32c_sse42;
mds_short_numbers_fn mds_short_numbers_avx2;
mds_short_numbers_fn mds_short_numbers_avx512; /* needs VBMI2 */
#endif

#if defined(__aarch64__)
mds_mask_bytes_fn mds_mask_bytes_neon;
mds_json_blocks_fn mds_json_blocks_neon;
mds_crc32c_fn mds_crc32c_arm; /* needs the CRC32 extension, which ARMv8.0 may lack */
#endif

#endif
