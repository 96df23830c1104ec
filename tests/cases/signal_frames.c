// EXPECT: exit 0, last line "ok"
// MODES: direct
// BUDGETS: 24M
// Handlers find their stacks, however many signals come at once.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* The call itself, not the C library's function for it. */
static long call(long number, long a, const void *b, void *c, long d) {
    register long fourth asm("r10") = d;
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

/* As many signals as there are, all at once. Returns how many handlers were missing. */
static int raise_all(int by_number) {
    sigset_t all, before;
    int nr = 0;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    nr_runs = 0;
    for (int signal = 1; signal <= 64; signal++) {
        if (signal == SIGKILL || signal == SIGSTOP || signal == SIGBUS || signal == SIGSYS) continue;
        if (signal == SIGCONT) continue; /* those that stop the program take it back */
        if (signal > 31 && signal < SIGRTMIN) continue;
        set(signal, plain, 0);
        nr += raise(signal) == 0;
    }
    if (by_number) call(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    else sigprocmask(SIG_SETMASK, &before, NULL);
    return nr - nr_runs;
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
    if (raise_all(0) || raise_all(1) || nr_wrong) return puts("all at once"), 4;
    puts("ok");
    return 0;
}
