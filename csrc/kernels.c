/* kernels.c - finds the variants of the kernels that this machine can run; the best is chosen once. */
#include "kernels.h"

#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const mds_kernels variants[] = {
#if defined(__x86_64__)
    {"avx512", mds_mask_bytes_avx2, mds_json_blocks_avx2, mds_text_run_avx2, mds_permute_rounds_avx2, mds_crc32c_sse42,
     mds_short_numbers_avx512},
    {"avx2", mds_mask_bytes_avx2, mds_json_blocks_avx2, mds_text_run_avx2, mds_permute_rounds_avx2, mds_crc32c_sse42,
     mds_short_numbers_avx2},
#endif
#if defined(__aarch64__)
    {"neon", mds_mask_bytes_neon, mds_json_blocks_neon, mds_text_run_portable, mds_permute_rounds_portable,
     mds_crc32c_arm, mds_short_numbers_portable},
    {"neon-nocrc", mds_mask_bytes_neon, mds_json_blocks_neon, mds_text_run_portable, mds_permute_rounds_portable,
     mds_crc32c_portable, mds_short_numbers_portable},
#endif
    {"portable", mds_mask_bytes_portable, mds_json_blocks_portable, mds_text_run_portable, mds_permute_rounds_portable,
     mds_crc32c_portable, mds_short_numbers_portable},
};

/* Rows at the top of the table that this machine cannot run. */
static size_t unsupported(void)
{
#if defined(__x86_64__)
    const int avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("pclmul");
    const int avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi2");
    return avx2 ? avx512 ? 0 : 1 : 2;
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_CRC32 ? 0 : 1;
#else
    return 0;
#endif
}

const mds_kernels *mds_kernels_at(size_t i)
{
    i += unsupported();
    return i < sizeof variants / sizeof *variants ? &variants[i] : NULL;
}

const char *mds_kernels_name(const mds_kernels *kernels)
{
    return kernels->name;
}

const mds_kernels *mds_kernels_find(const char *name)
{
    size_t i = 0;
    const mds_kernels *kernels = mds_kernels_at(0);
    while (name && kernels && strcmp(kernels->name, name) != 0)
        kernels = mds_kernels_at(++i);
    return kernels;
}
