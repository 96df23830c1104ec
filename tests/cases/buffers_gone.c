// BUDGETS: 24M 160M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// Another thread takes a buffer away while a call sleeps that is to write there: the call fails with EFAULT.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define M (1ul << 20)
enum { BY_READ, BY_LONG_READ, BY_READV, BY_LONG_READV, BY_RECV, BY_RECVFROM, BY_RECVMSG, BY_HEADER, BY_RECVMMSG,
       BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT, BY_EPOLL, BY_EPOLL_PWAIT, BY_WAIT, BY_WAITID, BY_WAIT4, NR_CALLS };
enum { BY_MUNMAP, BY_PROTECTION, BY_NO_ACCESS, BY_MREMAP, NR_WAYS };

static const size_t len = 4 * M, nr_cold_bytes = 60 * M;
static int ends[2], epoll, call;
static char *buffer;
static volatile pid_t sleeper;
static volatile long result;
static volatile int error;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s (errno %d)\n", what, errno);
    fflush(stdout);
    _exit(1);
}

static char *map(size_t size) {
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(mapped != MAP_FAILED, "mmap");
    memset(mapped, 0, size);
    return mapped;
}

static long make_call(void) {
    static char other[64];
    struct iovec one = { buffer, 100 };
    struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1 };
    fd_set *set = (fd_set *)buffer;
    FD_ZERO(set);
    struct pollfd *list = (struct pollfd *)buffer;
    if (call == BY_SELECT || call == BY_PSELECT) FD_SET(ends[0], set);
    else *list = (struct pollfd){ ends[0], POLLIN, 0 };
    sleeper = gettid();
    switch (call) {
    case BY_READ: return read(ends[0], buffer, 100);
    case BY_LONG_READ: return read(ends[0], buffer, M);
    case BY_READV: return readv(ends[0], &one, 1);
    case BY_LONG_READV: {
        struct iovec two[2] = { { buffer, M }, { buffer + M, 2 * M } };
        return readv(ends[0], two, 2);
    }
    case BY_RECV: return recv(ends[0], buffer, 100, 0);
    case BY_RECVFROM: return recvfrom(ends[0], buffer, 100, 0, NULL, NULL);
    case BY_RECVMSG: return recvmsg(ends[0], &message, 0);
    case BY_HEADER: {
        struct msghdr *header = (struct msghdr *)(buffer + M);
        one.iov_base = other, one.iov_len = sizeof other;
        *header = message;
        return recvmsg(ends[0], header, 0);
    }
    case BY_RECVMMSG: return recvmmsg(ends[0], &(struct mmsghdr){ .msg_hdr = message }, 1, 0, NULL);
    case BY_POLL: return poll(list, 1, -1);
    case BY_PPOLL: return ppoll(list, 1, NULL, NULL);
    case BY_SELECT: return select(ends[0] + 1, set, NULL, NULL, NULL);
    case BY_PSELECT: return pselect(ends[0] + 1, set, NULL, NULL, NULL, NULL);
    case BY_EPOLL: return epoll_wait(epoll, (struct epoll_event *)buffer, 1, -1);
    case BY_EPOLL_PWAIT: return epoll_pwait(epoll, (struct epoll_event *)buffer, 1, -1, NULL);
    case BY_WAIT: return waitpid(-1, (int *)buffer, 0);
    case BY_WAITID: return waitid(P_ALL, 0, (siginfo_t *)buffer, WEXITED);
    case BY_WAIT4: return wait4(-1, (int *)buffer, 0, (struct rusage *)(buffer + M));
    }
    return 0;
}

static void *sleep_in_call(void *unused) {
    errno = 0;
    result = make_call();
    error = errno;
    return unused;
}

static void wait_for_sleep(void) {
    for (char state = 0; state != 'S';) {
        if (!sleeper) continue;
        char path[64], text[256] = { 0 };
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", sleeper);
        const int fd = open(path, O_RDONLY);
        check(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "state");
        close(fd);
        const char *after = strstr(text, ") ");
        state = after ? after[2] : 0;
        sched_yield();
    }
}

static void take_away(int way) {
    switch (way) {
    case BY_MUNMAP: check(munmap(buffer, len) == 0, "munmap"); break;
    case BY_PROTECTION: check(mprotect(buffer, len, PROT_READ) == 0, "mprotect"); break;
    case BY_NO_ACCESS: check(mprotect(buffer, len, PROT_NONE) == 0, "mprotect none"); break;
    case BY_MREMAP:
        check(mremap(buffer, len, 2 * len, MREMAP_MAYMOVE | MREMAP_FIXED, map(2 * len)) != MAP_FAILED, "mremap");
    }
}

static void try(int way) {
    buffer = map(len);
    sleeper = 0;
    const int is_wait = call == BY_WAIT || call == BY_WAITID || call == BY_WAIT4;
    int gate[2];
    check(pipe(gate) == 0, "pipe");
    const pid_t child = is_wait ? fork() : 0;
    if (is_wait && child == 0) {
        char byte;
        close(gate[1]);
        _exit((int)read(gate[0], &byte, 1));
    }
    pthread_t thread;
    check(pthread_create(&thread, NULL, sleep_in_call, NULL) == 0, "pthread_create");
    wait_for_sleep();
    take_away(way);
    close(gate[1]);
    if (!is_wait) check(write(ends[1], "hello", 5) == 5, "write");
    pthread_join(thread, NULL);
    close(gate[0]);
    if (result != -1 || error != EFAULT) printf("call %d, way %d: %ld, errno %d\n", call, way, result, error);
    check(result == -1 && error == EFAULT, "EFAULT");
    if (way == BY_PROTECTION) munmap(buffer, len);
    char rest[64];
    while (recv(ends[0], rest, sizeof rest, MSG_DONTWAIT) > 0) {}
}

int main(void) {
    memset(map(nr_cold_bytes), 1, nr_cold_bytes);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0, "epoll_ctl");
    for (call = 0; call < NR_CALLS; call++)
        for (int way = 0; way < NR_WAYS; way++) try(way);
    puts("done");
    return 0;
}
