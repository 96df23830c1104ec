// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M 32M
/* Threads on stacks of 16 KiB, the smallest that there may be, have room for what they do: a third of it is their own,
 * and the library needs little beside the C library. Of stacks that the program supplies, many fit into the budget. */
#include "check.h"

enum { LEN = 16 << 10, OWN = 5 << 10, NR_BLOCKS = 50, BLOCK = 70000, NR_WAITING = 100, SUPPLIED = 256 << 10 };
static pthread_barrier_t all_there;

static void *works(void *unused) {
    char own[OWN];
    memset(own, 1, sizeof own);
    char *blocks[NR_BLOCKS];
    for (int i = 0; i < NR_BLOCKS; i++) blocks[i] = malloc(BLOCK), blocks[i][BLOCK - 1] = own[i];
    for (int i = 0; i < NR_BLOCKS; i++) free(blocks[i]);
    char *mapped = anonymous(1 << 20);
    memset(mapped, own[7], 1 << 20);
    munmap(mapped, 1 << 20);
    return unused;
}

static void *makes(void *unused) {
    char own[OWN];
    memset(own, 1, sizeof own);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, LEN);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        const pthread_attr_t *with = i ? &attributes : NULL;
        CHECK(pthread_create(&thread, with, works, NULL) == 0 && pthread_join(thread, NULL) == 0, "made by %d", own[i]);
    }
    return unused;
}

static void *waits(void *unused) {
    pthread_barrier_wait(&all_there);
    return unused;
}

int main(void) {
    pthread_attr_t attributes;
    pthread_t threads[NR_WAITING];
    for (int round = 0; round < 10; round++) {
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, LEN);
        CHECK(pthread_create(&threads[0], &attributes, works, NULL) == 0 && pthread_join(threads[0], NULL) == 0, "libc's");
        char *below = anonymous(LEN + (64 << 10)), *stack = below + (64 << 10);
        memset(below, 0x5a, 64 << 10);
        pthread_attr_setstack(&attributes, stack, LEN);
        CHECK(pthread_create(&threads[0], &attributes, works, NULL) == 0 && pthread_join(threads[0], NULL) == 0, "its own");
        size_t nr_right = 0;
        for (size_t at = 0; at < 64 << 10; at++) nr_right += below[at] == 0x5a;
        CHECK(nr_right == 64 << 10, "%zu bytes below the stack were changed", (64ul << 10) - nr_right);
        munmap(below, LEN + (64 << 10));
    }
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, LEN);
    CHECK(pthread_setattr_default_np(&attributes) == 0, "a small default");
    CHECK(pthread_create(&threads[0], NULL, works, NULL) == 0 && pthread_join(threads[0], NULL) == 0, "on the default");
    CHECK(pthread_create(&threads[0], NULL, makes, NULL) == 0 && pthread_join(threads[0], NULL) == 0, "that makes others");
    pthread_barrier_init(&all_there, NULL, NR_WAITING + 1);
    for (int i = 0; i < NR_WAITING; i++) {
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, anonymous(SUPPLIED), SUPPLIED);
        CHECK(pthread_create(&threads[i], &attributes, waits, NULL) == 0, "thread %d", i);
    }
    char *memory = anonymous(24 << 20);
    fill(memory, 24 << 20);
    pthread_barrier_wait(&all_there);
    for (int i = 0; i < NR_WAITING; i++) CHECK(pthread_join(threads[i], NULL) == 0, "joining %d", i);
    CHECK(wrong_pages(memory, 24 << 20) == 0, "memory");
    DONE;
}
