// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 32M
/* Threads set signal stacks while the program fits into its budget. Once it does not, the stacks are managed, too; the
 * handlers on them, which map, allocate and unmap, find their pages. */
#include "check.h"
#include <time.h>

enum { NR_THREADS = 4, SECONDS = 3, OTHERS = 60 << 20, STACK = 300 << 10 };
static volatile int is_over, nr_ready;

static void handle(int number) {
    (void)number;
    char *mapped = anonymous(1 << 20);
    memset(mapped, 1, 1 << 20);
    char *block = malloc(70000);
    block[69999] = 1;
    free(block);
    madvise(mapped, 1 << 20, MADV_DONTNEED);
    munmap(mapped, 1 << 20);
}

static void *waits(void *unused) {
    char *stack = anonymous(STACK);
    memset(stack, 1, STACK);
    stack_t wanted = { .ss_sp = stack, .ss_size = STACK }, now;
    CHECK(sigaltstack(&wanted, NULL) == 0, "setting a stack");
    __atomic_add_fetch(&nr_ready, 1, __ATOMIC_SEQ_CST);
    while (!is_over) usleep(1000);
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack && now.ss_size == STACK, "another stack is told");
    return unused;
}

int main(void) {
    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK };
    sigaction(SIGUSR1, &action, NULL);
    pthread_t threads[NR_THREADS];
    for (int i = 0; i < NR_THREADS; i++) CHECK(pthread_create(&threads[i], NULL, waits, NULL) == 0, "a thread");
    while (nr_ready < NR_THREADS) usleep(1000);
    char *others = anonymous(OTHERS);
    size_t at = 0;
    for (time_t end = time(NULL) + SECONDS, nr = 0; time(NULL) < end; nr++) {
        for (int page = 0; page < 3000; page++, at = (at + PAGE) % OTHERS) others[at]++;
        pthread_kill(threads[nr % NR_THREADS], SIGUSR1);
    }
    is_over = 1;
    for (int i = 0; i < NR_THREADS; i++) pthread_join(threads[i], NULL);
    DONE;
}
