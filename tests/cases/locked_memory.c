// RUN: gcc -O2 -o locked_memory locked_memory.c && ./locked_memory    EXPECT: exit 0
// BUDGETS: 64M 160M
/* Locked memory is freed, grown, moved over, dropped and advised as any other; a locked page here and there does not use
   the budget up. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s\n", __LINE__, strerror(errno)); exit(1); } } while (0)
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
static char *map(size_t n) {
    char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}
static int holds(const char *p, size_t n, int c) {
    for (size_t i = 0; i < n; i += 512)
        if (p[i] != c)
            return 0;
    return 1;
}
int main(void) {
    char *p = malloc(16 * M);
    memset(p, 1, 16 * M);
    CHECK(mlock(p, 4096) == 0);
    free(p);
    p = malloc(16 * M);
    memset(p, 2, 16 * M);
    CHECK(mlock(p + M, 4096) == 0);
    char *grown = realloc(p, 32 * M);
    CHECK(grown && holds(grown, 16 * M, 2));
    free(grown);
    char *q = map(4 * M);
    memset(q, 3, 4 * M);
    CHECK(mlock(q, 4096) == 0);
    CHECK(madvise(q, 4 * M, MADV_FREE) == -1 && errno == EINVAL);
    CHECK(madvise(q, 4 * M, MADV_DONTNEED) == -1 && errno == EINVAL);
    if (madvise(q, 4 * M, MADV_DONTNEED_LOCKED) == 0)
        CHECK(holds(q, 4 * M, 0));
    memset(q, 4, 4 * M);
    CHECK(munmap(q, 4 * M) == 0);
    /* The target lies in a block of which another part is locked. */
    char *r = map(8 * M);
    memset(r, 5, 8 * M);
    CHECK(mlock(r, 4096) == 0);
    CHECK(mremap(r + 4 * M, 65536, 65536, MREMAP_MAYMOVE | MREMAP_FIXED, r + M) == r + M);
    CHECK(holds(r, 4 * M, 5) && munmap(r, 8 * M) == 0);
    size_t n = 300 * M;
    char *s = map(n);
    memset(s, 6, n);
    for (size_t i = 0; i < 140; i++)
        (void)!mlock(s + i * 2 * M, 4096); /* may be more than can be locked */
    memset(s, 7, n);
    CHECK(holds(s, n, 7));
    return 0;
}
