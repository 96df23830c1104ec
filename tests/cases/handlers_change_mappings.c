// BUDGETS: 48M 160M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// ARGS: jump
// A signal handler may change mappings while the call that it interrupts does so too, and may leave it by a jump.
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define M (1ul << 20)
static const size_t len = 64 * M, nr_kinds = 6;
static char *memory;
static volatile unsigned nr_signals;
static volatile int jumps;
static sigjmp_buf before;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s (errno %d)\n", what, errno);
    fflush(stdout);
    _exit(1);
}

static char *map(size_t size) {
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(mapped != MAP_FAILED, "mmap");
    return mapped;
}

// Changes mappings in one of several ways. Each leaves `part` readable and writable.
static void change(unsigned kind, char *part, size_t size) {
    switch (kind % nr_kinds) {
    case 0:
        check(mprotect(part, size, PROT_READ) == 0, "mprotect");
        check(mprotect(part, size, PROT_READ | PROT_WRITE) == 0, "mprotect back");
        break;
    case 1: {
        char *mapped = map(2 * M);
        mapped[1] = 1;
        check(munmap(mapped, 2 * M) == 0, "munmap");
        break;
    }
    case 2: check(madvise(part, size, MADV_DONTNEED) == 0, "madvise"); break;
    case 3: {
        char *moved = mremap(map(size), size, 2 * size, MREMAP_MAYMOVE);
        check(moved != MAP_FAILED, "mremap");
        munmap(moved, 2 * size);
        break;
    }
    case 4:
        if (mlock(part, 4096) == 0) munlock(part, 4096);
        break;
    case 5: {
        char *fixed = mmap(part, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        check(fixed == part, "fixed");
        break;
    }
    }
    part[0] = 1;
}

static void on_signal(int number) {
    (void)number;
    const int kept = errno;
    nr_signals++;
    if (jumps) siglongjmp(before, 1);
    change(nr_signals / 7, memory + 32 * M + nr_signals * 12345 % 30 * M, 64 << 10);
    errno = kept;
}

static void restart_timer(unsigned us, unsigned again_us) {
    setitimer(ITIMER_REAL, &(struct itimerval){ { 0, again_us }, { 0, us } }, NULL);
}

int main(int argc, char **argv) {
    (void)argv;
    jumps = argc > 1;
    static volatile unsigned round;
    memory = map(len);
    memset(memory, 1, len);
    signal(SIGALRM, on_signal);
    if (!jumps) restart_timer(300, 300);
    sigsetjmp(before, 1);
    while (nr_signals < 1200) {
        round++;
        if (jumps) { // out of a call that has left memory protected or locked, perhaps
            check(mprotect(memory, len, PROT_READ | PROT_WRITE) == 0, "mprotect all");
            munlock(memory, len);
            restart_timer(30 + round * 7919 % 300, 0);
        }
        const unsigned last = nr_signals;
        for (unsigned turn = 0; turn < 500 && (!jumps || last == nr_signals); turn++)
            change(jumps ? round : nr_signals, memory + (round + turn) * 777 % 30 * M, 256 << 10);
    }
    restart_timer(0, 0);
    signal(SIGALRM, SIG_IGN);
    check(mmap(memory, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory, "last");
    memset(memory, 2, len);
    puts("done");
    return 0;
}
