// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* A thread started by a system call, with a block of thread-local storage that the program has made: the C library has
 * no record of it. It touches memory and makes a memory call. */
#include "check.h"
#include <sched.h>
enum { BYTES = 64 << 20, OTHER_BYTES = 1 << 20 };
static char *memory;
static volatile int nr_bad, is_over;

static int run(void *unused) {
    (void)unused;
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < BYTES; at += PAGE) nr_bad += *(volatile uint64_t *)(memory + at) != at + 1;
    nr_bad += mprotect(memory, PAGE, PROT_READ | PROT_WRITE) != 0;
    is_over = 1;
    for (;;) __asm__ volatile("syscall" ::"a"(SYS_exit), "D"(0) : "rcx", "r11", "memory");
}

int main(void) {
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    memory = anonymous(BYTES);
    fill(memory, BYTES);
    char *storage = anonymous(OTHER_BYTES), *stack = anonymous(OTHER_BYTES);
    memset(storage, 0, OTHER_BYTES), memset(stack, 0, OTHER_BYTES);
    CHECK(mlock(storage, OTHER_BYTES) == 0 && mlock(stack, OTHER_BYTES) == 0, "mlock");
    void **record = (void **)(storage + OTHER_BYTES / 2);
    record[0] = record;
    CHECK(clone(run, stack + OTHER_BYTES - 64, flags, NULL, NULL, record, NULL) > 0, "clone");
    for (int i = 0; i < 1000 && !is_over; i++) usleep(20000);
    CHECK(is_over && !nr_bad, "over %d, wrong %d", is_over, nr_bad);
    DONE;
}
