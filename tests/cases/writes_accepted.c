// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 40
// Long writes from memory that has left RAM: to a socket that has room for all of it, without a wait where none is
// wanted, ended by the thread's cancellation, and by a list of buffers that lies in one of them.
#include "cold.h"
#include <sys/socket.h>
#include <sys/uio.h>
static char *memory;
static int pair[2], ends[2];
static void *write_pipe(void *unused) {
    (void)unused;
    ssize_t written = write(ends[1], memory, 2 * MIB);
    CHECK(0, "written: %zd", written);
    return NULL;
}
int main(void) {
    int room = 32 * MIB;
    start_engine();
    memory = anonymous(16 * MIB);
    memset(memory, 7, 16 * MIB);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(ends)) return 2;
    if (setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) == 0) {
        send_out(memory, 16 * MIB);
        ssize_t written = write(pair[0], memory, 5 * MIB);
        CHECK(written == (ssize_t)(5 * MIB), "write: %zd", written);
        struct iovec list[2] = {{memory, 4 * MIB}, {memory + 4 * MIB, 4 * MIB}};
        written = writev(pair[0], list, 2);
        CHECK(written == (ssize_t)(8 * MIB), "writev: %zd", written);
    }
    ssize_t sent = 1;
    while (sent > 0) sent = send(pair[0], memory, 8 * MIB, MSG_DONTWAIT);
    CHECK(errno == EAGAIN, "send without a wait: %zd", sent);
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, write_pipe, NULL);
    sleep(1);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    CHECK(result == PTHREAD_CANCELED, "cancelled: %p", result);
    int file = open("/var/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(write(file, memory, 12 * MIB) == (ssize_t)(12 * MIB), "a file");
    struct iovec *list = (struct iovec *)(memory + MIB);
    for (int i = 0; i < 4; i++) list[i] = (struct iovec){memory + i * 3 * MIB, 3 * MIB};
    ssize_t got = preadv(file, list, 4, 0);
    CHECK(got == (ssize_t)(12 * MIB), "preadv: %zd", got);
    DONE;
}
