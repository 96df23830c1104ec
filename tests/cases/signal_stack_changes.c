// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// MODES: direct
// A signal that comes while another signal stack is set by number is handled on the one that its context names.
#include "cold.h"
#include <ucontext.h>
#define LEN (256 << 10)
static char stacks[2][LEN];
static volatile int ends, nr_handled, nr_elsewhere;
static void handle(int signal, siginfo_t *about, void *at) {
    (void)signal, (void)about;
    char here, *bottom = ((ucontext_t *)at)->uc_stack.ss_sp;
    nr_handled++;
    nr_elsewhere += &here < bottom || &here >= bottom + LEN;
}
static void *send(void *thread) {
    while (!ends) pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return 0;
}
// Not by the C library's function.
static long set_stack(stack_t *stack) {
    long result = SYS_sigaltstack;
    __asm__ volatile("syscall" : "+a"(result) : "D"(stack), "S"(0l) : "rcx", "r11", "memory");
    return result;
}
int main(void) {
    start_engine();
    stack_t set[2] = {{stacks[0], 0, LEN}, {stacks[1], 0, LEN}};
    sigaltstack(set, 0);
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    pthread_t thread, self = pthread_self();
    pthread_create(&thread, 0, send, &self);
    for (int turn = 0; turn < 200000 || nr_handled <= 100; turn++) CHECK(set_stack(&set[turn % 2]) == 0, "turn %d", turn);
    ends = 1;
    pthread_join(thread, 0);
    CHECK(nr_handled > 100, "%d handled", nr_handled);
    CHECK(nr_elsewhere == 0, "%d of %d handled elsewhere", nr_elsewhere, nr_handled);
    DONE;
}
