// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A handler that wants the signal stack runs on that of the thread if none is set, and may use as much of it.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (200 << 10)

static volatile int nr_runs;

__attribute__((noinline)) static void large(int signal) {
    volatile char bytes[LARGE];
    (void)signal;
    for (size_t at = 0; at < LARGE; at += 512) bytes[LARGE - 1 - at] = 1;
    nr_runs += bytes[LARGE - 1];
}

int main(void) {
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    struct sigaction action = { .sa_handler = large, .sa_flags = SA_ONSTACK };
    sigaction(SIGUSR1, &action, NULL);
    for (int round = 1; round <= 10; round++)
        if (raise(SIGUSR1) != 0 || nr_runs != round) return 2;
    puts("ok");
    return 0;
}
