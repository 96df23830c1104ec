// EXPECT: exit 0, last line "ok"
// CFLAGS: -rdynamic -fno-builtin
// A program that defines functions of the C library by their other names, as Erlang does with sigaction. The library
// calls none of its own functions by a name that leads back to the program.
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define NR_BYTES (200ul << 20)

int __sigaction(int, const struct sigaction *, struct sigaction *);
int __dup2(int, int);
ssize_t __send(int, const void *, size_t, int);
int __gettimeofday(struct timeval *, void *);
ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
int __close(int);
int __poll(struct pollfd *, nfds_t, int);

static int depth, most;
static volatile int nr_signals;

// Calls the other name. One that led back here would do so without end.
#define THROUGH(result, call) \
    { \
        if (++depth > most) \
            most = depth; \
        if (depth > 1) \
            abort(); \
        result got = call; \
        depth--; \
        return got; \
    }

int sigaction(int signal, const struct sigaction *new, struct sigaction *old)
    THROUGH(int, __sigaction(signal, new, old))
int dup2(int from, int to) THROUGH(int, __dup2(from, to))
ssize_t send(int fd, const void *bytes, size_t len, int flags) THROUGH(ssize_t, __send(fd, bytes, len, flags))
int gettimeofday(struct timeval *now, void *zone) THROUGH(int, __gettimeofday(now, zone))
ssize_t read(int fd, void *bytes, size_t len) THROUGH(ssize_t, __read(fd, bytes, len))
ssize_t write(int fd, const void *bytes, size_t len) THROUGH(ssize_t, __write(fd, bytes, len))
int close(int fd) THROUGH(int, __close(fd))
int poll(struct pollfd *list, nfds_t count, int limit) THROUGH(int, __poll(list, count, limit))
void *mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset)
    THROUGH(void *, mmap64(at, len, protection, flags, fd, offset))

static void handle(int signal) {
    nr_signals += signal == SIGUSR1;
}

static int try(void) {
    struct sigaction action = {.sa_handler = handle}, before;
    if (sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1) || sigaction(SIGUSR1, NULL, &before))
        return 1;
    if (before.sa_handler != handle)
        return 2;
    int ends[2];
    char got[3] = "";
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || send(ends[0], "ab", 2, 0) != 2 || read(ends[1], got, 2) != 2)
        return 3;
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    struct timeval now = {0};
    if (strcmp(got, "ab") || gettimeofday(&now, NULL) || now.tv_sec < 1 || write(ends[1], "c", 1) != 1)
        return 4;
    if (poll(&one, 1, -1) != 1 || dup2(ends[0], 60) != 60)
        return 5;
    return close(60) || close(ends[0]) || close(ends[1]) ? 6 : 0;
}

int main(void) {
    int early = try();
    char *memory = mmap(NULL, NR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < NR_BYTES; at += 4096)
        memory[at] = (char)(at >> 12);
    int late = try();
    for (size_t at = 0; at < NR_BYTES; at += 4096)
        if (memory[at] != (char)(at >> 12))
            late = 7;
    if (early || late || nr_signals != 2 || most != 1)
        return printf("%d %d %d %d\n", early, late, nr_signals, most), 1;
    printf("ok\n");
    return 0;
}
