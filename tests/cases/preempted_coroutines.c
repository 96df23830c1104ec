// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
// LIMIT_S: 60
/* A timer preempts coroutines, whose stacks another thread sends out of RAM all the time: its handler switches to the
 * scheduler, and returns when the coroutine is resumed. What each has on its stack and in registers stays. */
#include "check.h"
#include <stdatomic.h>
#include <sys/time.h>
enum { NR = 16, STACK = 256 << 10, NR_ROUNDS = 40 };
static char *stacks;
static void *at[NR], *scheduler;
static volatile int current, is_over[NR], depth[NR];
static volatile sig_atomic_t may_switch;
static atomic_int is_done, nr_switches;

// Saves what a call keeps, and goes on on another stack.
void change_stack(void **from, void *to);
__asm__(".text\nchange_stack:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void *send_out(void *none) {
    while (!is_done) madvise(stacks, (size_t)NR * STACK, MADV_PAGEOUT);
    return none;
}

static void on_tick(int signal) {
    (void)signal;
    int me = current;
    if (!may_switch || depth[me] > 8) return;
    depth[me]++, nr_switches++, may_switch = 0;
    change_stack(&at[me], scheduler);
    may_switch = 1, depth[me]--;
}

static uint64_t work(int me, uint64_t seed, int deep) {
    volatile uint64_t here[64];
    for (int i = 0; i < 64; i++) here[i] = seed * 31 + i + me;
    uint64_t sum = deep ? work(me, seed + 1, deep - 1) : 0;
    for (int i = 0; i < 64; i++) {
        if (here[i] != seed * 31 + i + me) nr_wrong++;
        sum += here[i];
    }
    return sum;
}

static void body(void) {
    int me = current;
    may_switch = 1;
    uint64_t wanted = work(me, me * 1000, 40);
    for (int round = 0; round < NR_ROUNDS; round++) {
        double sum = 0;
        for (int i = 0; i < 200; i++) sum += 1.5 * me * i;
        if (sum != 1.5 * me * 19900 || work(me, me * 1000, 40) != wanted) nr_wrong++;
    }
    may_switch = 0, is_over[me] = 1;
    change_stack(&at[me], scheduler);
}

int main(void) {
    char *others = anonymous(60 * MIB);
    for (size_t i = 0; i < 60 * MIB; i += PAGE) others[i] = 1;
    stacks = (char *)(((uintptr_t)anonymous(NR * STACK + 2 * MIB) + 2 * MIB - 1) & -(2 * MIB));
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART | SA_NODEFER};
    sigaction(SIGALRM, &action, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_t sender;
    pthread_create(&sender, NULL, send_out, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {0};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < NR; i++) {
        uintptr_t *top = (uintptr_t *)(stacks + (size_t)(i + 1) * STACK);
        *--top = 0, *--top = 0, *--top = (uintptr_t)body;
        for (int k = 0; k < 6; k++) *--top = 0;
        at[i] = top;
    }
    for (int left = 1; left;) {
        left = 0;
        for (int i = 0; i < NR; i++) {
            if (is_over[i]) continue;
            left = 1, current = i;
            change_stack(&scheduler, at[i]);
            static unsigned long mask;
            syscall(SYS_rt_sigprocmask, 0, NULL, &mask, 8);
            CHECK(mask == 0, "mask %lx", mask);
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    is_done = 1;
    pthread_join(sender, NULL);
    DONE;
}
