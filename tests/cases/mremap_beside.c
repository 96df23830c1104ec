// RUN: gcc -O2 -g -pthread -o mremap_beside mremap_beside.c && ./mremap_beside    EXPECT: exit 0
// BUDGETS: 16M 160M
// MAPPERS: move copy
// LIMIT_S: 120
/* Memory is moved to and fro (MREMAP_DONTUNMAP) while other threads read both places. They find the number of the page,
   or zero where it is not; and nothing is lost. The content is in RAM, on standby and on the device when it moves. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define PAGES 5000ul
#define ROUNDS 14
#define READERS 2
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static char *place[2];
static volatile int is_over;

static void fail(const char *why, size_t page, uint64_t word) {
    printf("FAIL %s: page %zu, %lx\n", why, page, word);
    exit(1);
}

static uint64_t number(size_t page) { return page * 0x9e3779b97f4a7c15ull | 1; }

static void *read_all(void *argument) {
    uint64_t state = (uint64_t)argument;
    while (!is_over) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        size_t first = (state >> 33) % PAGES, which = state >> 63;
        for (size_t page = first; page < first + 40 && page < PAGES; page++) {
            uint64_t word = *(volatile uint64_t *)(place[which] + page * PAGE);
            if (word && word != number(page)) fail("another page's number", page, word);
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[READERS];
    size_t len = PAGES * PAGE;
    /* The same place in a block of 2 MiB, and another one. */
    for (int i = 0; i < 2; i++) {
        place[i] = (char *)0x100000000000 + (1ul << 30) * (i + 1) + i * 37 * PAGE;
        if (mmap(place[i], len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != place[i])
            fail("mmap", 0, errno);
    }
    for (size_t page = 0; page < PAGES; page++) *(uint64_t *)(place[0] + page * PAGE) = number(page);
    for (size_t i = 0; i < READERS; i++) pthread_create(&threads[i], NULL, read_all, (void *)(i + 1));
    int at = 0;
    for (int round = 0; round < ROUNDS; round++) {
        /* The whole, or a part there and back. */
        size_t first = round % 3 ? (round * 977) % PAGES : 0, nr = first ? 1 + (round * 331) % (PAGES - first) : PAGES;
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, times = first ? 2 : 1;
        for (int i = 0; i < times; i++) {
            char *from = place[at ^ i] + first * PAGE, *to = place[at ^ i ^ 1] + first * PAGE;
            while (mremap(from, nr * PAGE, nr * PAGE, flags, to) != to)
                if (errno != EINTR) fail("mremap", first, errno);
        }
        at ^= times & 1;
        for (size_t page = 0; page < PAGES; page++) {
            uint64_t word = *(uint64_t *)(place[at] + page * PAGE);
            if (word != number(page)) fail("lost", page, word);
        }
    }
    is_over = 1;
    for (int i = 0; i < READERS; i++) pthread_join(threads[i], NULL);
    printf("ok\n");
    return 0;
}
