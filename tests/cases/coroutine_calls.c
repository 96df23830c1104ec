// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
/* Coroutines on stacks of the program's make calls for which swap takes its locks, while the part of their stack that
 * such a call needs is not in RAM, from each depth on. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { NR_KINDS = 5, STEP = 64, DEEPEST = 8192, NR = NR_KINDS * DEEPEST / STEP };
enum { PAGE = 4096, APART = 128 << 10, BELOW = 64 << 10, FRAME = 512, OTHERS = 48 << 20 };

static ucontext_t back;
static char *stacks, *contexts, *others;
static int ends[2], nr_wrong;

static ucontext_t *context(int i) { return (ucontext_t *)(contexts + (size_t)i * PAGE); }

static char *map(size_t len) {
    char *new = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED) exit(2);
    return new;
}

/* What else is in RAM leaves it. */
static void use_other_memory(void) {
    for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
}

static void run(int i) {
    char *page = (char *)context(i) + PAGE / 2;
    for (;;) {
        switch (i % NR_KINDS) {
        case 1: nr_wrong += write(ends[1], page, 100) != 100; break;
        case 2: nr_wrong += madvise(stacks + (size_t)i * APART, PAGE, MADV_DONTNEED) != 0; break;
        case 3: nr_wrong += munmap(stacks + (size_t)i * APART, PAGE) != 0; break;
        case 4: nr_wrong += mremap(stacks + (size_t)i * APART, PAGE, PAGE, 0) == MAP_FAILED; break;
        }
        swapcontext(context(i), &back);
    }
}

int main(void) {
    stacks = map((size_t)NR * APART + BELOW), contexts = map((size_t)NR * PAGE), others = map(OTHERS);
    stacks = (char *)(((uintptr_t)stacks + BELOW - 1) / BELOW * BELOW);
    madvise(stacks, (size_t)NR * APART, MADV_NOHUGEPAGE);
    if (pipe(ends)) return 2;
    for (int i = 0; i < NR; i++) {
        getcontext(context(i));
        context(i)->uc_stack.ss_sp = stacks + (size_t)i * APART;
        context(i)->uc_stack.ss_size = BELOW + FRAME + i / NR_KINDS * STEP;
        makecontext(context(i), (void (*)(void))run, 1, i);
        stacks[(size_t)i * APART] = 1;
    }
    for (int round = 0; round < 3; round++) {
        use_other_memory();
        for (int i = 0; i < NR; i++) {
            char got[100];
            swapcontext(&back, context(i));
            if (i % NR_KINDS == 1) nr_wrong += read(ends[0], got, sizeof got) != sizeof got;
        }
    }
    puts(nr_wrong ? "wrong" : "ok");
    return nr_wrong != 0;
}
