// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// ARGS: sleep
// ARGS: once
// Real-time signals that are queued to a thread come in order while it makes system calls past the C library, calls
// that sleep and others. Their handler may be one that is set again for each signal (SA_RESETHAND).
#include "check.h"
#include <poll.h>

enum { NR = 20000, NR_ONCE = 2000 };
static volatile int nr = NR, next, nr_late, is_done, is_once;
static pthread_t target;
static int number;

static void take(int value) {
    CHECK(value == next, "%d came for %d", value, next);
    nr_late += value != next;
    next++;
}

static void on_signal(int signal_number, siginfo_t *about, void *context) {
    (void)context;
    CHECK(signal_number == number && about->si_code == SI_QUEUE && about->si_pid == getpid(), "about signal %d", signal_number);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, number) && sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1), "the mask in the handler");
    if (is_once) {
        struct sigaction known;
        sigaction(number, NULL, &known);
        CHECK(known.sa_handler == SIG_DFL, "the handler stayed");
        known.sa_sigaction = on_signal, known.sa_flags = SA_SIGINFO | SA_RESETHAND;
        sigaction(number, &known, NULL);
    }
    take(about->si_value.sival_int);
}

static long call(long which, long a, long b, long c) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(which), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
#else
    return syscall(which, a, b, c);
#endif
}

static void *send(void *argument) {
    for (int i = 0; i < nr; i++) {
        while (pthread_sigqueue(target, number, (union sigval){ .sival_int = i })) usleep(100);
        /* While a handler that must be set again begins, the kernel ends the process at the next signal. */
        if (is_once || i % 8 == 7)
            while (next <= (is_once ? i : i - 2)) usleep(10);
    }
    is_done = 1;
    return argument;
}

int main(int argc, char **argv) {
    int sleeps = argc > 1 && !strcmp(argv[1], "sleep");
    is_once = argc > 1 && !strcmp(argv[1], "once");
    nr = is_once ? NR_ONCE : NR;
    number = SIGRTMIN + 1;
    target = pthread_self();
    memset(malloc(64 << 20), 1, 64 << 20);
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
    action.sa_flags |= is_once ? SA_RESETHAND : 0;
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(number, &action, NULL);
    pthread_t sender;
    pthread_create(&sender, NULL, send, NULL);
    while (!is_done || next < nr) {
        long result = sleeps ? call(SYS_poll, 0, 0, 1) : call(SYS_getppid, 0, 0, 0);
        CHECK(sleeps ? result == 0 || result == -EINTR : result == getppid(), "the call: %ld", result);
    }
    pthread_join(sender, NULL);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    CHECK(!sigismember(&now, number) && !sigismember(&now, SIGUSR2), "the mask at the end");
    CHECK(!nr_late && next == nr, "%d of %d out of order", nr_late, next);
    DONE;
}
