// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 24M
/* io_uring: a program that no longer has a ring mapped still makes calls on it. The kernel needs no mapping. */
#define _GNU_SOURCE
#include "uring.h"

static long enter(int count) { return syscall(SYS_io_uring_enter, ring, count, 0, 0, 0, 0); }
static void *page_of(void *at) { return (void *)((long)at & ~4095l); }

static void unmap_or_replace(void *at, int replaces) {
    if (!replaces) CHECK(munmap(page_of(at), 4096) == 0);
    else CHECK(mmap(page_of(at), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page_of(at));
}

int main(void) {
    char *memory = mmap(NULL, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 64 * M);
    for (int replaces = 0; replaces < 2; replaces++) {
        set_up();
        next(IORING_OP_NOP, -1, NULL, 0);
        unmap_or_replace(cq_tail, replaces);
        CHECK(enter(1) == 1);
        next(IORING_OP_NOP, -1, NULL, 0);
        unmap_or_replace(sqes, replaces);
        CHECK(enter(1) == 1);
        array[*sq_tail & *sq_mask] = 0; // an entry that the kernel still has
        __atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
        unmap_or_replace(sq_tail, replaces);
        CHECK(enter(1) == 1);
        close(ring);
    }
    puts("ok");
    return 0;
}
