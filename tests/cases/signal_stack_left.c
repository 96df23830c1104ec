// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 30
// CFLAGS: -D_FORTIFY_SOURCE=2
// A handler on a small signal stack is left by the siglongjmp that checks where it goes, to a frame below that stack.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sigjmp_buf back;
static volatile int nr_jumps;

static void on_signal(int number) { siglongjmp(back, number); }

static __attribute__((noinline)) void jump(void) {
    if (sigsetjmp(back, 1) == 0)
        raise(SIGUSR1);
    else
        nr_jumps++;
}

int main(void) {
    char stack[16384];
    stack_t wanted = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&wanted, NULL) != 0 || sigaction(SIGUSR1, &action, NULL) != 0) return 2;
    memset(malloc(40 << 20), 1, 40 << 20); /* the engine starts, and pages */
    for (int round = 0; round < 10; round++) jump();
    if (nr_jumps != 10) return 1;
    puts("ok");
    return 0;
}
