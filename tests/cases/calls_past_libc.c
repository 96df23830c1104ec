// EXPECT: exit 0, last line "ok"
// BUDGETS: 96M
// Memory calls by an inline `syscall` instruction: madvise of each kind that drops, munmap, mmap and mremap over what
// is there, mprotect. What is read afterwards is what the kernel shows: zeros, or what was there, and no old byte.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define M (1ul << 20)
#define SIZE (192 * M)
#define FAIL(...) do { printf("FAIL " __VA_ARGS__); puts(""); exit(1); } while (0)

static long inline_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
}

static unsigned char *fresh(unsigned char fill) {
    unsigned char *p = mmap(0, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) FAIL("mmap");
    for (size_t i = 0; i < SIZE; i += 4096) memset(p + i, fill, 4096);
    return p;
}

static void all_are(const unsigned char *p, size_t len, int want, const char *what) {
    for (size_t i = 0; i < len; i += 1024)
        if (p[i] != want) FAIL("%s: byte %#zx is %d, not %d", what, i, p[i], want);
}

/* Each part is dropped by the call: the first has left RAM, the last is in RAM. */
static void dropped(int advice, const char *what) {
    unsigned char *p = fresh(7);
    size_t parts[][2] = {{M, 4096}, {3 * M, 2 * M}, {9 * M + 4096, 5 * M}, {SIZE - 7 * M, 65536}, {SIZE - 4 * M, 4 * M}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        long got = inline_call(SYS_madvise, (long)p + parts[i][0], parts[i][1], advice, 0, 0, 0);
        if (got) FAIL("%s: %ld", what, got);
    }
    for (size_t i = 0; i < SIZE; i += 1024) {
        int want = 7;
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (i >= parts[k][0] && i < parts[k][0] + parts[k][1]) want = 0;
        if (advice == MADV_FREE && p[i] == 7) continue; // it may come later
        if (p[i] != want) FAIL("%s: byte %#zx is %d, not %d", what, i, p[i], want);
    }
    memset(p, 8, SIZE);
    all_are(p, SIZE, 8, what);
    munmap(p, SIZE);
}

static void unmapped(void) {
    unsigned char *p = fresh(5);
    if (inline_call(SYS_munmap, (long)p, SIZE, 0, 0, 0, 0)) FAIL("munmap");
    /* The kernel gives the same addresses again, by calls of both kinds. */
    unsigned char *q = mmap(p, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    all_are(q, SIZE, 0, "mapped again after an inline munmap");
    memset(q, 6, SIZE);
    if (inline_call(SYS_munmap, (long)q + 8 * M, 4 * M, 0, 0, 0, 0)) FAIL("munmap of a part");
    unsigned char *r = (void *)inline_call(SYS_mmap, (long)q + 8 * M, 4 * M, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r != q + 8 * M) FAIL("the hole was not used");
    all_are(r, 4 * M, 0, "mapped inline into a hole");
    memset(r, 9, 4 * M);
    unsigned char *other = fresh(1);
    all_are(r, 4 * M, 9, "in the hole");
    all_are(q, 8 * M, 6, "before the hole");
    all_are(q + 12 * M, SIZE - 12 * M, 6, "behind the hole");
    munmap(other, SIZE), munmap(q, SIZE);
}

static void mapped_over(void) {
    unsigned char *p = fresh(5);
    long flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (inline_call(SYS_mmap, (long)p + 5 * M, 6 * M, 3, flags, -1, 0) != (long)p + 5 * M) FAIL("mmap over");
    if (inline_call(SYS_mmap, (long)p + SIZE - M, 8192, 3, flags, -1, 0) != (long)p + SIZE - M) FAIL("mmap over");
    all_are(p + 5 * M, 6 * M, 0, "mapped over");
    all_are(p + SIZE - M, 8192, 0, "mapped over a little");
    memset(p + 5 * M, 4, 6 * M);
    unsigned char *other = fresh(1);
    all_are(p, 5 * M, 5, "before");
    all_are(p + 5 * M, 6 * M, 4, "what was mapped over");
    all_are(p + 11 * M, SIZE - 12 * M, 5, "behind");
    munmap(other, SIZE), munmap(p, SIZE);
}

static void moved(void) {
    unsigned char *p = fresh(3), *q = fresh(2);
    if (inline_call(SYS_mremap, (long)p, 8 * M, 8 * M, MREMAP_MAYMOVE | MREMAP_FIXED, (long)q + 4 * M, 0) != (long)q + 4 * M)
        FAIL("mremap");
    all_are(q + 4 * M, 8 * M, 3, "moved");
    all_are(q, 4 * M, 2, "before what was moved");
    all_are(q + 12 * M, SIZE - 12 * M, 2, "behind what was moved");
    if (inline_call(SYS_mprotect, (long)q, SIZE, 1, 0, 0, 0)) FAIL("mprotect");
    unsigned char *other = fresh(1);
    all_are(q + 4 * M, 8 * M, 3, "read-only");
    if (inline_call(SYS_mprotect, (long)q, SIZE, 3, 0, 0, 0)) FAIL("mprotect");
    memset(q, 4, SIZE);
    munmap(other, SIZE), munmap(p + 8 * M, SIZE - 8 * M), munmap(q, SIZE);
}

static void *in_a_thread(void *unused) {
    dropped(MADV_DONTNEED, "MADV_DONTNEED, in a thread");
    return unused;
}

int main(void) {
    dropped(MADV_DONTNEED, "MADV_DONTNEED");
    dropped(MADV_FREE, "MADV_FREE");
    dropped(24, "MADV_DONTNEED_LOCKED");
    unmapped(), mapped_over(), moved();
    pthread_t thread;
    pthread_create(&thread, 0, in_a_thread, 0);
    pthread_join(thread, 0);
    puts("ok");
    return 0;
}
