/* fuzz_kernels.c - every SIMD variant this machine can run against the portable one, at any length and alignment.
 *
 * Tests in Python do the same by way of the binding; this one also runs where there is no Python, under an emulator say. */
#include "../../csrc/kernels.h"

#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void compare(const mds_kernels *one, const mds_kernels *plain, const uint8_t *data, size_t n, uint8_t byte)
{
    const size_t words = n / 64;
    uint64_t *masks = malloc(2 * words * sizeof *masks + 1);
    mds_json_masks *json = malloc(2 * words * sizeof *json + 1);
    one->mask_bytes(data, words, byte, masks);
    plain->mask_bytes(data, words, byte, masks + words);
    CHECK(memcmp(masks, masks + words, words * sizeof *masks) == 0);
    one->json_blocks(data, words, byte, json);
    plain->json_blocks(data, words, byte, json + words);
    CHECK(memcmp(json, json + words, words * sizeof *json) == 0);
    free(masks);
    free(json);

    size_t trails[2];
    int beyond[2];
    CHECK(one->text_run(data, n, &trails[0], &beyond[0]) == plain->text_run(data, n, &trails[1], &beyond[1]));
    CHECK(trails[0] == trails[1] && !beyond[0] == !beyond[1]);

    const uint32_t crc = one->crc32c(0, data, n);
    CHECK(crc == plain->crc32c(0, data, n));
    CHECK(crc == one->crc32c(one->crc32c(0, data, n / 3), data + n / 3, n - n / 3));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    const mds_kernels *plain = mds_kernels_find("portable");
    CHECK(plain);
    const size_t shift = n ? input[0] % 32 : 0;
    uint8_t *room = malloc(n + shift + 1);
    memcpy(room + shift, input, n);
    for (size_t v = 0; mds_kernels_at(v); v++)
        compare(mds_kernels_at(v), plain, room + shift, n, n > 1 ? input[1] : '\n');
    free(room);
    return 0;
}
