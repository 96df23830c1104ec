/* mmap and its kin on managed memory. */
#include "check.h"
#include <setjmp.h>


static void grow(void) {
    size_t len = 3 * MIB;
    char *at = map(len);
    fill(at, len, 1);
    char *wall = map(FOLIO); /* may block growing in place */
    while (len < 80 * MIB) {
        size_t more = len + 7 * MIB / 2 / 4096 * 4096;
        at = mremap(at, len, more, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED);
        CHECK(holds(at, len, 1) && is_zero(at + len, more - len));
        fill(at, more, 1);
        len = more;
    }
    CHECK(mremap(at, len, 5 * MIB, 0) == at);
    CHECK(holds(at, 5 * MIB, 1));
    CHECK(munmap(at, 5 * MIB) == 0 && munmap(wall, FOLIO) == 0);
}

static void drop(void) {
    size_t len = 64 * MIB;
    char *at = map(len);
    fill(at, len, 2);
    CHECK(madvise(at + 12288, 20 * MIB, MADV_DONTNEED) == 0);
    CHECK(holds(at, 12288, 2) && is_zero(at + 12288, 20 * MIB));
    CHECK(((uint64_t *)at)[(12288 + 20 * MIB) / 8] == word_at(2, (12288 + 20 * MIB) / 8));
    CHECK(madvise(at + 40 * MIB, 4096, MADV_DONTNEED) == 0);
    CHECK(is_zero(at + 40 * MIB, 4096));
    CHECK(((uint64_t *)at)[(40 * MIB + 4096) / 8] == word_at(2, (40 * MIB + 4096) / 8));
    /* A fixed anonymous mapping over it reads as zeros, too. */
    CHECK(mmap(at + 50 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          at + 50 * MIB);
    CHECK(is_zero(at + 50 * MIB, MIB));
    CHECK(((uint64_t *)at)[51 * MIB / 8] == word_at(2, 51 * MIB / 8));
    /* It also replaces pages that were not writable. */
    CHECK(mprotect(at + 48 * MIB, 65536, PROT_READ) == 0 && mprotect(at + 48 * MIB, 4096, PROT_NONE) == 0);
    CHECK(mmap(at + 48 * MIB, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          at + 48 * MIB);
    CHECK(is_zero(at + 48 * MIB, 65536));
    at[48 * MIB] = 1;
    CHECK(((uint64_t *)at)[(48 * MIB + 65536) / 8] == word_at(2, (48 * MIB + 65536) / 8));
    /* None of this advice changes content. */
    int kinds[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLD,
                   MADV_DONTDUMP};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        CHECK(madvise(at + 52 * MIB, 12 * MIB, kinds[i]) == 0);
    for (size_t i = 52 * MIB / 8; i < len / 8; i++)
        CHECK(((uint64_t *)at)[i] == word_at(2, i));
    CHECK(munmap(at, len) == 0);
}

static void unmap_parts(void) {
    size_t len = 48 * MIB;
    char *at = map(len);
    fill(at, len, 3);
    for (size_t from = MIB; from + 5 * MIB < len; from += 8 * MIB)
        CHECK(munmap(at + from, 5 * MIB) == 0);
    for (size_t from = 0; from < len; from += 8 * MIB) {
        for (size_t i = from / 8; i < (from + MIB) / 8; i++)
            CHECK(((uint64_t *)at)[i] == word_at(3, i));
        for (size_t i = (from + 6 * MIB) / 8; i < (from + 8 * MIB) / 8; i++)
            CHECK(((uint64_t *)at)[i] == word_at(3, i));
    }
    for (size_t from = 0; from < len; from += 8 * MIB) {
        CHECK(munmap(at + from, MIB) == 0);
        CHECK(munmap(at + from + 6 * MIB, 2 * MIB) == 0);
    }
    /* Many mappings of odd lengths, one after the other: their addresses are reused. */
    for (int round = 0; round < 300; round++) {
        char *odd = map(3 * MIB + 4096);
        CHECK(is_zero(odd, 4096) && is_zero(odd + 3 * MIB, 4096));
        odd[3 * MIB] = 1;
        CHECK(munmap(odd, 3 * MIB + 4096) == 0);
    }
}

static sigjmp_buf back;
static void on_segv(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static int can_write(char *at) {
    if (sigsetjmp(back, 1))
        return 0;
    *(volatile char *)at = *(volatile char *)at;
    return 1;
}

static void protect(void) {
    size_t len = 64 * MIB;
    char *at = map(len);
    fill(at, len, 4);
    signal(SIGSEGV, on_segv);
    CHECK(mprotect(at + 3 * MIB, 4096, PROT_NONE) == 0);
    CHECK(mprotect(at + 10 * MIB, 3 * MIB, PROT_READ) == 0);
    CHECK(!can_write(at + 3 * MIB) && can_write(at + 3 * MIB + 4096));
    CHECK(!can_write(at + 10 * MIB) && !can_write(at + 13 * MIB - 1) && can_write(at + 13 * MIB));
    for (int round = 0; round < 2; round++) /* everything around them is swapped out and in */
        for (size_t offset = 16 * MIB; offset < len; offset += 4096)
            at[offset] = at[offset] + 0;
    CHECK(!can_write(at + 3 * MIB) && !can_write(at + 12 * MIB));
    CHECK(mprotect(at, len, PROT_READ | PROT_WRITE) == 0);
    CHECK(can_write(at + 3 * MIB) && can_write(at + 12 * MIB));
    CHECK(holds(at, len, 4));
    CHECK(mprotect(at + 20 * MIB, 4096, PROT_NONE) == 0);
    CHECK(madvise(at + 20 * MIB - 4096, 12288, MADV_DONTNEED) == 0);
    CHECK(!can_write(at + 20 * MIB));
    CHECK(mlock(at + 30 * MIB, 4096) == 0 && munlock(at + 30 * MIB, 4096) == 0);
    CHECK(munmap(at, len) == 0);
    signal(SIGSEGV, SIG_DFL);
}

int main(void) {
    grow();
    drop();
    unmap_parts();
    protect();
    return 0;
}
