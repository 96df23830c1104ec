// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* Many queued signals are unblocked at once, and none blocks the others: each handler begins on top of the one before. */
#include "check.h"
enum { NR = 400 };
static volatile int nr_handled, values[NR];

static void handle(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)context;
    values[nr_handled++ % NR] = about->si_value.sival_int;
}

int main(void) {
    const int signal = SIGRTMIN + 2;
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigset_t set;
    sigaction(signal, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < NR; i++)
        CHECK(sigqueue(getpid(), signal, (union sigval){.sival_int = i}) == 0, "signal %d is not queued", i);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    CHECK(nr_handled == NR, "%d handled", nr_handled);
    for (int i = 0; i < NR; i++) /* the last one is on top */
        CHECK(values[i] == NR - 1 - i, "handler %d got %d", i, values[i]);
    DONE;
}
