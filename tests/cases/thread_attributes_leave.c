// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// Threads are created with attributes, and a place for the thread, in memory that another thread sends out all the
// time: plain attributes, a size, CPUs, a signal mask.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

#include "check.h"

#define LEN (4ul << 20)

static char *memory;
static volatile int is_over;

static void *send_out(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!is_over) madvise(memory, LEN, MADV_PAGEOUT);
    return unused;
}

static void *give_back(void *argument) {
    return argument;
}

int main(void) {
    memory = anonymous(LEN);
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send_out, NULL) == 0, "sender");
    for (int kind = 0; kind < 4; kind++) {
        pthread_attr_t *attributes = (void *)(memory + kind * 8192 + 4096 - 24); // across a border
        pthread_t *place = (void *)(memory + (1 << 20) + kind * 4096);
        pthread_attr_init(attributes);
        cpu_set_t cpus;
        sched_getaffinity(0, sizeof cpus, &cpus);
        sigset_t none;
        sigemptyset(&none);
        if (kind == 1) pthread_attr_setstacksize(attributes, 256 << 10);
        if (kind == 2) pthread_attr_setaffinity_np(attributes, sizeof cpus, &cpus);
        if (kind == 3) pthread_attr_setsigmask_np(attributes, &none);
        for (intptr_t i = 0; i < 1000; i++) {
            void *result = NULL;
            CHECK(pthread_create(place, attributes, give_back, (void *)i) == 0, "%d: thread %ld", kind, (long)i);
            CHECK(pthread_join(*place, &result) == 0 && result == (void *)i, "%d: result %p", kind, result);
        }
        pthread_attr_destroy(attributes);
    }
    is_over = 1;
    pthread_join(sender, NULL);
    DONE;
}
