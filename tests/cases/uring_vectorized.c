// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 24M
// io_uring: a send of a list of buffers (Linux 6.17), with and without copies. The receiver gets what was in them,
// though they leave RAM before it reads.
#include "check.h"
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <sys/socket.h>
#include <sys/uio.h>
#define LEN MIB
enum { VECTORIZED = 1 << 5 };
static void send_list(int socket, char *memory, struct iovec *list, int operation) {
    struct io_uring_params about = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &about);
    CHECK(ring >= 0, "setup");
    char *queues = mmap(0, about.sq_off.array + 64 + about.cq_off.cqes + 16 * about.cq_entries, PROT_READ | PROT_WRITE,
                        MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    *entry = (struct io_uring_sqe){.opcode = operation, .fd = socket, .addr = (uintptr_t)list, .len = 2,
                                   .ioprio = VECTORIZED, .msg_flags = MSG_WAITALL, .user_data = 5};
    list[0] = (struct iovec){memory, LEN / 2};
    list[1] = (struct iovec){memory + LEN / 2, LEN / 2};
    *(unsigned *)(queues + about.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(queues + about.sq_off.tail), 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++) madvise(memory, LEN, MADV_PAGEOUT);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1, "enter");
    struct io_uring_cqe *result = (void *)(queues + about.cq_off.cqes);
    if (result->res == -EINVAL) return (void)(puts("ok"), exit(0)); // this kernel has no such requests
    CHECK(result->res == (int)LEN, "result %d", result->res);
}
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), small = 4096, large = 8 << 20, operations[] = {IORING_OP_SEND_ZC, IORING_OP_SEND};
    static struct iovec in_data[2];
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof place;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    CHECK(bind(listener, (void *)&place, len) == 0 && listen(listener, 4) == 0, "listen");
    getsockname(listener, (void *)&place, &len);
    char *memory = anonymous(LEN), *other = anonymous(48 * MIB);
    for (int turn = 0; turn < 4; turn++) {
        int from = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(from, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large);
        CHECK(connect(from, (void *)&place, len) == 0, "connect");
        int to = accept(listener, NULL, NULL);
        memset(other, turn, 48 * MIB);
        for (size_t at = 0; at < LEN; at += 8) *(uint64_t *)(memory + at) = at * 3 + turn;
        // The list is in static data, or in memory that has left RAM, too.
        struct iovec *list = turn < 2 ? in_data : (void *)(other + MIB);
        send_list(from, memory, list, operations[turn % 2]);
        shutdown(from, SHUT_WR);
        for (int i = 0; i < 2; i++) madvise(memory, LEN, MADV_PAGEOUT);
        memset(other, 0xe0 + turn, 48 * MIB);
        size_t got = 0;
        long part, wrong = 0;
        static char bytes[LEN + 8];
        while ((part = read(to, bytes + got, sizeof bytes - got)) > 0) got += part;
        for (size_t at = 0; at < LEN; at += 8) wrong += *(uint64_t *)(bytes + at) != at * 3 + turn;
        CHECK(got == LEN && wrong == 0, "turn %d: %zu bytes, %ld wrong words", turn, got, wrong);
        close(from), close(to);
    }
    DONE;
}
