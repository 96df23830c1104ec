// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A long receive into memory that has left RAM waits for as much, and as long, as the socket says.
#include "cold.h"
#include "connected.h"
#include <sys/time.h>
#include <sys/uio.h>
static volatile int is_over;
static void *trickle(void *unused) {
    static char bytes[64 << 10]; // some are there already
    while (!is_over && write(ends[0], bytes, sizeof bytes) > 0) usleep(40000);
    return unused;
}
static void *in_parts(void *unused) {
    static char bytes[800 << 10];
    CHECK(write(ends[0], bytes, 300 << 10) == 300 << 10, "first");
    usleep(300000);
    // A receiver that sleeps is woken only by as many as it waits for.
    CHECK(write(ends[0], bytes, sizeof bytes) == sizeof bytes, "second");
    usleep(100000);
    CHECK(write(ends[0], bytes, 400 << 10) == 400 << 10, "third");
    return unused;
}
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB);
    memset(memory, 1, 8 * MIB);
    pthread_t thread;
    connect_both();
    for (int calls = 0; calls < 3; calls++) {
        int least = calls == 2 ? 1280 << 10 : 512 << 10, size = 4 * MIB;
        if (calls == 2) { // not by TCP, whose window may be less
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
            setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
        }
        CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0, "SO_RCVLOWAT");
        send_out(memory, 8 * MIB);
        pthread_create(&thread, 0, in_parts, 0);
        struct iovec parts[] = {{memory, MIB}, {memory + 3 * MIB, MIB}};
        ssize_t len = calls == 2   ? readv(ends[1], parts, 2)
                      : calls == 1 ? read(ends[1], memory, 2 * MIB)
                                   : recv(ends[1], memory, 2 * MIB, 0);
        pthread_join(thread, 0);
        CHECK(len >= least, "%zd of at least %d", len, least);
        while (recv(ends[1], memory, MIB, MSG_DONTWAIT) > 0) continue;
    }
    connect_both();
    struct timeval limit = {0, 300000}, begun, ended;
    CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0, "SO_RCVTIMEO");
    send_out(memory, 8 * MIB);
    CHECK(write(ends[0], "first", 5) == 5, "write");
    pthread_create(&thread, 0, trickle, 0);
    gettimeofday(&begun, 0);
    ssize_t len = recv(ends[1], memory, 8 * MIB, MSG_WAITALL);
    gettimeofday(&ended, 0);
    double time = ended.tv_sec - begun.tv_sec + (ended.tv_usec - begun.tv_usec) / 1e6;
    is_over = 1;
    pthread_join(thread, 0);
    CHECK(len > 0 && len < (ssize_t)(8 * MIB) && time < 2, "%zd bytes in %.1f s", len, time);
    DONE;
}
