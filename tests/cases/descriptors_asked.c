// BUDGETS: 24M
// Calls that ask about a descriptor agree on which are open: ours are not, with a low limit on their numbers either.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BEHIND = 70000, SIZE = 40 << 20 };

static int is_open(int result) { return result >= 0 || errno != EBADF; }

static int is_polled(struct pollfd (*list)[2], int fd, const struct timespec *limit) {
    (*list)[0] = (struct pollfd){ .fd = fd, .events = POLLIN }, (*list)[1] = (struct pollfd){ .fd = -1 };
    int nr_ready = limit ? ppoll(*list, 2, limit, NULL) : poll(*list, 2, 0);
    if (nr_ready != ((*list)[0].revents != 0) || (*list)[1].revents != 0) printf("%d: %d ready\n", fd, nr_ready);
    return !((*list)[0].revents & POLLNVAL);
}

static int check(void *page) {
    static const struct timespec now;
    int nr_wrong = 0;
    for (int fd = 0; fd < BEHIND; fd++) {
        int known = is_open(fcntl(fd, F_GETFD)), number = 0;
        const int answers[] = {
            is_open(fstat(fd, page)), is_open(fstatat(fd, "", page, AT_EMPTY_PATH)),
            is_open(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, page)), is_open(fstatfs(fd, page)),
            is_open(ioctl(fd, FIONREAD, page)), is_open(syscall(SYS_fstat, fd, page)),
            is_open(syscall(SYS_newfstatat, fd, "", page, AT_EMPTY_PATH)), is_open(syscall(SYS_lseek, fd, 0, SEEK_CUR)),
            is_polled(page, fd, NULL), is_polled(page, fd, &now),
        };
        for (number = 0; number < (int)(sizeof answers / sizeof *answers); number++)
            if (answers[number] != known) {
                printf("%d: open %d, by call %d: %d\n", fd, known, number, answers[number]);
                nr_wrong++;
            }
    }
    return nr_wrong;
}

int main(int count, char **arguments) {
    if (count == 1) {
        const struct rlimit few = { 256, 256 };
        char *memory = malloc(SIZE);
        memset(memory, 1, SIZE);
        int nr_wrong = check(memory);
        if (nr_wrong || setrlimit(RLIMIT_NOFILE, &few)) return 1;
        execl("/proc/self/exe", *arguments, "again", NULL);
        return 2;
    }
    char *memory = malloc(SIZE), on_stack[sizeof(struct statx)];
    memset(memory, 1, SIZE);
    return check(memory) || check(on_stack);
}
