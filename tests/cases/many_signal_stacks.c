// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// Signal stacks of more bytes than the budget: the program has the budget nevertheless, and its handlers run on them.
#include "check.h"
enum { THREADS = 300, STACK = 64 << 10 };
static char *stacks;
static pthread_barrier_t barrier;
static _Thread_local char *own;
static _Thread_local volatile int is_on_own;
static void handle(int unused) {
    char here[8 << 10];
    memset(here, unused, sizeof here);
    is_on_own = here >= own && here < own + STACK;
}
static void *use(void *number) {
    own = stacks + (size_t)number * STACK;
    stack_t stack = {.ss_sp = memset(own, 1, STACK), .ss_size = STACK};
    CHECK(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    raise(SIGUSR1);
    CHECK(is_on_own, "thread %zu", (size_t)number);
    return NULL;
}
int main(void) {
    char *memory = anonymous(10 * MIB);
    pthread_t threads[THREADS];
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    stacks = anonymous(THREADS * STACK);
    sigaction(SIGUSR1, &action, NULL);
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, use, (void *)i) == 0, "thread %zu", i);
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < 10 * MIB; at += PAGE) CHECK(memory[at]++ == round, "page %zu", at / PAGE);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    DONE;
}
