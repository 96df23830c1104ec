// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A signal stack that is larger than the budget can be set, and handlers run on it.
#include "cold.h"
#define LEN (64 * MIB)
static volatile int nr_handled;
static char *stack;
static void handle(int signal) {
    char here;
    (void)signal;
    nr_handled += &here >= stack && &here < stack + LEN;
}
int main(void) {
    start_engine();
    char *beside = anonymous(LEN);
    fill(stack = anonymous(LEN), LEN);
    fill(beside, LEN);
    stack_t set = {.ss_sp = stack, .ss_size = LEN}, told;
    CHECK(sigaltstack(&set, 0) == 0 && sigaltstack(0, &told) == 0, "sigaltstack");
    CHECK(told.ss_sp == stack && told.ss_size == LEN && told.ss_flags == 0, "told %p, %zu", told.ss_sp, told.ss_size);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    for (int round = 1; round <= 3; round++) {
        CHECK(wrong_pages(beside, LEN) == 0, "beside it");
        raise(SIGUSR1);
        CHECK(nr_handled == round, "on it: %d", nr_handled);
        // Handlers use the top.
        CHECK(wrong_pages(stack, LEN - 64 * PAGE) == 0, "below");
    }
    DONE;
}
