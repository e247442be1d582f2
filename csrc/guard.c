/* guard.c - reads of maps whose files may become shorter.
 *
 * A read beyond the new end of a file is answered with SIGBUS, whoever made the map. The signal comes on the thread that
 * reads, at the instruction that reads. So a handler may jump out of it as long as that code holds no lock and has
 * nothing half done: memcpy, scans and lookups, which is all that runs under a guard. A SIGBUS without a guard goes on
 * to the handler that was set before ours.
 *
 * Another library may set its handler later, as torch does in its workers; then `mds_guard_install` sets ours again.
 * Such a library may have kept ours as the handler before its own, and passes signals back to it. A signal that comes
 * back gets the system's answer, which ends the process.
 *
 * All of this is safe in a handler: it calls only what POSIX allows there, and takes no lock. Its thread-local variables
 * lie in the block that every thread has from its beginning (initial-exec), so that no access allocates memory. */
#define _GNU_SOURCE /* siginfo of SIGBUS */
#include "mmapds.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#ifdef __GLIBC__ /* else the handler's first access to one could allocate memory */
#define THREAD_LOCAL __attribute__((tls_model("initial-exec"))) static _Thread_local
#else
#define THREAD_LOCAL static _Thread_local
#endif
THREAD_LOCAL mds_guard *volatile current;
THREAD_LOCAL volatile uintptr_t passing; /* the frame of a call that passes a signal on; 0 without one */

static struct sigaction before; /* who handled SIGBUS when our handler was set last */
static atomic_int installed;    /* in this process, since it was forked */
static atomic_flag watches_forks = ATOMIC_FLAG_INIT;

/* Leave SIGBUS to the system. The instruction runs again when the handler returns, and then ends the process; a signal
 * that a process sent does not come again by itself. */
static void end(int number, int is_sent)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(SIGBUS, &standard, NULL);
    if (is_sent)
        raise(number);
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    mds_guard *guard = current;
    if (guard) {
        current = NULL;
        siglongjmp(guard->jump, 1);
    }
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    const int is_sent = info->si_code <= 0; /* by a process */
    const int is_handler =
        before.sa_flags & SA_SIGINFO || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
    if (!is_handler && is_sent && before.sa_handler == SIG_IGN)
        return;
    /* A handler that jumped out leaves `passing` set, so only a call below that frame is one that came back. */
    if (!is_handler || here < passing) {
        end(number, is_sent);
        return;
    }
    passing = here;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
    passing = 0;
}

static void after_fork(void)
{
    atomic_store(&installed, 0); /* torch sets handlers of its own in a worker */
}

void mds_guard_install(void)
{
    struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK, .sa_sigaction = on_bus_error}, found;
    if (sigaction(SIGBUS, NULL, &found) == 0 && !(found.sa_flags & SA_SIGINFO && found.sa_sigaction == on_bus_error)) {
        before = found;
        sigaction(SIGBUS, &ours, NULL);
    }
    if (!atomic_flag_test_and_set(&watches_forks))
        pthread_atfork(NULL, NULL, after_fork);
    atomic_store(&installed, 1);
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
