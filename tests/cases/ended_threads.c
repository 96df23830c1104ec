// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// More threads at once than the budget has room for stacks of the program's own. Those that have ended leave RAM while
// the next one is being made, and then the rest of the program has the budget.
#include "check.h"
enum { THREADS = 400, STACK = 256 << 10 };
static void *wait_long(void *unused) {
    usleep(1500000);
    return unused;
}
int main(void) {
    char *stacks = anonymous(THREADS * STACK), *memory = anonymous(12 * MIB);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < THREADS; i++) {
        pthread_attr_setstack(&attributes, stacks + i * STACK, STACK);
        CHECK(pthread_create(&thread, &attributes, wait_long, NULL) == 0, "thread %d", i);
    }
    sleep(2);
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < 12 * MIB; at += PAGE) CHECK(memory[at]++ == round, "page %zu", at / PAGE);
    DONE;
}
