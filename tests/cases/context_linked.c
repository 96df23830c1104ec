// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Contexts end and go on with the one linked to them (makecontext), which has left RAM by then, and which may block the
// signals of faults. Arguments of such functions are what they were, in registers and on the stack.
#include "check.h"
#include <ucontext.h>

enum { BYTES = 64 << 20, STACK = 1 << 20, NR_ROUNDS = 3 };
static char *others;
static volatile int nr_run;
static volatile unsigned sum;

static void use_other_memory(void) {
    for (size_t at = 0; at < BYTES; at += PAGE) others[at]++;
}

static void run(void) {
    nr_run++;
    use_other_memory();
}

static void run_with_nine(int a, int b, int c, int d, int e, int f, int g, int h, int i) {
    sum = a + 10 * b + 100 * c + 1000 * d + 10000 * e + 100000 * f + 1000000 * g + 10000000 * h + 100000000 * i;
    run();
}

static void run_with_eight(int a, int b, int c, int d, int e, int f, int g, int h) {
    run_with_nine(a, b, c, d, e, f, g, h, 0);
}

static void end_by_context(void) {
    ucontext_t own;
    getcontext(&own);
    own.uc_stack.ss_sp = anonymous(STACK), own.uc_stack.ss_size = STACK, own.uc_link = NULL;
    makecontext(&own, run, 0);
    setcontext(&own);
}

int main(void) {
    others = anonymous(BYTES);
    char *place = anonymous(16 << 20), *stack = anonymous(STACK);
    ucontext_t *back = (ucontext_t *)(place + 3 * PAGE), *own = (ucontext_t *)(place + (4 << 20) + 4000);
    for (int round = 0; round < NR_ROUNDS; round++) {
        sigset_t faults, before;
        sigemptyset(&faults);
        sigaddset(&faults, SIGBUS), sigaddset(&faults, SIGSYS), sigaddset(&faults, SIGUSR1);
        getcontext(own);
        own->uc_stack.ss_sp = stack, own->uc_stack.ss_size = STACK, own->uc_link = back;
        if (round == 0) makecontext(own, run, 0);
        if (round == 1) makecontext(own, (void (*)(void))run_with_nine, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9);
        if (round == 2) makecontext(own, (void (*)(void))run_with_eight, 8, 2, 2, 3, 4, 5, 6, 7, 8);
        if (round == 1) sigprocmask(SIG_SETMASK, &faults, NULL);
        CHECK(swapcontext(back, own) == 0, "swapcontext");
        sigemptyset(&faults);
        sigprocmask(SIG_SETMASK, &faults, &before);
        CHECK(sigismember(&before, SIGUSR1) == (round == 1), "the mask in round %d", round);
        CHECK(sum == (round == 0 ? 0 : round == 1 ? 987654321 : 87654322), "round %d: %u", round, sum);
        use_other_memory();
    }
    CHECK(nr_run == NR_ROUNDS, "%d ran", nr_run);
    pid_t child = fork();
    if (child == 0) end_by_context();
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "without a link: status %x", status);
    DONE;
}
