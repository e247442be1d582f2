/* fuzz_main.c - runs a fuzz target where there is no libFuzzer: replays the files it is given, then makes inputs.
 *
 * usage: TARGET SECONDS SEED [FILE...] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t state;

static uint64_t next(void) /* xorshift64 (Marsaglia, 2003) */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint8_t seeds[1 << 14];
static size_t seeds_size;

static const char likely[] = "\n\n\n\r\r \t{}[]\":,0123456789aenrtfulsb\\/-+.\xef\xbb\xbf\xff";

/* A piece of what was replayed, with a few bytes changed, dropped or doubled. */
static size_t mutate(uint8_t *data, size_t capacity)
{
    const size_t begin = next() % seeds_size;
    size_t n = next() % (seeds_size - begin) + 1;
    n = n > capacity / 2 ? capacity / 2 : n;
    memcpy(data, seeds + begin, n);
    for (uint64_t changes = next() % 4; changes && n; changes--) {
        const size_t at = next() % n;
        if (next() % 3 == 0) {
            memmove(data + at, data + at + 1, n - at - 1);
            n--;
        } else if (next() % 2) {
            memmove(data + at + 1, data + at, n - at);
            n++;
        } else {
            data[at] = next() % 2 ? (uint8_t)next() : (uint8_t)likely[next() % (sizeof likely - 1)];
        }
    }
    return n;
}

static size_t make(uint8_t *data, size_t capacity)
{
    if (seeds_size && next() % 2)
        return mutate(data, capacity);

    const size_t n = next() % (next() % 8 ? 200 : capacity);
    const int kind = (int)(next() % 3);
    for (size_t k = 0; k < n; k++)
        data[k] = kind == 0 || next() % 16 == 0 ? (uint8_t)next() : (uint8_t)likely[next() % (sizeof likely - 1)];
    return n;
}

int main(int argc, char **argv)
{
    static uint8_t data[1 << 14];
    if (argc < 3)
        return 2;
    for (int k = 3; k < argc; k++) {
        FILE *file = fopen(argv[k], "rb");
        if (!file)
            return 2;
        const size_t n = fread(data, 1, sizeof data, file);
        fclose(file);
        const size_t kept = n < sizeof seeds - seeds_size ? n : sizeof seeds - seeds_size;
        memcpy(seeds + seeds_size, data, kept);
        seeds_size += kept;
        LLVMFuzzerTestOneInput(data, n);
    }
    state = strtoull(argv[2], NULL, 10) * 2 + 1;
    const time_t end = time(NULL) + atol(argv[1]);
    unsigned long runs = 0;
    for (; time(NULL) < end; runs++)
        LLVMFuzzerTestOneInput(data, make(data, sizeof data));
    printf("%lu inputs\n", runs);
    return 0;
}
