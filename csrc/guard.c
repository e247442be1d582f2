/* guard.c - reads of maps whose files may become shorter.
 *
 * A read beyond the new end of a file raises SIGBUS, in the thread and at the instruction that reads. A handler may
 * jump out of code that holds no lock and leaves nothing half done. Only such code runs under a guard: memcpy, scans
 * and lookups. A SIGBUS without a guard goes to the previous handler.
 *
 * Another library may set its handler later, as torch does in its workers; then `mds_guard_install` sets ours again.
 * That library may pass signals back to our handler, as the previous one. A signal that comes back gets the default
 * action, which ends the process.
 *
 * All of this is safe in a handler: it calls only what POSIX allows there, and takes no lock. Its thread-local
 * variables lie in the block that every thread has from its beginning (initial-exec), so that no access allocates
 * memory. */
#define _GNU_SOURCE /* siginfo of SIGBUS */
#include "mmapds.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#ifdef __GLIBC__ /* so that the first access in the handler allocates no memory */
#define THREAD_LOCAL __attribute__((tls_model("initial-exec"))) static _Thread_local
#else
#define THREAD_LOCAL static _Thread_local
#endif
THREAD_LOCAL mds_guard *volatile current;
THREAD_LOCAL volatile uintptr_t passing; /* the frame of a call that passes a signal on; 0 without one */

static struct sigaction before; /* the previous handler of SIGBUS */
static atomic_int installed;    /* in this process, since it was forked */
static atomic_flag watches_forks = ATOMIC_FLAG_INIT;

/* Restore the default action. The instruction runs again when the handler returns, and then ends the process. A signal
 * that a process sent must be raised again. */
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
    /* A handler that jumped out leaves `passing` set. So the signal came back only if this frame is below it. */
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
