// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Receiving with MSG_WAITALL ends at a signal, or after the socket's time, with what has come, wherever that is in the
// buffer.
#include "cold.h"
#include <sys/socket.h>
#include <sys/time.h>
static int ends[2];
static char *memory;
static void on_alarm(int number) { (void)number; }
static ssize_t receive(int way) {
    struct iovec list[2] = {{memory, MIB}, {memory + MIB, MIB}};
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 2};
    send_out(memory, 2 * MIB);
    switch (way) {
    case 0: return recv(ends[0], memory, 2 * MIB, MSG_WAITALL);
    case 1: return recvfrom(ends[0], memory, 2 * MIB, MSG_WAITALL, NULL, NULL);
    case 2: return syscall(SYS_recvfrom, ends[0], memory, 2 * MIB, MSG_WAITALL, NULL, NULL);
    default: return recvmsg(ends[0], &message, MSG_WAITALL);
    }
}
int main(void) {
    static char bytes[MIB];
    static const size_t lens[] = {100, 256 << 10, (256 << 10) + 1, MIB};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    start_engine();
    memory = anonymous(4 * MIB);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    memset(memory, 1, 2 * MIB);
    sigaction(SIGALRM, &action, NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 2;
    int room = 4 * MIB;
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    for (int way = 0; way < 4; way++) {
        for (int i = 0; i < 4; i++) {
            ssize_t len = lens[i];
            if (send(ends[1], bytes, len, MSG_DONTWAIT) != len) continue; // it has less room
            struct timeval limit = {0, 100000}, none = {0, 0};
            setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            ssize_t got = receive(way);
            CHECK(got == len, "way %d: %zd of %zd in time", way, got, len);
            setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
            if (send(ends[1], bytes, len, MSG_DONTWAIT) != len) return 2;
            // Again, should it come too early.
            struct itimerval soon = {{0, 100000}, {0, 100000}}, never = {{0, 0}, {0, 0}};
            setitimer(ITIMER_REAL, &soon, NULL);
            got = receive(way);
            CHECK(got == len, "way %d: %zd of %zd until a signal", way, got, len);
            setitimer(ITIMER_REAL, &never, NULL);
        }
    }
    DONE;
}
