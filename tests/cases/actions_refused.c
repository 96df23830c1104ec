// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Actions that are refused change nothing: those for the signals that the C library keeps, and one with a set of
// another length. Many signals come at once whose handler does not block them.
#include "check.h"
enum { NR_QUEUED = 1000 };
static volatile int nr_first, nr_other, nr_open;
static void on_first(int number) { nr_first += number == SIGUSR1; }
static void on_other(int number) { nr_other += number > 0; }
static void on_open(int number) { nr_open += number == SIGRTMIN + 1; }
static void *sleep_long(void *is_asynchronous) {
    int before;
    pthread_setcanceltype(is_asynchronous ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, &before);
    for (;;) sleep(100);
}
static void check_cancelled(void *is_asynchronous) {
    pthread_t thread;
    void *result = NULL;
    struct timespec end;
    pthread_create(&thread, NULL, sleep_long, is_asynchronous);
    usleep(20000);
    pthread_cancel(thread);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    CHECK(pthread_timedjoin_np(thread, &result, &end) == 0 && result == PTHREAD_CANCELED, "not cancelled");
}
int main(void) {
    anonymous(64 * MIB);
    check_cancelled(NULL);
    struct sigaction action = {.sa_handler = on_other};
    int nr_set = 0;
    for (int number = 1; number <= 64; number++) nr_set += sigaction(number, &action, NULL) == 0;
    CHECK(nr_set == 60, "%d actions set", nr_set);
    check_cancelled(NULL);
    check_cancelled("");
    action.sa_handler = on_first;
    sigaction(SIGUSR1, &action, NULL);
    struct { void (*handler)(int); unsigned long flags; void *restorer; unsigned long mask; } raw = {on_other, 0, 0, 0};
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, &raw, NULL, 4) < 0 && errno == EINVAL, "a set of 4 bytes");
    raise(SIGUSR1);
    CHECK(nr_first == 1 && nr_other == 0, "the first handler ran %d times, the other %d", nr_first, nr_other);
    for (int with_stack = 0; with_stack < 2; with_stack++) {
        struct sigaction open = {.sa_handler = on_open, .sa_flags = SA_NODEFER | (with_stack ? SA_ONSTACK : 0)}, told;
        sigaction(SIGRTMIN + 1, &open, NULL);
        sigaction(SIGRTMIN + 1, NULL, &told);
        CHECK((told.sa_flags & ~0x04000000) == open.sa_flags, "flags %x", told.sa_flags);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN + 1);
        sigprocmask(SIG_BLOCK, &set, NULL);
        nr_open = 0;
        for (int i = 0; i < NR_QUEUED; i++) sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i});
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        CHECK(nr_open == NR_QUEUED, "%d of %d came", nr_open, NR_QUEUED);
    }
    DONE;
}
