// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// System calls with lengths up to the largest number, and with pointers to nothing, end at once with the kernel's
// error.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int failed;

static void check(const char *what, long result, int expected) {
    int is = result == -1 ? errno : 0;
    if (is == expected) return;
    printf("FAIL %s: %ld, error %d, not %d\n", what, result, is, expected);
    failed = 1;
}
#define CHECK(expected, call) (errno = 0, check(#call, (long)(call), expected))

int main(void) {
    char *large = malloc(64 << 20); /* the engine starts */
    /* Without UFFDIO_MOVE (Linux 6.8) `run` refuses both. */
    int no_rings = syscall(SYS_io_setup, 0, NULL) == -1 && errno == ENOSYS ? ENOSYS : EFAULT;
    for (size_t at = 0; at < 64 << 20; at += 4096) large[at] = 1;
    char *none = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *ends = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (none == MAP_FAILED || ends == MAP_FAILED || munmap(ends + 4096, 4096)) return 2;
    int pipes[2];
    if (pipe(pipes)) return 2;
    int zero = open("/dev/zero", O_RDWR), pair[2], poll = epoll_create1(0);
    struct timespec at_once = {0, 0};
    sigset_t empty, *bad = (sigset_t *)none;
    sigemptyset(&empty);
    if (zero < 0 || poll < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 2;

    CHECK(EFAULT, syscall(SYS_getcwd, NULL, SIZE_MAX));
    CHECK(EFAULT, syscall(SYS_getcwd, (void *)-1L, 4096));
    CHECK(EFAULT, syscall(SYS_getcwd, none, SIZE_MAX));
    CHECK(0, syscall(SYS_getcwd, ends, SIZE_MAX));
    CHECK(EFAULT, syscall(SYS_read, zero, NULL, SIZE_MAX >> 1));
    CHECK(EFAULT, syscall(SYS_readlink, "/proc/self/exe", NULL, 4096));
    CHECK(0, syscall(SYS_readlink, "/proc/self/exe", ends, INT32_MAX));
    CHECK(EFAULT, syscall(SYS_getrandom, none, 100, 0));
    CHECK(EINVAL, syscall(SYS_poll, ends, SIZE_MAX, 0));
    CHECK(EINVAL, epoll_wait(poll, (struct epoll_event *)large, 0, 0));
    CHECK(EINVAL, epoll_wait(poll, (struct epoll_event *)large, INT32_MAX, 0));
    CHECK(EFAULT, epoll_pwait(poll, (struct epoll_event *)large, 1, 0, bad));
    CHECK(EFAULT, ppoll(NULL, 0, &at_once, bad));
    CHECK(EFAULT, pselect(0, NULL, NULL, NULL, &at_once, bad));
    CHECK(EFAULT, sigprocmask(SIG_BLOCK, &empty, bad));
    CHECK(EFAULT, sigaltstack((stack_t *)none, NULL));
    CHECK(EFAULT, sigaltstack(NULL, (stack_t *)none));
    /* The kernel's sets of signals have 8 bytes. */
    sigset_t *short_set = (sigset_t *)(ends + 4096 - 8);
    memset(short_set, 0xff, 8);
    CHECK(0, ppoll(NULL, 0, &at_once, short_set));
    CHECK(0, sigprocmask(SIG_BLOCK, NULL, short_set));
    for (size_t at = 0; at < 64 << 20; at += 4096) large[at]++; /* faults are still resolved */

    /* Pointers to nothing, in turn null, without access, and beyond all memory. */
    void *volatile nothing[] = {NULL, none, (void *)-4096L};
    for (int i = 0; i < 3; i++) {
        void *p = nothing[i];
        char *const bad_list[] = {(char *)none, NULL};
        struct iovec no_part = { NULL, 0 }, bad_part = {none, 100};
        CHECK(EFAULT, open(p, O_RDONLY));
        CHECK(EFAULT, openat(AT_FDCWD, p, O_RDONLY));
        CHECK(EFAULT, access(p, R_OK));
        CHECK(EFAULT, unlink(p));
        CHECK(EFAULT, chdir(p));
        CHECK(EFAULT, execve(p, (char *const *)ends, NULL));
        CHECK(EFAULT, execve("/bin/true", bad_list, NULL));
        CHECK(EFAULT, syscall(SYS_execveat, AT_FDCWD, p, NULL, NULL, 0));
        CHECK(EFAULT, readv(zero, p, 1));
        CHECK(EFAULT, readv(zero, &bad_part, 1));
        CHECK(EFAULT, writev(pair[0], p, 1));
        CHECK(EFAULT, preadv(zero, p, 1, 0));
        CHECK(EFAULT, vmsplice(pipes[1], p, 1, 0));
        CHECK(EFAULT, sendmsg(pair[0], p, 0));
        CHECK(EFAULT, recvmsg(pair[0], p, MSG_DONTWAIT));
        CHECK(EFAULT, sendmmsg(pair[0], p, 1, 0));
        CHECK(EFAULT, write(pair[0], p, 100));
        CHECK(EFAULT, send(pair[0], p, 100, 0));
        CHECK(EFAULT, process_vm_readv(getpid(), &bad_part, 1, p, 1, 0));
        CHECK(0, process_vm_readv(getpid(), &no_part, 1, p, 1, 0));
        CHECK(0, process_vm_writev(getpid(), NULL, 0, p, 1, 0));
        CHECK(0, process_vm_writev(getpid(), &no_part, 1, &no_part, -1ul, 0));
        CHECK(EFAULT, prctl(PR_SET_SECCOMP, 2, p));
        CHECK(EFAULT, syscall(SYS_seccomp, 1, 0, p));
        CHECK(EFAULT, prctl(PR_SET_NAME, p));
        CHECK(EFAULT, fcntl(zero, F_GETLK, p));
        CHECK(EFAULT, epoll_ctl(poll, EPOLL_CTL_ADD, pair[0], p));
        CHECK(EFAULT, bind(pair[0], p, 16));
        CHECK(EFAULT, syscall(SYS_nanosleep, p, NULL));
        CHECK(EFAULT, syscall(SYS_clone3, p, 88));
        CHECK(EFAULT, syscall(SYS_uname, p));
        CHECK(EFAULT, syscall(SYS_sysinfo, p));
        CHECK(EFAULT, syscall(SYS_mincore, (size_t)large & ~4095ul, 4096, p));
        CHECK(EFAULT, syscall(SYS_newfstatat, AT_FDCWD, "/", p, 0));
        CHECK(no_rings, syscall(SYS_io_setup, 5, p));
        CHECK(no_rings, syscall(SYS_io_uring_setup, 4, p));
        CHECK(EFAULT, syscall(SYS_pipe2, p, 0));
        CHECK(EFAULT, syscall(SYS_poll, p, 1, 0));
        if (i > 0) {
            CHECK(EFAULT, syscall(SYS_rt_sigprocmask, SIG_BLOCK, p, NULL, 8));
            CHECK(EFAULT, syscall(SYS_rt_sigaction, SIGUSR1, p, NULL, 8));
            CHECK(EFAULT, syscall(SYS_select, 5, p, NULL, NULL, NULL));
            CHECK(EFAULT, syscall(SYS_sigaltstack, p, NULL));
        }
    }
    printf(failed ? "FAIL\n" : "ok\n");
    return failed;
}
