// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* Calls that send or receive, and fail, fail as in the kernel: once, with its error, and nothing arrives. */
#include "cold.h"
#include <sys/socket.h>
#include <sys/uio.h>

static char *data;

static void fails(const char *name, ssize_t result, int error) {
    int found = errno;
    CHECK(result == -1 && found == error, "%s: %zd, error %d instead of %d", name, result, found, error);
}

/* Each way of sending fails with this error. */
static void all_fail(const char *when, int fd, size_t len, int flags, int error) {
    char name[100];
    struct iovec parts[2] = {{data, len / 2}, {data + MIB, len - len / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr several = {.msg_hdr = message};
#define FAILS(call) (snprintf(name, sizeof name, "%s, %s", #call, when), fails(name, call, error))
    FAILS(send(fd, data, len, flags));
    FAILS(sendto(fd, data, len, flags, NULL, 0));
    FAILS(sendmsg(fd, &message, flags));
    FAILS(sendmmsg(fd, &several, 1, flags));
    FAILS(syscall(SYS_sendmsg, fd, &message, flags));
    FAILS(syscall(SYS_sendto, fd, data, len, flags, NULL, 0));
    send_out(data, 4 * MIB);
    FAILS(sendmsg(fd, &message, flags));
}

static void nothing_arrived(const char *when, int fd) {
    char byte;
    struct iovec part = {data, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr several = {.msg_hdr = message};
    char name[100];
    int flags = MSG_DONTWAIT, error = EAGAIN;
    FAILS(recv(fd, &byte, 1, flags));
    FAILS(recv(fd, data, 100, flags));
    FAILS(recvmsg(fd, &message, flags));
    FAILS(recvmmsg(fd, &several, 1, flags, NULL));
}

static void too_long(void) {
    int pair[2], size = 4096;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "socketpair");
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    all_fail("too long", pair[0], 200000, MSG_DONTWAIT, EMSGSIZE);
    nothing_arrived("too long", pair[1]);
}

static void full(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "socketpair");
    int nr_sent = 0, nr_got = 0;
    while (send(pair[0], data, 1000, MSG_DONTWAIT) == 1000) nr_sent++;
    all_fail("full", pair[0], 1000, MSG_DONTWAIT, EAGAIN);
    while (recv(pair[1], data, 2000, MSG_DONTWAIT) == 1000) nr_got++;
    CHECK(nr_sent > 0 && nr_sent == nr_got, "%d messages sent, %d came", nr_sent, nr_got);
    nothing_arrived("full", pair[1]);
}

/* The header after the second one is not there: two messages come, and the socket tells the error at the next call. */
static void ends_at_hole(int by_number) {
    int pair[2], error = 0;
    socklen_t len = sizeof error;
    char *list = anonymous(4 * MIB);
    struct mmsghdr *headers = (struct mmsghdr *)(list + 2 * MIB) - 2;
    struct iovec part = {data, 100};
    CHECK(munmap(list + 2 * MIB, PAGE) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "socketpair");
    for (int round = 0; round < 2; round++) {
        for (int at = 0; at < 2; at++) headers[at] = (struct mmsghdr){.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
        for (int at = 0; at < 3; at++) CHECK(send(pair[0], data, 7, 0) == 7, "send");
        send_out(list, 4 * MIB);
        long nr = by_number ? syscall(SYS_recvmmsg, pair[1], headers, 3, 0, NULL)
                            : recvmmsg(pair[1], headers, 3, 0, NULL);
        CHECK(nr == 2 && headers[0].msg_len == 7 && headers[1].msg_len == 7, "%ld came", nr);
        if (round == 0)
            CHECK(getsockopt(pair[1], SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == EFAULT, "error %d", error);
        else
            fails("recvmmsg after that", recvmmsg(pair[1], headers, 1, 0, NULL), EFAULT);
        CHECK(recv(pair[1], data, 7, MSG_DONTWAIT) == 7 && recv(pair[1], data, 7, MSG_DONTWAIT) == -1, "the third");
    }
    close(pair[0]), close(pair[1]), munmap(list, 4 * MIB);
}

int main(void) {
    start_engine();
    data = anonymous(4 * MIB);
    memset(data, 1, 4 * MIB);
    int pair[2], file = open("/dev/null", O_WRONLY);
    all_fail("not connected", socket(AF_UNIX, SOCK_DGRAM, 0), 10, 0, ENOTCONN);
    all_fail("not connected, long", socket(AF_UNIX, SOCK_STREAM, 0), 3 * MIB / 2, 0, ENOTCONN);
    all_fail("no socket", file, 10, 0, ENOTSOCK);
    all_fail("no descriptor", 999, 10, 0, EBADF);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && close(pair[1]) == 0, "socketpair");
    all_fail("nobody reads", pair[0], 1, MSG_NOSIGNAL, EPIPE);
    all_fail("nobody reads, long", pair[0], 3 * MIB / 2, MSG_NOSIGNAL, EPIPE);
    too_long();
    full();
    ends_at_hole(0);
    ends_at_hole(1);
    DONE;
}
