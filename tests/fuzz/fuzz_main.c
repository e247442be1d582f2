/* fuzz_main.c - runs a fuzz target where there is no libFuzzer: replays the files it is given, then makes inputs.
 *
 * usage: TARGET SECONDS SEED [FILE...] */
#include "fuzz.h"

#include <time.h>

#define LARGEST (1 << 14) /* bytes of an input */
#define SEEDS 64

static uint64_t state;

static uint64_t next(void) /* xorshift64 (Marsaglia, 2003) */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static struct {
    uint8_t data[LARGEST];
    size_t size;
} seeds[SEEDS];
static size_t count;

static const char likely[] = "\n\n\n\r\r \t{}[]\":,0123456789aenrtfulsb\\/-+.\xef\xbb\xbf\xff\x01\x7f\x80";

static uint8_t any_byte(void)
{
    return next() % 2 ? (uint8_t)next() : (uint8_t)likely[next() % sizeof likely];
}

/* A seed, or a piece of one, with a few bytes changed, dropped or doubled. */
static size_t mutate(uint8_t *data)
{
    const size_t s = next() % count;
    if (seeds[s].size == 0)
        return 0;
    const size_t begin = next() % 4 ? 0 : next() % seeds[s].size;
    size_t n = next() % 4 ? seeds[s].size - begin : next() % (seeds[s].size - begin) + 1;
    memcpy(data, seeds[s].data + begin, n);
    for (uint64_t changes = next() % 5; changes && n; changes--) {
        const size_t at = next() % n;
        if (next() % 3 == 0) {
            memmove(data + at, data + at + 1, n - at - 1);
            n--;
        } else if (next() % 2 && n < LARGEST) {
            memmove(data + at + 1, data + at, n - at);
            n++;
        } else {
            data[at] = any_byte();
        }
    }
    return n;
}

static size_t make(uint8_t *data)
{
    if (count && next() % 4)
        return mutate(data);
    const size_t n = next() % (next() % 8 ? 200 : LARGEST);
    const int binary = next() % 3 == 0;
    for (size_t k = 0; k < n; k++)
        data[k] = binary ? (uint8_t)next() : next() % 16 ? (uint8_t)likely[next() % sizeof likely] : (uint8_t)next();
    return n;
}

int main(int argc, char **argv)
{
    static uint8_t data[LARGEST];
    if (argc < 3)
        return 2;
    for (int k = 3; k < argc && count < SEEDS; k++, count++) {
        FILE *file = fopen(argv[k], "rb");
        if (!file)
            return 2;
        seeds[count].size = fread(seeds[count].data, 1, LARGEST, file);
        fclose(file);
        LLVMFuzzerTestOneInput(seeds[count].data, seeds[count].size);
    }
    state = strtoull(argv[2], NULL, 10) * 2 + 1;
    const time_t end = time(NULL) + atol(argv[1]);
    unsigned long runs = 0;
    for (; time(NULL) < end; runs++)
        LLVMFuzzerTestOneInput(data, make(data));
    printf("%lu inputs\n", runs);
    return 0;
}
