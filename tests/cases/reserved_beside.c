// EXPECT: exit 0, last line "ok"
// BUDGETS: 64M
// ARGS: unmap
/* One thread makes reserved memory usable. Another has reserved memory in the same 2 MiB, which it commits by mmap with
 * MAP_FIXED, or unmaps and maps anew, and writes. Nothing of that is lost. */
#include "check.h"
#include <time.h>

enum { SECONDS = 3, LEN = 16 << 10, ROUNDS = 30 };
static char *base;
static volatile int is_over, unmaps;
static const int anonymous_flags = MAP_PRIVATE | MAP_ANONYMOUS;

static void *opens(void *unused) {
    const size_t len = (2 << 20) + (64 << 10);
    while (!is_over) {
        char *reserved = mmap(base, len, PROT_NONE, anonymous_flags, -1, 0);
        CHECK(mprotect(reserved, len, PROT_READ | PROT_WRITE) == 0, "mprotect");
        CHECK(munmap(reserved, len) == 0, "munmap");
    }
    return unused;
}

static void *commits(void *unused) {
    char *at = base + (2 << 20) + (128 << 10);
    for (size_t value = 1; !is_over; value++) {
        const int fixed = unmaps ? anonymous_flags : anonymous_flags | MAP_FIXED;
        CHECK(mmap(at, LEN, PROT_NONE, fixed, -1, 0) == at, "reserving");
        for (volatile int turn = 0; turn < (int)(value % 7) * 30; turn++) {}
        if (unmaps) munmap(at, LEN);
        char *mine = mmap(at, LEN, PROT_READ | PROT_WRITE, fixed, -1, 0);
        for (size_t i = 0; i < LEN; i += 8) *(size_t *)(mine + i) = value + i;
        for (int round = 0; round < ROUNDS; round++)
            for (size_t i = 0; i < LEN; i += 512)
                CHECK(*(volatile size_t *)(mine + i) == value + i, "word %zu", i);
        if (unmaps) munmap(mine, LEN);
    }
    return unused;
}

int main(int argc, char **argv) {
    (void)argv;
    unmaps = argc > 1;
    base = (char *)0x600000000000;
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, opens, NULL) == 0, "a thread");
    CHECK(pthread_create(&threads[1], NULL, commits, NULL) == 0, "a thread");
    sleep(SECONDS);
    is_over = 1;
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
    DONE;
}
