// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Many threads, whose stacks are in memory of the program's, give advice at once, over and over, while memory is short.
#include "cold.h"
#define NR_THREADS 48
#define LEN (256ul << 10)
static pthread_barrier_t all;
static char *memory;
static void *advise(void *index) {
    char *own = memory + (uintptr_t)index * LEN;
    for (int round = 0; round < 30; round++) {
        pthread_barrier_wait(&all);
        CHECK(madvise(own, LEN, round % 2 ? MADV_PAGEOUT : MADV_COLD) == 0, "madvise");
        for (size_t at = 0; at < LEN; at += PAGE) CHECK(own[at] == (char)(at / PAGE), "page %zu", at / PAGE);
    }
    return 0;
}
int main(void) {
    start_engine();
    memory = anonymous(NR_THREADS * LEN);
    char *stacks = anonymous(NR_THREADS * LEN);
    for (size_t at = 0; at < NR_THREADS * LEN; at += PAGE) memory[at] = at % LEN / PAGE;
    pthread_barrier_init(&all, 0, NR_THREADS);
    pthread_t threads[NR_THREADS];
    for (uintptr_t index = 0; index < NR_THREADS; index++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stacks + index * LEN, LEN);
        CHECK(pthread_create(&threads[index], &attributes, advise, (void *)index) == 0, "thread %zu", index);
    }
    for (int index = 0; index < NR_THREADS; index++) pthread_join(threads[index], 0);
    DONE;
}
