// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M 160M
/* While a call waits, another thread protects a part of its buffer that the call does not need: it succeeds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LEN = 64 << 20, NR_EVENTS = 1000, PAGE = 4096 };

static char *buffer;
static int ends[2], poll;

static void *wait_for_event(void *unused) {
    (void)unused;
    return (void *)(long)epoll_wait(poll, (struct epoll_event *)buffer, NR_EVENTS, -1);
}

int main(void) {
    char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 1, LEN);
    buffer = bytes + (20 << 20);
    poll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = 7};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || epoll_ctl(poll, EPOLL_CTL_ADD, ends[0], &wanted)) return 1;
    pthread_t thread;
    void *count;
    pthread_create(&thread, NULL, wait_for_event, NULL);
    usleep(100000);
    if (mprotect(buffer + 2 * PAGE, PAGE, PROT_READ) || write(ends[1], "x", 1) != 1) return puts("no event"), 1;
    pthread_join(thread, &count);
    struct epoll_event *told = (struct epoll_event *)buffer;
    if ((long)count != 1 || told->data.u32 != 7) return printf("%ld events\n", (long)count), 1;
    puts("ok");
    return 0;
}
