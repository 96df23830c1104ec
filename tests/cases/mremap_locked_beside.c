// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M 24M
// A locked mapping grows where it lies, or is refused that, while another thread counts in its pages, which were out.
#include "check.h"
#define PAGES 1000
static char *memory;
static volatile int is_over;
static volatile long wrong;
static void *count(void *unused) {
    uint64_t counts[PAGES] = {0};
    unsigned seed = 1;
    while (!is_over) {
        size_t page = rand_r(&seed) % PAGES;
        volatile uint64_t *word = (volatile uint64_t *)(memory + page * PAGE);
        wrong += *word != counts[page];
        *word = ++counts[page];
    }
    return unused;
}
int main(void) {
    for (int may_grow = 0; may_grow < 2; may_grow++) {
        char *all = mmap(NULL, 2 * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        memory = mmap(all, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (may_grow) munmap(all + PAGES * PAGE, PAGES * PAGE);
        pthread_t thread;
        is_over = 0, wrong = 0;
        memset(memory, 0, PAGES * PAGE);
        CHECK(pthread_create(&thread, NULL, count, NULL) == 0, "thread");
        for (int round = 0; round < 60; round++) {
            munlock(memory, PAGES * PAGE);
            madvise(memory, PAGES * PAGE, MADV_PAGEOUT);
            CHECK(mlock2(memory, PAGES * PAGE, MLOCK_ONFAULT) == 0, "mlock2");
            void *at = mremap(memory, PAGES * PAGE, (PAGES + 1) * PAGE, 0);
            CHECK(may_grow ? at == memory : at == MAP_FAILED && errno == ENOMEM, "round %d: %p", round, at);
            if (at != MAP_FAILED) munmap(memory + PAGES * PAGE, PAGE);
        }
        is_over = 1;
        pthread_join(thread, NULL);
        CHECK(wrong == 0, "%ld pages", wrong);
    }
    DONE;
}
