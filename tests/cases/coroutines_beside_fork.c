// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* Coroutines on stacks of the program's map, unmap and allocate, while another thread forks. The part of their stack
 * that such a call needs is not in RAM, from each depth on, so some fault while they hold what a fork waits for. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { NR_KINDS = 4, STEP = 64, DEEPEST = 8192, NR = NR_KINDS * DEEPEST / STEP };
enum { PAGE = 4096, APART = 128 << 10, BELOW = 64 << 10, FRAME = 512, OTHERS = 48 << 20, LARGE = 9 << 20 };

static ucontext_t back;
static char *stacks, *contexts, *others;
static atomic_int is_over, nr_wrong, nr_forks;

static ucontext_t *context(int i) { return (ucontext_t *)(contexts + (size_t)i * PAGE); }

static char *map(size_t len, int access) {
    char *new = mmap(NULL, len, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED) exit(2);
    return new;
}

/* What else is in RAM leaves it. */
static void use_other_memory(void) {
    for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
}

static void run(int i) {
    char *page = NULL;
    FILE *stream;
    for (;;) {
        switch (i % NR_KINDS) {
        case 0: page = map(PAGE, PROT_NONE); break;
        case 1: page = page ? NULL : map(PAGE, PROT_READ | PROT_WRITE); break;
        case 2: free(page), page = malloc(LARGE), nr_wrong += !page; break;
        case 3: stream = fopen("/dev/zero", "r"), nr_wrong += !stream || getc(stream) || fclose(stream); break;
        }
        if (i % NR_KINDS == 0) nr_wrong += munmap(page, PAGE) != 0;
        swapcontext(context(i), &back);
    }
}

static void *fork_again(void *unused) {
    while (!is_over) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        nr_wrong += child < 0 || waitpid(child, NULL, 0) != child;
        nr_forks++;
    }
    return unused;
}

int main(void) {
    pthread_t forks;
    stacks = map((size_t)NR * APART + BELOW, PROT_READ | PROT_WRITE), others = map(OTHERS, PROT_READ | PROT_WRITE);
    contexts = map((size_t)NR * PAGE, PROT_READ | PROT_WRITE);
    stacks = (char *)(((uintptr_t)stacks + BELOW - 1) / BELOW * BELOW);
    madvise(stacks, (size_t)NR * APART, MADV_NOHUGEPAGE);
    for (int i = 0; i < NR; i++) {
        getcontext(context(i));
        context(i)->uc_stack.ss_sp = stacks + (size_t)i * APART;
        context(i)->uc_stack.ss_size = BELOW + FRAME + i / NR_KINDS * STEP;
        makecontext(context(i), (void (*)(void))run, 1, i);
    }
    if (pthread_create(&forks, NULL, fork_again, NULL)) return 2;
    for (int round = 0; round < 3; round++) {
        use_other_memory();
        for (int i = 0; i < NR; i++) swapcontext(&back, context(i));
    }
    is_over = 1;
    pthread_join(forks, NULL);
    fprintf(stderr, "%d forks\n", nr_forks);
    puts(nr_wrong ? "wrong" : "ok");
    return nr_wrong != 0;
}
