// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A program is small for a while, with handlers, masks, a signal stack and protected memory of its own, and then needs
// three times its budget, first in small mappings.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define SMALL 4500
#define SMALL_BYTES (2 * PAGE)
#define LARGE (40ul << 20)

static unsigned char *small[SMALL], *large;
static volatile sig_atomic_t nr_handled, bad_in_handler;

/* Runs with all signals blocked, which was asked for before there was anything to fault in. */
static void on_user(int signal) {
    (void)signal;
    nr_handled++;
    for (size_t at = 0; large && at < LARGE; at += 16 * PAGE)
        if (large[at] != (unsigned char)(at / PAGE % 251 + 1)) bad_in_handler = 1;
}

static void fail(const char *what) {
    printf("FAIL %s: %s\n", what, strerror(errno));
    exit(1);
}

int main(void) {
    static char stack[64 << 10];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_user, .sa_flags = SA_ONSTACK};
    sigset_t all, before, now;
    sigfillset(&action.sa_mask);
    sigfillset(&all);
    if (sigaltstack(&own, NULL) || sigaction(SIGUSR1, &action, NULL)) fail("signals");
    if (sigprocmask(SIG_BLOCK, &all, &before)) fail("mask");
    unsigned char *closed = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (closed == MAP_FAILED || mprotect(closed, PAGE, PROT_READ | PROT_WRITE)) fail("protected memory");
    int pipe_ends[2];
    if (pipe(pipe_ends)) fail("pipe");

    for (int i = 0; i < SMALL; i++) { /* the engine starts on the way */
        small[i] = mmap(NULL, SMALL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (small[i] == MAP_FAILED) fail("small mapping");
        memset(small[i], i % 255 + 1, SMALL_BYTES);
    }
    large = malloc(LARGE);
    if (!large) fail("malloc");
    for (size_t at = 0; at < LARGE; at += PAGE) large[at] = at / PAGE % 251 + 1;
    if (sigprocmask(SIG_SETMASK, &before, NULL) || sigprocmask(SIG_SETMASK, NULL, &now)) fail("mask");
    if (sigismember(&now, SIGBUS) || sigismember(&now, SIGUSR1)) fail("mask after it was restored");
    raise(SIGUSR1);
    if (nr_handled != 1 || bad_in_handler) fail("in the handler");

    for (int i = 0; i < SMALL; i++)
        for (size_t at = 0; at < SMALL_BYTES; at += 512)
            if (small[i][at] != i % 255 + 1) fail("small mapping's content");
    if (write(pipe_ends[1], small[7], SMALL_BYTES) != SMALL_BYTES) fail("write of cold memory");
    errno = 0;
    if (read(pipe_ends[0], closed + PAGE, PAGE) != -1 || errno != EFAULT) fail("read into protected memory");
    if (read(pipe_ends[0], small[9], SMALL_BYTES) != SMALL_BYTES || small[9][5] != 8) fail("read into cold memory");

    pid_t child = fork();
    if (!child) {
        for (size_t at = 0; at < LARGE; at += PAGE)
            if (large[at] != at / PAGE % 251 + 1) _exit(1);
        _exit(small[100][1] == 101 ? 0 : 2);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status) fail("child");
    for (int i = 0; i < SMALL; i += 2)
        if (munmap(small[i], SMALL_BYTES)) fail("munmap");
    for (int i = 1; i < SMALL; i += 2)
        if (small[i][SMALL_BYTES - 1] != (i == 9 ? 8 : i % 255 + 1)) fail("what stayed");
    unsigned char *grown = mremap(small[11], SMALL_BYTES, 32 * SMALL_BYTES, MREMAP_MAYMOVE);
    if (grown == MAP_FAILED || grown[0] != 12 || grown[31 * SMALL_BYTES]) fail("mremap");
    printf("ok\n");
    return 0;
}
