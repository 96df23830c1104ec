// EXPECT: exit 0, last line "ok"
// MODES: direct
// BUDGETS: 24M
// Handlers find their stacks, however many signals come at once.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL 16384

static char *small, *top;
static volatile int nr_wrong, nr_runs;

static int is_on_small(const char *at) { return at >= small && at < small + SMALL; }

static void plain(int signal) {
    char here;
    (void)signal;
    nr_runs++;
    nr_wrong += !is_on_small(&here) && !(&here < top && &here > top - (1 << 20));
}

static void on_stack(int signal) {
    char here;
    (void)signal;
    nr_runs++;
    nr_wrong += !is_on_small(&here);
}

static void set(int signal, void (*handler)(int), int flags) {
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigaction(signal, &action, NULL);
}

int main(void) {
    char here;
    top = &here + 4096;
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    small = malloc(SMALL);
    stack_t stack = { small, 0, SMALL }, now;
    sigaltstack(&stack, NULL);
    set(SIGUSR1, plain, 0);
    set(SIGUSR2, on_stack, SA_ONSTACK);
    set(SIGRTMIN + 2, plain, 0);
    set(SIGRTMIN + 3, on_stack, SA_ONSTACK);
    int signals[] = { SIGUSR1, SIGUSR2, SIGRTMIN + 2, SIGRTMIN + 3 };
    nr_runs = 0;
    for (int chosen = 0; chosen < 16; chosen++) {
        sigset_t blocked;
        sigemptyset(&blocked);
        for (int i = 0; i < 4; i++) sigaddset(&blocked, signals[i]);
        sigprocmask(SIG_BLOCK, &blocked, NULL);
        for (int i = 0; i < 4; i++)
            if (chosen >> i & 1) raise(signals[i]);
        sigprocmask(SIG_UNBLOCK, &blocked, NULL);
        sigaltstack(NULL, &now);
        if (now.ss_sp != small || now.ss_size != SMALL || now.ss_flags != 0) return 2;
    }
    if (nr_wrong != 0 || nr_runs != 32) {
        printf("%d of %d on wrong stacks\n", nr_wrong, nr_runs);
        return 3;
    }
    puts("ok");
    return 0;
}
