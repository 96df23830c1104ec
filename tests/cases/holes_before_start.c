// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// NEEDS: move
// ARGS: keys
/* Calls that are given memory which was unmapped, or got a key that denies access, before the engine started, or that
   lies beyond the end of a mapping: they fail with EFAULT, or end there, as in the kernel. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define M (1ul << 20)
static int zero, pipes[2], poll_of;
static struct timespec at_once;

static void check(const char *what, const char *where, long result, long expected) {
    if (result == expected && (result >= 0 || errno == EFAULT))
        return;
    printf("FAIL %s, %s: %ld, errno %d, not %ld\n", what, where, result, errno, expected);
    exit(1);
}

/* Calls that read or write `at`, of which `len` bytes may be accessed. */
static void call(const char *where, char *at, long len) {
    long part = len ? len : -1;
    struct iovec one = {at, 4096};
    struct stat about;
#define CHECK(expected, call) (errno = 0, check(#call, where, (long)(call), expected))
    CHECK(part, read(zero, at, 4096));
    CHECK(-1, write(pipes[1], at, 4096)); /* a pipe takes whole pages */
    CHECK(part, pread(zero, at, 4096, 0));
    CHECK(part, readv(zero, &one, 1));
    CHECK(-1, writev(pipes[1], &one, 1));
    CHECK(-1, readv(zero, (struct iovec *)at, 1));
    CHECK(-1, writev(pipes[1], (struct iovec *)at, 1));
    CHECK(-1, stat("/", (struct stat *)at));
    CHECK(-1, nanosleep((struct timespec *)at, NULL));
    CHECK(-1, sigprocmask(SIG_BLOCK, NULL, (sigset_t *)at));
    CHECK(-1, sigaltstack(NULL, (stack_t *)at));
    CHECK(-1, ppoll(NULL, 0, &at_once, (sigset_t *)at));
    CHECK(-1, pselect(0, NULL, NULL, NULL, &at_once, (sigset_t *)at));
    CHECK(-1, epoll_pwait(poll_of, (struct epoll_event *)(at - 4096), 1, 0, (sigset_t *)at));
    CHECK(-1, syscall(SYS_clone3, at, 88));
    CHECK(-1, syscall(SYS_seccomp, 1, 0, at));
    CHECK(-1, syscall(SYS_getcwd, at, 4096) > 1 ? 0 : -1);
    if (len)
        return;
    CHECK(-1, stat(at, &about));
    CHECK(-1, open(at, O_RDONLY));
    CHECK(-1, syscall(SYS_rt_sigprocmask, ~0, at, 0, 8)); /* so abseil finds out whether memory is readable */
    CHECK(-1, write(pipes[1], at, 1));                    /* and so libunwind */
}

static char *map(unsigned long at, size_t len) {
    char *there =
        mmap((void *)at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (there != (char *)at)
        exit(2);
    memset(there, 1, len);
    return there;
}

static void outgrow(void) {
    static char *more;
    more = more ? more : mmap(NULL, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int twice = 0; twice < 2; twice++)
        for (size_t at = 0; at < 64 * M; at += 4096)
            more[at] = 1;
}

int main(int nr_words, char **words) {
    zero = open("/dev/zero", O_RDONLY), poll_of = epoll_create1(0);
    if (zero < 0 || poll_of < 0 || pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, M) < 0)
        return 2;
    char *holed = map(0x60000000000, 8 * M), *ends = map(0x61000000000, 4 * M), *odd = map(0x62000000000, 3 * M + 8192);
    munmap(holed + 2 * M, M);
    if (nr_words > 1) {
        int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        if (key < 0) {
            puts("ok"); /* the processor has none */
            return 0;
        }
        if (pkey_mprotect(holed + 5 * M, M, PROT_READ | PROT_WRITE, key))
            return 2;
        outgrow();
        call("without rights", holed + 5 * M, 0);
        puts("ok");
        return 0;
    }
    outgrow();
    call("in the hole", holed + 2 * M, 0);
    call("before the hole", holed + 2 * M - 4, 4);
    call("at the end of blocks", ends + 4 * M - 4, 4);
    call("behind the end of blocks", ends + 4 * M, 0);
    call("at the end", odd + 3 * M + 8192 - 4, 4);
    call("behind the end", odd + 3 * M + 8192, 0);
    munmap(holed + 6 * M, M);
    call("in a later hole", holed + 6 * M, 0);
    puts("ok");
    return 0;
}
