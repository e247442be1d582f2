/* fuzz.h - what the fuzz targets share.
 *
 * A target states one property at its top and implements LLVMFuzzerTestOneInput. `make fuzz` runs it by libFuzzer, or where
 * clang has none, by fuzz_main.c, which replays the corpus and makes inputs of its own; tests/test_fuzz.py does so too. */
#ifndef MMAPDS_FUZZ_H
#define MMAPDS_FUZZ_H

#include "../../csrc/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n);

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Memory of exactly n elements, all zeros: the address sanitizer sees any access outside. Free it. */
static inline void *fuzz_room(size_t n, size_t size)
{
    void *room = calloc(n ? n : 1, size);
    CHECK(room);
    return room;
}

/* A copy of exactly n bytes. Free it. */
static inline uint8_t *fuzz_copy(const void *data, size_t n)
{
    uint8_t *copy = fuzz_room(n, 1);
    if (n)
        memcpy(copy, data, n);
    return copy;
}

/* Takes numbers from the front of an input. Once it is used up, all numbers are 0. */
typedef struct {
    const uint8_t *data;
    size_t left;
} fuzz_input;

static inline uint64_t fuzz_take(fuzz_input *input, size_t bytes)
{
    uint64_t number = 0;
    const size_t n = bytes < input->left ? bytes : input->left;
    memcpy(&number, input->data, n);
    input->data += n;
    input->left -= n;
    return number;
}

/* A number from low to high, both included; takes as many bytes as they need. */
static inline uint64_t fuzz_between(fuzz_input *input, uint64_t low, uint64_t high)
{
    const uint64_t span = high - low;
    const uint64_t number = fuzz_take(input, span < 1u << 8             ? 1
                                             : span < 1u << 16          ? 2
                                             : span < UINT64_C(1) << 32 ? 4
                                                                        : 8);
    return low + (span == UINT64_MAX ? number : number % (span + 1));
}

/* A number from low to high of any magnitude above low: small ones are as likely as large ones. */
static inline uint64_t fuzz_magnitude(fuzz_input *input, uint64_t low, uint64_t high)
{
    const uint64_t bits = fuzz_between(input, 0, 63), span = high - low;
    const uint64_t above = fuzz_take(input, bits / 8 + 1) & (UINT64_MAX >> (63 - bits));
    return low + (above < span ? above : span);
}

#endif
