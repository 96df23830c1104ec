// BUDGETS: 24M
// LIMIT_S: 60
// Mutexes that hand a waiter's priority on, in memory that leaves RAM all the time: the kernel writes to their words,
// and the C library ends the process if it cannot.
#include "cold.h"
#include <sched.h>
#include <time.h>

enum { NR = 4, SIZE = 16 * MIB };

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    volatile long count;
} *shared;
static char *memory;
static volatile int is_over;

static void *page_out(void *unused) {
    while (!is_over) {
        madvise(memory, SIZE, MADV_PAGEOUT);
        usleep(100);
    }
    return unused;
}

static void *work(void *by_condition) {
    for (int time = 0; time < 4000; time++) {
        int error = pthread_mutex_lock(&shared->mutex);
        CHECK(error == 0, "lock %d", error);
        shared->count++;
        if (time % 8 == 0) sched_yield();
        if (by_condition && time % 16 == 0) {
            struct timespec end;
            clock_gettime(CLOCK_REALTIME, &end);
            end.tv_nsec = (end.tv_nsec + 1000000) % 1000000000; // a past one, now and then
            error = pthread_cond_timedwait(&shared->condition, &shared->mutex, &end);
            CHECK(error == 0 || error == ETIMEDOUT, "wait %d", error);
        }
        if (time % 32 == 0) pthread_cond_signal(&shared->condition);
        error = pthread_mutex_unlock(&shared->mutex);
        CHECK(error == 0, "unlock %d", error);
    }
    return NULL;
}

int main(void) {
    start_engine();
    memory = anonymous(SIZE);
    memset(memory, 0, SIZE);
    shared = (void *)(memory + 5 * MIB);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&shared->mutex, &attributes);
    pthread_cond_init(&shared->condition, NULL);
    pthread_t threads[NR], pager;
    pthread_create(&pager, NULL, page_out, NULL);
    for (intptr_t at = 0; at < NR; at++) pthread_create(&threads[at], NULL, work, (void *)(at & 1));
    for (int at = 0; at < NR; at++) pthread_join(threads[at], NULL);
    is_over = 1;
    pthread_join(pager, NULL);
    CHECK(shared->count == NR * 4000, "%ld", shared->count);
    return nr_wrong != 0;
}
