// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
// MAPPERS: move copy
// An mremap that fails for lack of addresses, while other threads use the memory and it leaves RAM.
#include "check.h"
#define LEN (4 * MIB)
static char *memory;
static volatile int is_over;
static long nr_used[2];
static void *use(void *which) {
    unsigned seed = (uintptr_t)which * 7919 + 1;
    while (!is_over) {
        size_t page = (seed = seed * 1103515245 + 12345) >> 8;
        volatile uint64_t *words = (volatile uint64_t *)(memory + page % (LEN / PAGE) * PAGE);
        CHECK(words[0] == page % (LEN / PAGE) * PAGE + 1, "page %zu", page % (LEN / PAGE));
        words[1 + (uintptr_t)which]++;
        nr_used[(uintptr_t)which]++;
        for (volatile int i = seed >> 20; i > 0; i--) continue;
    }
    return NULL;
}
static void *advise(void *unused) {
    while (!is_over) madvise(memory, LEN, MADV_PAGEOUT), usleep(300);
    return unused;
}
int main(void) {
    pthread_t threads[3];
    char *other = anonymous(48 * MIB);
    memset(other, 1, 48 * MIB);
    memory = anonymous(LEN);
    fill(memory, LEN);
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i < 2 ? use : advise, (void *)i);
    for (int i = 0; i < 2000; i++) {
        CHECK(mremap(memory, LEN, 100ul << 40, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM, "mremap");
        usleep(1000);
    }
    is_over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int which = 0; which < 2; which++) {
        long sum = 0;
        for (size_t at = 0; at < LEN; at += PAGE) sum += ((uint64_t *)(memory + at))[1 + which];
        CHECK(sum == nr_used[which], "thread %d: %ld of %ld", which, sum, nr_used[which]);
    }
    DONE;
}
