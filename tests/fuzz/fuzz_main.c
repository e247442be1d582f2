/* fuzz_main.c - runs a fuzz target where there is no libFuzzer: replays the files it is given, then makes inputs.
 *
 * usage: TARGET [-max_total_time=SECONDS] [-runs=N] [-seed=N] [-artifact_prefix=PREFIX] [FILE|FOLDER...]
 *
 * The options are those of libFuzzer; others are passed over. The input that ends the process is written to PREFIX. */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define LARGEST (1 << 14) /* bytes of an input */
#define SEEDS 256

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

static struct {
    const uint8_t *data;
    size_t size;
} running;
static char artifact[4096];

static void save(void)
{
    const int fd = open(artifact, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0 && write(fd, running.data, running.size) == (ssize_t)running.size)
        close(fd);
}

static void save_and_abort(int number)
{
    signal(number, SIG_DFL);
    save();
    raise(number);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void run(const uint8_t *data, size_t size)
{
    running.data = data;
    running.size = size;
    LLVMFuzzerTestOneInput(data, size);
}

static void replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || count == SEEDS)
        return;
    seeds[count].size = fread(seeds[count].data, 1, LARGEST, file);
    fclose(file);
    run(seeds[count].data, seeds[count].size);
    count++;
}

static void replay_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir) {
        replay(folder);
        return;
    }
    char path[4096];
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' &&
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < sizeof path)
            replay(path);
    closedir(dir);
}

int main(int argc, char **argv)
{
    static uint8_t data[LARGEST];
    unsigned long long seed = 0, most = ~0ULL, runs = 0;
    long long seconds = 1LL << 40;
    snprintf(artifact, sizeof artifact, "finding");
    for (int k = 1; k < argc; k++) {
        sscanf(argv[k], "-seed=%llu", &seed);
        sscanf(argv[k], "-runs=%llu", &most);
        sscanf(argv[k], "-max_total_time=%lld", &seconds);
        if (strncmp(argv[k], "-artifact_prefix=", 17) == 0)
            snprintf(artifact, sizeof artifact, "%sfinding", argv[k] + 17);
    }
    signal(SIGABRT, save_and_abort);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(save);
    for (int k = 1; k < argc; k++)
        if (argv[k][0] != '-')
            replay_folder(argv[k]);
    state = seed * 2 + 1;
    const time_t end = time(NULL) + seconds;
    for (; runs < most && time(NULL) < end; runs++)
        run(data, make(data));
    printf("stat::number_of_executed_units: %llu\n", runs);
    return 0;
}
