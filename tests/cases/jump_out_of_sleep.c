// BUDGETS: 24M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// A signal handler leaves calls that sleep by a jump, again and again: no memory is lost.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#define M (1ul << 20)
static const size_t len = 64 * M, nr_bytes = 256 << 10, most_kb = 12 << 10;
static const unsigned nr_kinds = 9, nr_jumps_each = 80;
static int ends[2], full[2], epoll;
static char *buffer;
static _Thread_local sigjmp_buf before;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s (errno %d)\n", what, errno);
    fflush(stdout);
    _exit(1);
}

// What lies in RAM beside the budget grows by this.
static long resident_kb(void) {
    char line[256];
    long kb = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmRSS: %ld", &kb);
    fclose(status);
    return kb;
}

static void on_signal(int number) {
    (void)number;
    siglongjmp(before, 1);
}

static void sleep_in_call(unsigned kind) {
    struct iovec parts[2] = { { buffer, nr_bytes }, { buffer + M, nr_bytes } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    switch (kind) {
    case 0: read(ends[0], buffer, nr_bytes); break;
    case 1: write(full[1], buffer, nr_bytes); break;
    case 2: readv(ends[0], parts, 2); break;
    case 3: recv(ends[0], buffer, nr_bytes, 0); break;
    case 4: recvmsg(ends[0], &message, 0); break;
    case 5: recvmmsg(ends[0], &(struct mmsghdr){ .msg_hdr = message }, 1, 0, NULL); break;
    case 6: sendmsg(full[1], &message, 0); break;
    case 7: epoll_wait(epoll, (struct epoll_event *)buffer, nr_bytes / sizeof(struct epoll_event), -1); break;
    case 8: {
        for (unsigned at = 0; at < 512; at++) ((struct pollfd *)buffer)[at] = (struct pollfd){ ends[0], POLLIN, 0 };
        poll((struct pollfd *)buffer, 512, -1);
        break;
    }
    }
    check(0, "a call has ended");
}

static void jump_often(unsigned kind, unsigned times) {
    static volatile unsigned left;
    left = times;
    sigsetjmp(before, 1);
    while (left-- > 0) {
        struct itimerval soon = { { 0, 0 }, { 0, 2000 } };
        setitimer(ITIMER_REAL, &soon, NULL);
        sleep_in_call(kind);
    }
}

static void *jump_in_thread(void *kind) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    jump_often((unsigned)(uintptr_t)kind, 3);
    return NULL;
}

int main(void) {
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    memset(memory, 1, len);
    buffer = memory + 20 * M;
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, full) == 0, "sockets");
    while (send(full[1], buffer, 4096, MSG_DONTWAIT) > 0) {}
    epoll = epoll_create1(0);
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){ .events = EPOLLIN }) == 0, "epoll_ctl");
    signal(SIGALRM, on_signal);
    const long kb_before = resident_kb();
    for (unsigned kind = 0; kind < nr_kinds; kind++) jump_often(kind, nr_jumps_each);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    for (unsigned turn = 0; turn < 50; turn++) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, jump_in_thread, (void *)(uintptr_t)(turn % nr_kinds)) == 0, "thread");
        pthread_join(thread, NULL);
    }
    const long grown_kb = resident_kb() - kb_before;
    if (grown_kb > most_kb) printf("%ld KiB more\n", grown_kb);
    check(grown_kb <= most_kb, "memory is lost");
    puts("done");
    return 0;
}
