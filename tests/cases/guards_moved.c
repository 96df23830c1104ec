// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Memory with guards in it, and memory with a read-only part, moves over other memory. Every page is then as the kernel
// leaves it, also at the second of two moves.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define NR 24576ul
#define NOWHERE (~0ul)

static char *const base = (char *)0x300000000000;
static unsigned long expected[NR];
static sigjmp_buf back;

static void on_signal(int number) { siglongjmp(back, number); }

static unsigned long value(size_t page) {
    if (sigsetjmp(back, 1)) return NOWHERE;
    return *(volatile unsigned long *)(base + page * PAGE);
}

static int move(size_t from, size_t count, size_t to) {
    if (mremap(base + from * PAGE, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + to * PAGE) == MAP_FAILED)
        return 0; /* before Linux 6.17 it is refused where the mappings are several */
    for (size_t page = 0; page < count; page++) {
        expected[to + page] = expected[from + page];
        expected[from + page] = NOWHERE;
    }
    return 1;
}

static int differs(const char *when) {
    for (size_t page = 0; page < NR; page++)
        if (value(page) != expected[page]) {
            printf("FAIL %s: page %zu is %lx, not %lx\n", when, page, value(page), expected[page]);
            return 1;
        }
    return 0;
}

int main(void) {
    signal(SIGSEGV, on_signal);
    if (mmap(base, NR * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != base) return 2;
    for (size_t page = 0; page < NR; page++) {
        expected[page] = page + 1;
        *(unsigned long *)(base + page * PAGE) = page + 1;
    }
    size_t guards = 14261;
    if (madvise(base + guards * PAGE, 33 * PAGE, 102 /* MADV_GUARD_INSTALL, Linux 6.13 */) == 0)
        for (size_t page = guards; page < guards + 33; page++) expected[page] = NOWHERE;
    if (mprotect(base + 20000 * PAGE, 70 * PAGE, PROT_READ)) return 2;
    if (!move(14150, 3492, 1466)) printf("guards stay\n");
    if (differs("guards")) return 1;
    if (!move(19500, 3000, 9001)) printf("a protected part stays\n");
    if (differs("protected part")) return 1;
    if (move(9001, 3000, 19500) && differs("back again")) return 1;
    printf("ok\n");
    return 0;
}
