// EXPECT: exit 0, last line "ok"
// MODES: direct
// BUDGETS: 24M
// What a handler without SA_ONSTACK reads in its context of the signal stack is what the program has set. The flags of
// signals that folioswap handles are told as those of others.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define SMALL 16384
#define LARGE 65536

static volatile stack_t told;

static void look(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)about;
    told = ((ucontext_t *)context)->uc_stack;
}

static int is_told(void *stack, size_t size) {
    stack_t wanted = { stack, 0, size }, now;
    if (sigaltstack(&wanted, NULL) != 0) return 0;
    raise(SIGUSR1);
    sigaltstack(NULL, &now);
    return told.ss_sp == stack && told.ss_size == size && now.ss_sp == stack && now.ss_size == size;
}

static int told_flags(int signal) {
    struct sigaction action = { .sa_handler = SIG_IGN, .sa_flags = SA_RESTART }, now;
    sigaction(signal, &action, NULL);
    sigaction(signal, NULL, &now);
    return now.sa_flags;
}

int main(void) {
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    struct sigaction action = { .sa_sigaction = look, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    /* The kernel's flags of a stack that was never set are inherited over execve: SS_DISABLE or none. */
    if ((told.ss_flags & ~SS_DISABLE) != 0 || told.ss_sp != NULL || told.ss_size != 0) return 2;
    if (!is_told(malloc(SMALL), SMALL)) return 3;
    if (!is_told(malloc(LARGE), LARGE)) return 4;
    if (!is_told(malloc(SMALL), SMALL)) return 5;
    if (told_flags(SIGBUS) != told_flags(SIGUSR2) || told_flags(SIGSYS) != told_flags(SIGUSR2)) return 6;
    puts("ok");
    return 0;
}
