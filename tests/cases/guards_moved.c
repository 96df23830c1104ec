// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M 160M
// Memory with guards in it, and memory with a read-only part, moves over other memory. Every page is then as the kernel
// leaves it, also at the second of two moves. Memory with guards grows where it lies, and by a move; what has grown
// stays when the guards go.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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

static int grows(void) {
    enum { LEN = 3000, MORE = 500 };
    for (int round = 0; round < 4; round++) {
        size_t guards = round & 1 ? LEN - 2 : LEN / 2; /* at the end, or within */
        char *at = mmap(NULL, (LEN + MORE) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t page = 0; page < LEN; page++) *(unsigned long *)(at + page * PAGE) = page + 1;
        if (munmap(at + LEN * PAGE, MORE * PAGE) || madvise(at + guards * PAGE, 2 * PAGE, 102)) return 0;
        char *grown = mremap(at, LEN * PAGE, (LEN + MORE) * PAGE, round & 2 ? MREMAP_MAYMOVE | MREMAP_FIXED : 0, base);
        if (grown == MAP_FAILED) { perror("FAIL growth with guards"); return 1; }
        for (size_t page = LEN; page < LEN + MORE; page++) *(unsigned long *)(grown + page * PAGE) = page + 1;
        if (madvise(grown, (LEN + MORE) * PAGE, 103 /* MADV_GUARD_REMOVE */)) { perror("FAIL removal"); return 1; }
        for (size_t page = 0; page < LEN + MORE; page++) {
            int was_guard = page >= guards && page < guards + 2;
            unsigned long is = *(unsigned long *)(grown + page * PAGE);
            if (is != (was_guard ? 0 : page + 1)) { printf("FAIL round %d: page %zu is %lx\n", round, page, is); return 1; }
        }
        munmap(grown, (LEN + MORE) * PAGE);
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
    if (munmap(base, NR * PAGE) || grows()) return 1;
    for (int advice = MADV_DONTFORK; advice <= MADV_WIPEONFORK; advice += MADV_WIPEONFORK - MADV_DONTFORK) {
        char *at = mmap(NULL, 4096 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(at, 7, 4096 * PAGE);
        if (madvise(at + 2048 * PAGE, 2048 * PAGE, advice)) return 2;
        if (mremap(at, 4096 * PAGE, 1024 * PAGE, MREMAP_MAYMOVE) != at || at[1023 * PAGE] != 7) {
            perror("FAIL shrinking across advice on children");
            return 1;
        }
        munmap(at, 1024 * PAGE);
    }
    printf("ok\n");
    return 0;
}
