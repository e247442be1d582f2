/* fuzz_kernels.c - the SIMD variants. Unlike the tests in Python, it also runs where there is no Python: in an emulator.
 *
 * Property: every variant that this machine can run gives what the portable one gives, at any length and alignment.
 * Input: two bytes that choose the alignment and the wanted byte, which are also the beginning of the data. */
#include "fuzz.h"

static void compare(const mds_kernels *one, const mds_kernels *plain, const uint8_t *data, size_t n, uint8_t byte)
{
    const size_t words = n / 64;
    uint64_t *masks = fuzz_room(2 * words, sizeof *masks);
    mds_json_masks *json = fuzz_room(2 * words, sizeof *json);
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

    uint32_t *numbers = fuzz_room(n + 1, 2 * sizeof *numbers);
    size_t consumed[2];
    for (size_t gap = 1; gap <= 2; gap++) {
        const size_t most = n / 2 + 1, found = one->short_numbers(data, n, gap, numbers, most, &consumed[0]);
        CHECK(found == plain->short_numbers(data, n, gap, numbers + most, most, &consumed[1]));
        CHECK(consumed[0] == consumed[1] && memcmp(numbers, numbers + most, found * sizeof *numbers) == 0);
    }
    free(numbers);

    const uint32_t crc = one->crc32c(0, data, n);
    CHECK(crc == plain->crc32c(0, data, n));
    CHECK(crc == one->crc32c(one->crc32c(0, data, n / 3), data + n / 3, n - n / 3));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    const mds_kernels *plain = mds_kernels_find("portable");
    CHECK(plain);
    const size_t shift = n ? input[0] % 32 : 0;
    uint8_t *room = fuzz_room(n + shift, 1);
    if (n)
        memcpy(room + shift, input, n);
    for (size_t v = 0; mds_kernels_at(v); v++)
        compare(mds_kernels_at(v), plain, room + shift, n, n > 1 ? input[1] : '\n');
    free(room);
    return 0;
}
