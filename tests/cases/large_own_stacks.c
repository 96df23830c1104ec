// BUDGETS: 24M 96M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// Threads on stacks that the program supplies, each larger than the budget: most of one is never touched, and what was
// may leave RAM.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(cond) do { if (!(cond)) { printf("line %d: %s\n", __LINE__, #cond); fflush(stdout); _Exit(1); } } while (0)
enum { NR_THREADS = 4, FRAME = 4000 };

static const size_t size = 256 << 20;
static pthread_barrier_t all;

/* Each frame is as it was left, once those below have returned. */
static size_t descend(size_t depth) {
    volatile unsigned char frame[FRAME];
    memset((unsigned char *)frame, (int)(depth % 251), sizeof frame);
    size_t deeper = depth == 0 ? 0 : descend(depth - 1);
    for (size_t at = 0; at < sizeof frame; at += 500) CHECK(frame[at] == depth % 251);
    return deeper + 1;
}

static void *shallow(void *unused) {
    (void)unused;
    CHECK(descend(20) == 21);
    pthread_barrier_wait(&all);
    CHECK(descend(20) == 21);
    return NULL;
}

static void *deep(void *unused) {
    (void)unused;
    CHECK(descend(12000) == 12001); /* 48 MB */
    return NULL;
}

static pthread_t begun(void *(*body)(void *)) {
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(stack != MAP_FAILED);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, size) == 0);
    CHECK(pthread_create(&thread, &attributes, body, NULL) == 0);
    return thread;
}

int main(void) {
    pthread_t threads[NR_THREADS];
    CHECK(pthread_barrier_init(&all, NULL, NR_THREADS) == 0);
    for (int number = 0; number < NR_THREADS; number++) threads[number] = begun(shallow);
    for (int number = 0; number < NR_THREADS; number++) CHECK(pthread_join(threads[number], NULL) == 0);
    for (int round = 0; round < 2; round++) CHECK(pthread_join(begun(deep), NULL) == 0);
    puts("done");
    return 0;
}
