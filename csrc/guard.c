/* guard.c - reads of maps whose files may become shorter.
 *
 * A read beyond the new end of a file is answered with SIGBUS, whoever made the map. It comes on the thread that reads,
 * at the instruction that reads, so a handler may jump out of it as long as that code holds no lock and has nothing
 * half done: memcpy, scans and lookups, which is all that runs under a guard. A SIGBUS of anybody else's goes on to
 * whoever handled it before, after a line that names the file, as torch would blame shared memory for it. */
#define _GNU_SOURCE /* siginfo of SIGBUS */
#include "mmapds.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __GLIBC__ /* else the handler's first look at it could allocate memory */
__attribute__((tls_model("initial-exec")))
#endif
static _Thread_local mds_guard *volatile current;

static atomic_flag installing = ATOMIC_FLAG_INIT;
static atomic_int installed;    /* in this process, since it was forked */
static struct sigaction before; /* who handled SIGBUS when we came */
static atomic_int unguarded;    /* how many SIGBUS were passed on */

/* ---- the line: only calls that are safe in a handler -------------------------------------------------------- */

typedef struct {
    char text[1024];
    size_t size;
} line;

static void append(line *out, const char *text)
{
    for (; *text && out->size < sizeof out->text; text++)
        out->text[out->size++] = *text;
}

static void append_number(line *out, uint64_t number)
{
    char digits[21];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    do
        digits[--at] = (char)('0' + number % 10);
    while ((number /= 10));
    append(out, digits + at);
}

static const char *hexadecimal(const char *text, uint64_t *number)
{
    for (*number = 0;; text++) {
        const int digit = *text >= '0' && *text <= '9'   ? *text - '0'
                          : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10
                                                         : -1;
        if (digit < 0)
            return text;
        *number = *number << 4 | (uint64_t)digit;
    }
}

/* Tell which file is mapped at `address`, if a line of /proc/self/maps says so and the file really ends before it:
 *
 *     7f0c8e400000-7f0c8e402000 r--s 00001000 fe:00 1234    /data/train.jsonl */
static int tell(const char *entry, uint64_t address)
{
    uint64_t begin, end, offset;
    const char *at = hexadecimal(entry, &begin);
    at = hexadecimal(at + (*at == '-'), &end);
    if (address < begin || address >= end || strlen(at) < 6)
        return 0;
    at = hexadecimal(at + 6, &offset); /* " r--s " lies before it */
    const char *path = strchr(at, '/');
    struct stat found;
    const uint64_t byte = offset + (address - begin);
    if (!path || stat(path, &found) != 0 || !S_ISREG(found.st_mode) || (uint64_t)found.st_size > byte)
        return 0;
    line out = {.size = 0};
    append(&out, path);
    append(&out, ": expected a byte at ");
    append_number(&out, byte);
    append(&out, ", found the end of the file at ");
    append_number(&out, (uint64_t)found.st_size);
    append(&out, ": it became shorter while it was mapped, which ends this process (shared memory is not to blame)\n");
    const ssize_t written = write(STDERR_FILENO, out.text, out.size);
    (void)written;
    return 1;
}

static void tell_file(uint64_t address)
{
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char entry[512];
    size_t size = 0;
    char piece[2048];
    ssize_t got;
    int told = 0;
    while (!told && (got = read(fd, piece, sizeof piece)) > 0) {
        for (ssize_t k = 0; !told && k < got; k++) {
            if (piece[k] != '\n') {
                if (size < sizeof entry - 1)
                    entry[size++] = piece[k];
                continue;
            }
            entry[size] = 0;
            size = 0;
            told = tell(entry, address);
        }
    }
    close(fd);
}

/* ---- the handler ------------------------------------------------------------------------------------------------ */

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    mds_guard *guard = current;
    if (guard) {
        current = NULL;
        siglongjmp(guard->jump, 1);
    }
    if (atomic_fetch_add(&unguarded, 1) == 0)
        tell_file((uint64_t)(uintptr_t)info->si_addr);
    const int handled = before.sa_flags & SA_SIGINFO || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
    if (!handled || atomic_load(&unguarded) > 2) { /* who came before may have passed it back to us */
        const struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(SIGBUS, &standard, NULL);
        if (info->si_code <= 0) /* sent by a process: it does not come again by itself */
            raise(SIGBUS);
    } else if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else {
        before.sa_handler(number);
    }
}

static void after_fork(void)
{
    atomic_store(&installed, 0); /* torch sets handlers of its own in a worker */
    atomic_flag_clear(&installing);
}

void mds_guard_install(void)
{
    static int watches_forks;
    struct sigaction found;
    const struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    while (atomic_flag_test_and_set(&installing))
        sched_yield();
    if (sigaction(SIGBUS, NULL, &found) == 0 && !(found.sa_flags & SA_SIGINFO && found.sa_sigaction == on_bus_error)) {
        before = found;
        sigaction(SIGBUS, &ours, NULL);
    }
    if (!watches_forks)
        watches_forks = pthread_atfork(NULL, NULL, after_fork) == 0;
    atomic_store(&installed, 1);
    atomic_flag_clear(&installing);
}

void mds_guard_enter(mds_guard *guard)
{
    if (!atomic_load_explicit(&installed, memory_order_relaxed))
        mds_guard_install();
    current = guard;
}

void mds_guard_leave(void)
{
    current = NULL;
}
