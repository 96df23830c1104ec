// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 32M 24M
/* io_uring: a send of a list of buffers (Linux 6.17), with and without copies, and one without copies for a socket whose
   option a request has set. The receiver gets what was in them, though they leave RAM before it reads. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "uring.h"
enum { LEN = 1 << 20, VECTORIZED = 1 << 5, SETS_OPTION = 3 };
static char *memory, *other;
static void out(void) {
    for (int i = 0; i < 2; i++)
        madvise(memory, LEN, MADV_PAGEOUT);
}
static int made(void) {
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
    CHECK(*cq_head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE));
    return cqes[(*cq_head)++ & *cq_mask].res;
}
/* Whether the kernel has such requests. */
static int sends_list(int operation, int to, struct iovec *list) {
    list[0] = (struct iovec){memory, LEN / 2};
    list[1] = (struct iovec){memory + LEN / 2, LEN / 2};
    struct io_uring_sqe *entry = next(operation, to, list, 2);
    entry->ioprio = VECTORIZED, entry->msg_flags = MSG_WAITALL;
    if (operation == IORING_OP_SEND)
        out(); /* else it is in RAM: the socket keeps its pages */
    int result = made();
    CHECK(result == LEN || result == -EINVAL);
    return result == LEN;
}
static int sends_by_option(int to) {
    static int on = 1;
    struct io_uring_sqe *entry = next(IORING_OP_URING_CMD, to, (void *)(SOL_SOCKET | (long)SO_ZEROCOPY << 32), 0);
    entry->cmd_op = SETS_OPTION, entry->file_index = sizeof on, ((long *)entry)[6] = (long)&on;
    int result = made();
    CHECK(result == 0 || result == -ENOPROTOOPT || result == -EOPNOTSUPP);
    next(IORING_OP_SEND, to, memory, LEN)->msg_flags = MSG_WAITALL | MSG_ZEROCOPY;
    return made() == LEN;
}
int main(void) {
    static const int operations[] = {IORING_OP_SEND_ZC, IORING_OP_SEND, IORING_OP_URING_CMD};
    static struct iovec in_data[2];
    static char bytes[LEN + 8];
    int listener = socket(AF_INET, SOCK_STREAM, 0), small = 4096, large = 8 * LEN;
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof place;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    CHECK(bind(listener, (void *)&place, len) == 0 && listen(listener, 4) == 0);
    CHECK(getsockname(listener, (void *)&place, &len) == 0);
    memory = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    other = mmap(0, 60 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int turn = 0; turn < 6; turn++) {
        int from = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(from, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large);
        CHECK(connect(from, (void *)&place, len) == 0);
        int to = accept(listener, NULL, NULL);
        memset(other, turn, 60 * M);
        for (unsigned at = 0; at < LEN; at += sizeof at)
            *(unsigned *)(memory + at) = at * 3 + turn;
        int operation = operations[turn % 3];
        set_up(); /* a send without copies completes a second time, later */
        /* The list is in static data, or in memory that has left RAM, too. */
        if (operation == IORING_OP_URING_CMD ? !sends_by_option(from)
                                             : !sends_list(operation, from, turn < 3 ? in_data : (void *)(other + M)))
            continue;
        shutdown(from, SHUT_WR);
        for (int i = 0; i < 3; i++) {
            out();
            memset(other, 0xe0 + i, 60 * M); /* also in what was the memory's RAM */
        }
        size_t got = 0;
        for (ssize_t part; (part = read(to, bytes + got, sizeof bytes - got)) > 0;)
            got += part;
        CHECK(got == LEN);
        for (unsigned at = 0; at < LEN; at += sizeof at)
            CHECK(*(unsigned *)(bytes + at) == at * 3 + turn);
        close(from), close(to), close(ring);
    }
    puts("ok");
    return 0;
}
