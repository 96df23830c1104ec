// EXPECT: exit 0, last line "ok"
// Signals that the program has blocked stay so in its memory calls and faults, SIGABRT and those of faults too; they
// can then be taken by sigwait.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define M (1ul << 20)

static volatile sig_atomic_t handled;
static void on(int signal) { handled = signal; }

int main(void) {
    const int signals[] = {SIGABRT, SIGTRAP, SIGSEGV, SIGILL, SIGFPE, SIGUSR1, SIGTERM};
    for (size_t k = 0; k < sizeof signals / sizeof *signals; k++) {
        sigset_t set, before;
        sigemptyset(&set), sigaddset(&set, signals[k]);
        if (k % 2) signal(signals[k], on);
        sigprocmask(SIG_BLOCK, &set, &before);
        kill(getpid(), signals[k]);
        char *p = mmap(0, 64 * M, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(p, 1, 64 * M);
        mprotect(p, 4 * M, 1), mprotect(p, 4 * M, 3), madvise(p, 3 * M, MADV_DONTNEED);
        p = mremap(p, 64 * M, 80 * M, MREMAP_MAYMOVE);
        char *q = malloc(16 * M);
        memset(q, 2, 16 * M);
        q = realloc(q, 40 * M);
        free(q), munmap(p, 80 * M);
        int got;
        if (handled) return printf("FAIL signal %d was handled though blocked\n", handled), 1;
        if (sigwait(&set, &got) || got != signals[k]) return printf("FAIL sigwait\n"), 1;
        sigprocmask(SIG_SETMASK, &before, 0);
    }
    puts("ok");
    return 0;
}
