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
    DONE;
}
