// BUDGETS: 48M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// A signal handler leaves long transfers of a file by a jump: nothing of theirs stays held in RAM.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#define M (1ul << 20)
static const size_t len = 160 * M, nr_bytes = 2 * M;
static volatile unsigned nr_jumps;
static sigjmp_buf before;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s (errno %d)\n", what, errno);
    fflush(stdout);
    _exit(1);
}

static void on_signal(int number) {
    (void)number;
    nr_jumps++;
    siglongjmp(before, 1);
}

static void transfer(unsigned round, int file, char *at) {
    struct iovec parts[2] = { { at, M }, { at + M + 4096, M - 4096 } };
    switch (round % 4) {
    case 0: check(pread(file, at, nr_bytes, 0) == (ssize_t)nr_bytes, "pread"); break;
    case 1: check(pwrite(file, at, nr_bytes, 0) == (ssize_t)nr_bytes, "pwrite"); break;
    case 2: check(preadv(file, parts, 2, 0) == (ssize_t)(nr_bytes - 4096), "preadv"); break;
    case 3: check(pwritev(file, parts, 2, 0) == (ssize_t)(nr_bytes - 4096), "pwritev"); break;
    }
}

int main(void) {
    static volatile unsigned round;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    memset(memory, 1, len);
    const int file = open(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", O_RDWR | O_TMPFILE, 0600);
    check(file >= 0 && pwrite(file, memory, nr_bytes, 0) == (ssize_t)nr_bytes, "file");
    signal(SIGALRM, on_signal);
    sigsetjmp(before, 1);
    while (nr_jumps < 200) {
        round++;
        struct itimerval soon = { { 0, 0 }, { 0, 50 + round * 7919 % 2000 } };
        setitimer(ITIMER_REAL, &soon, NULL);
        for (unsigned turn = 0; turn < 100; turn++)
            transfer(round, file, memory + (round * 12345ul + turn * 977) % ((len - nr_bytes - M) >> 12) * 4096);
    }
    signal(SIGALRM, SIG_IGN);
    for (size_t at = 0; at < len; at += 4096) memory[at]++;
    puts("done");
    return 0;
}
