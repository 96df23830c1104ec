// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Handlers on a large signal stack in the program's memory give advice and make calls, while another thread sends that
// memory out of RAM.
#include "cold.h"
#define LEN (64ul << 10)
static char *stack, *memory;
static volatile int nr_handled, ends;
static void handle(int signal) {
    (void)signal;
    char *own = memory + nr_handled % 16 * LEN;
    CHECK(madvise(own, LEN, MADV_COLD) == 0 && madvise(own, LEN, MADV_PAGEOUT) == 0, "madvise");
    CHECK(madvise(own, LEN, MADV_WILLNEED) == 0, "willneed");
    for (size_t at = 0; at < LEN; at += PAGE) CHECK(own[at] == (char)(at / PAGE), "page %zu", at / PAGE);
    nr_handled++;
}
static void *send_all_out(void *unused) {
    while (!ends) {
        madvise(stack, LEN, MADV_PAGEOUT);
        madvise(memory, 16 * LEN, MADV_PAGEOUT);
    }
    return unused;
}
int main(void) {
    start_engine();
    memory = anonymous(32 * MIB);
    stack = memory + 16 * MIB;
    for (size_t at = 0; at < 16 * LEN; at += PAGE) memory[at] = at % LEN / PAGE;
    stack_t set = {.ss_sp = stack, .ss_size = LEN};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&set, 0) == 0 && sigaction(SIGUSR1, &action, 0) == 0, "set");
    pthread_t thread;
    pthread_create(&thread, 0, send_all_out, 0);
    for (int round = 0; round < 2000; round++) raise(SIGUSR1);
    ends = 1;
    pthread_join(thread, 0);
    CHECK(nr_handled == 2000, "%d handled", nr_handled);
    DONE;
}
