/* guard.c - reads of maps whose files may become shorter.
 *
 * A read beyond the new end of a file is answered with SIGBUS, whoever made the map. It comes on the thread that reads,
 * at the instruction that reads, so a handler may jump out of it as long as that code holds no lock and has nothing
 * half done: memcpy, scans and lookups, which is all that runs under a guard. A SIGBUS of anybody else's goes on to
 * whoever handled it before, after a line that names the file, as torch would blame shared memory for it.
 *
 * Another library may set its handler after ours, keep ours as the one before, and pass on to it. To become the first
 * again, ours must not be that same function: each would pass to the other for ever. So there are several handlers, and
 * the one that comes first passes on to the library, the library to an older one of ours, and that one to whoever was
 * before. A library that becomes the first again and again keeps a newer one of ours instead, and may pass on in a ring:
 * see goes_round. How often a SIGBUS was passed on does not tell one that comes back from a new one, as a library that
 * recovers jumps out of its handler, as we do, so that ours never learns that the first is over.
 *
 * All of this is safe in a handler. It calls only what POSIX allows there, and keeps errno. It takes no lock: what a
 * handler reads of its place was written before the handler was set, and never changes. Its thread-local variables lie
 * in the block that every thread has from its beginning (initial-exec), so that no look at them allocates memory.
 * A handler before ours that mends nothing and returns has the instruction run again, for ever, as it would alone. */
#define _GNU_SOURCE /* siginfo of SIGBUS */
#include "mmapds.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __GLIBC__ /* else the handler's first look at one could allocate memory */
#define THREAD_LOCAL __attribute__((tls_model("initial-exec"))) static _Thread_local
#else
#define THREAD_LOCAL static _Thread_local
#endif
THREAD_LOCAL mds_guard *volatile current;
THREAD_LOCAL volatile uintptr_t deepest; /* the frame of the last call of a handler of ours without a guard */
THREAD_LOCAL volatile int deeper;        /* how many calls before it were each less deep on the stack */

#define PLACES 8                        /* as many libraries may set a handler; ours stays behind a further one */
static struct sigaction before[PLACES]; /* who handled SIGBUS when the handler of this place became the first */
static int places;                      /* how many are in use; only the installing thread looks */

static atomic_flag installing = ATOMIC_FLAG_INIT;
static atomic_int installed; /* in this process, since it was forked */
static atomic_flag told = ATOMIC_FLAG_INIT;

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
static int tell(const char *entry, uint64_t address, int ends)
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
    append(&out, ": it became shorter while it was mapped");
    append(&out, ends ? ", which ends this process" : "");
    append(&out, " (shared memory is not to blame)\n");
    const ssize_t written = write(STDERR_FILENO, out.text, out.size);
    (void)written;
    return 1;
}

static void tell_file(uint64_t address, int ends)
{
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char entry[512];
    size_t size = 0;
    char piece[2048];
    ssize_t got;
    int found = 0;
    while (!found && (got = read(fd, piece, sizeof piece)) > 0) {
        for (ssize_t k = 0; !found && k < got; k++) {
            if (piece[k] != '\n') {
                if (size < sizeof entry - 1)
                    entry[size++] = piece[k];
                continue;
            }
            entry[size] = 0;
            size = 0;
            found = tell(entry, address, ends);
        }
    }
    close(fd);
}

/* ---- the handlers ----------------------------------------------------------------------------------------------- */

static int is_handled(const struct sigaction *by)
{
    return by->sa_flags & SA_SIGINFO || (by->sa_handler != SIG_DFL && by->sa_handler != SIG_IGN);
}

/* Leave the next SIGBUS to the system: that of the same instruction, which runs again when the handler returns. */
static void set_standard(void)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(SIGBUS, &standard, NULL);
}

/* Whether a SIGBUS comes back for ever, from a library whose handler before is the one of ours that passes on to it. Such
 * calls lie in each other, so each is deeper on the stack. One place after another is passed on to in turn, so fewer
 * calls than there are places are no ring; and of a library that jumps out, so many would each have to fail deeper. */
static int goes_round(void)
{
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    deeper = here < deepest ? deeper + 1 : 0;
    deepest = here;
    return deeper > 2 * PLACES;
}

static void on_bus_error(const struct sigaction *next, int number, siginfo_t *info, void *context)
{
    mds_guard *guard = current;
    if (guard) {
        current = NULL;
        siglongjmp(guard->jump, 1);
    }
    const int sent = info->si_code <= 0; /* by a process: it has no address, and does not come again by itself */
    if (sent && !(next->sa_flags & SA_SIGINFO) && next->sa_handler == SIG_IGN)
        return;
    const int ends = goes_round() || !is_handled(next);
    if (!sent && (!atomic_flag_test_and_set(&told) || ends)) {
        const int error = errno;
        tell_file((uint64_t)(uintptr_t)info->si_addr, ends);
        errno = error;
    }
    if (ends || (unsigned)next->sa_flags & (unsigned)SA_RESETHAND)
        set_standard();
    if (!ends && next->sa_flags & SA_SIGINFO)
        next->sa_sigaction(number, info, context);
    else if (!ends)
        next->sa_handler(number);
    else if (sent)
        raise(number);
}

#define HANDLER(place)                                                                                                 \
    static void on_bus_error_##place(int number, siginfo_t *info, void *context)                                       \
    {                                                                                                                  \
        on_bus_error(&before[place], number, info, context);                                                           \
    }

HANDLER(0)
HANDLER(1)
HANDLER(2)
HANDLER(3)
HANDLER(4)
HANDLER(5)
HANDLER(6)
HANDLER(7)

static void (*const handlers[PLACES])(int, siginfo_t *, void *) = {
    on_bus_error_0, on_bus_error_1, on_bus_error_2, on_bus_error_3,
    on_bus_error_4, on_bus_error_5, on_bus_error_6, on_bus_error_7,
};

/* ---- installing -------------------------------------------------------------------------------------------------- */

static int is_ours(const struct sigaction *found)
{
    for (int k = 0; k < PLACES; k++)
        if (found->sa_flags & SA_SIGINFO && found->sa_sigaction == handlers[k])
            return 1;
    return 0;
}

static int is_same(const struct sigaction *one, const struct sigaction *other)
{
    if (one->sa_flags != other->sa_flags)
        return 0;
    return one->sa_flags & SA_SIGINFO ? one->sa_sigaction == other->sa_sigaction : one->sa_handler == other->sa_handler;
}

/* The place whose handler passes on to `found`, a new one if there is none; PLACES if all are in use. */
static int place_before(const struct sigaction *found)
{
    for (int k = 0; k < places; k++)
        if (is_same(&before[k], found))
            return k;
    if (places == PLACES)
        return PLACES;
    before[places] = *found;
    return places++;
}

static void become_the_first(void)
{
    struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK}, found;
    if (sigaction(SIGBUS, NULL, &found) != 0 || is_ours(&found))
        return;
    const int place = place_before(&found);
    if (place == PLACES)
        return;
    ours.sa_sigaction = handlers[place];
    sigaction(SIGBUS, &ours, NULL);
}

static void after_fork(void)
{
    atomic_store(&installed, 0); /* torch sets handlers of its own in a worker */
    atomic_flag_clear(&installing);
}

void mds_guard_install(void)
{
    static int watches_forks;
    while (atomic_flag_test_and_set(&installing))
        sched_yield();
    become_the_first();
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
