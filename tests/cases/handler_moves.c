// BUDGETS: 24M
// LIMIT_S: 60
// A handler that was left by a switch of contexts returns on another thread, while memory leaves RAM all the time.
#include "cold.h"

enum { SIZE = 16 * MIB };

static char *memory;
static ucontext_t homes[2], moving;
static volatile int is_over, is_ready, has_left, has_ended;
static __thread int number;

static void *page_out(void *unused) {
    while (!is_over) {
        madvise(memory, SIZE, MADV_PAGEOUT);
        usleep(50);
    }
    return unused;
}

__attribute__((noinline)) static ucontext_t *own_home(void) {
    __asm__ volatile("");
    return &homes[number];
}

static void leave(int signal) {
    (void)signal;
    swapcontext(&moving, own_home());
}

static void work(void) {
    for (int at = 0; at < 20000; at++) CHECK(memory[(at * 7919l) % (SIZE / PAGE) * PAGE + 100] == 0, "page");
}

static void move(void) {
    is_ready = 1;
    while (!has_left) continue;
    work();
    has_ended = 1;
    swapcontext(&moving, own_home());
}

static void *first(void *unused) {
    number = 0;
    swapcontext(&homes[0], &moving); // comes back in the handler
    has_left = 1;
    work();
    return unused;
}

static void *second(void *unused) {
    number = 1;
    while (!has_left) continue;
    swapcontext(&homes[1], &moving);
    CHECK(has_ended, "not ended");
    return unused;
}

int main(void) {
    start_engine();
    memory = anonymous(SIZE);
    memset(memory, 0, SIZE);
    pthread_t threads[2], pager;
    pthread_create(&pager, NULL, page_out, NULL);
    signal(SIGUSR1, leave);
    getcontext(&moving);
    moving.uc_stack.ss_sp = malloc(256 << 10), moving.uc_stack.ss_size = 256 << 10;
    makecontext(&moving, move, 0);
    pthread_create(&threads[0], NULL, first, NULL);
    pthread_create(&threads[1], NULL, second, NULL);
    while (!is_ready) continue;
    pthread_kill(threads[0], SIGUSR1);
    for (int at = 0; at < 2; at++) pthread_join(threads[at], NULL);
    is_over = 1;
    pthread_join(pager, NULL);
    return nr_wrong != 0;
}
