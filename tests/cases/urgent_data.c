// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Long transfers of a stream with memory that has left RAM: a call ends at the mark of urgent data, only the last byte
// that is sent is urgent, and what MSG_TRUNC discards leaves the buffer as it is.
#include "cold.h"
#include "connected.h"
#define BEFORE (320 << 10) // fits into the buffers of sockets
static void *take_all(void *sum) {
    static char buffer[1 << 20];
    for (ssize_t len; (len = read(ends[1], buffer, sizeof buffer)) > 0;) *(size_t *)sum += len;
    return 0;
}
static void *give_urgent(void *unused) {
    static char bytes[BEFORE];
    CHECK(send(ends[0], bytes, sizeof bytes, 0) == sizeof bytes, "before");
    CHECK(send(ends[0], "u", 1, MSG_OOB) == 1, "urgent");
    if (!unused) CHECK(send(ends[0], bytes, 1000, 0) == 1000, "after");
    return unused;
}
static int is_all(char *range, size_t len, char byte) {
    for (size_t at = 0; at < len; at++)
        if (range[at] != byte) return 0;
    return 1;
}
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB);
    pthread_t thread;
    memset(memory, 'm', 8 * MIB);
    // Up to the mark.
    for (int way = 0; way < 4; way++) {
        int flags = way % 2 ? MSG_WAITALL : 0;
        connect_both();
        pthread_create(&thread, 0, give_urgent, way < 2 ? 0 : memory); // it is the last, perhaps
        pthread_join(thread, 0);
        usleep(100000);
        send_out(memory, 8 * MIB);
        size_t got = 0;
        while (!sockatmark(ends[1]) && got < 400 << 10) {
            ssize_t len = recv(ends[1], memory + got, 4 * MIB, flags);
            if (len <= 0) break;
            got += len;
        }
        CHECK(sockatmark(ends[1]) == 1 && got == BEFORE, "mark after %zu, way %d", got, way);
    }
    // One urgent byte.
    connect_both();
    size_t sum = 0;
    pthread_create(&thread, 0, take_all, &sum);
    send_out(memory, 8 * MIB);
    CHECK(send(ends[0], memory, 3 * MIB, MSG_OOB) == 3 * MIB, "send");
    shutdown(ends[0], SHUT_WR);
    pthread_join(thread, 0);
    CHECK(sum == 3 * MIB - 1, "%zu of %lu", sum, 3 * MIB - 1);
    // Discarded.
    connect_both();
    static char bytes[BEFORE];
    memset(bytes, 'b', sizeof bytes);
    memset(memory, 'm', 8 * MIB);
    for (int by_message = 0; by_message < 3; by_message++) {
        CHECK(write(ends[0], bytes, sizeof bytes) == sizeof bytes, "write");
        usleep(100000);
        send_out(memory, 8 * MIB);
        struct iovec part = {memory + 100, sizeof bytes};
        struct mmsghdr message = {{.msg_iov = &part, .msg_iovlen = 1}, 0};
        int flags = MSG_TRUNC | MSG_WAITALL;
        ssize_t len = by_message == 2   ? (recvmmsg(ends[1], &message, 1, flags, 0), message.msg_len)
                      : by_message == 1 ? recvmsg(ends[1], &message.msg_hdr, flags)
                                        : recv(ends[1], memory + 100, sizeof bytes, flags);
        CHECK(len == sizeof bytes, "discarded %zd", len);
        CHECK(is_all(memory, 8 * MIB, 'm'), "changed, by message %d", by_message);
    }
    DONE;
}
