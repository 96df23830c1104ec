// EXPECT: exit 0, last line "ok"
// NEEDS: move
// io_uring: requests that wait while their memory goes cold, lists and paths that are cold, zero-copy sends, libaio.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/time_types.h>
#include <sys/socket.h>
#include <sys/uio.h>
#define CALL call
#include "uring.h"
#ifndef IORING_CQE_F_NOTIF
#define IORING_CQE_F_NOTIF (1u << 3)
#endif
#define SEND_ZC 47
static int is_inline;
static long call(long number, long a, long b, long c, long d, long e, long f) {
    if (!is_inline)
        return syscall(number, a, b, c, d, e, f);
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}
static void *mapped(size_t len, long offset) {
    long at = call(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    CHECK(at != -1);
    return (void *)at;
}
static struct io_uring_sqe *tagged(int operation, int fd, const void *at, unsigned len, long data) {
    struct io_uring_sqe *one = next(operation, fd, at, len);
    one->user_data = data;
    return one;
}
static void submit(int count) { CHECK(call(SYS_io_uring_enter, ring, count, 0, 0, 0, 0) == count); }
static struct io_uring_cqe done(void) {
    while (*cq_head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE))
        CHECK(call(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) == 0);
    struct io_uring_cqe one = cqes[*cq_head & *cq_mask];
    __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
    return one;
}
static char *a, *cold;
static size_t cold_len = 300 * M;
/* More than the budget at first; then what the requests name, and a part of the rest. */
static void pressure(void) {
    static int nr_before;
    size_t end = nr_before++ ? 8 * M : cold_len;
    for (size_t i = 0; i < end; i += 4096)
        cold[i]++;
    for (int i = 0; i < 2; i++)
        madvise(a, 32 * M, MADV_PAGEOUT);
}
static void waiting(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    for (int i = 0; i < 4; i++)
        tagged(IORING_OP_RECV, ends[0], a + i * 5 * M + 100, 1000, 7); /* all with the same tag */
    submit(4);
    pressure();
    for (int i = 0; i < 4; i++) {
        char text[1000];
        memset(text, 'a' + i, 1000);
        CHECK(send(ends[1], text, 1000, 0) == 1000);
        struct io_uring_cqe one = done();
        CHECK(one.user_data == 7 && one.res == 1000);
        if (i == 1)
            pressure();
    }
    for (int i = 0, seen = 0; i < 4; i++, seen = 0) {
        for (int j = 0; j < 1000; j++)
            CHECK(a[i * 5 * M + 100 + j] == a[i * 5 * M + 100]);
        for (int j = 0; j < 4; j++)
            seen += a[j * 5 * M + 100] == 'a' + i;
        CHECK(seen == 1);
    }
    close(ends[0]), close(ends[1]);
}
/* Buffers from which the kernel chooses, cold when it does, and given back one by one. */
static void provided(void) {
    int ends[2], total = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct io_uring_sqe *sqe = tagged(IORING_OP_PROVIDE_BUFFERS, 4, a + 16 * M, M, 1);
    sqe->buf_group = 5, sqe->off = 10;
    submit(1);
    CHECK(done().res >= 0);
    for (int i = 0; i < 12; i++) {
        char text[1000];
        memset(text, 'a' + i, 1000);
        sqe = tagged(IORING_OP_RECV, ends[0], 0, M, 2);
        sqe->flags = IOSQE_BUFFER_SELECT, sqe->buf_group = 5;
        submit(1);
        pressure();
        CHECK(send(ends[1], text, 1000, 0) == 1000);
        struct io_uring_cqe one = done();
        int id = one.flags >> IORING_CQE_BUFFER_SHIFT;
        CHECK(one.res == 1000 && one.flags & IORING_CQE_F_BUFFER && id >= 10 && id < 14);
        CHECK(memcmp(a + (16 + id - 10) * M, text, 1000) == 0);
        total += id;
        sqe = tagged(IORING_OP_PROVIDE_BUFFERS, 1, a + (16 + id - 10) * M, M, 3);
        sqe->buf_group = 5, sqe->off = id;
        submit(1);
        CHECK(done().res >= 0);
    }
    CHECK(total >= 120);
    close(ends[0]), close(ends[1]);
}
static void cold_arguments(void) {
    char *name = a + M;
    strcpy(name, "/proc/self/cmdline");
    pressure();
    tagged(IORING_OP_OPENAT, AT_FDCWD, name, 0, 1);
    submit(1);
    int fd = done().res;
    CHECK(fd >= 0);
    struct iovec *list = (void *)(a + 3 * M);
    list[0] = (struct iovec){a + 4 * M, 2}, list[1] = (struct iovec){a + 9 * M, 3};
    pressure();
    tagged(IORING_OP_READV, fd, list, 2, 2);
    submit(1);
    CHECK(done().res == 5 && a[9 * M]);
    struct __kernel_timespec *time = (void *)(a + 6 * M);
    *time = (struct __kernel_timespec){0, 1000};
    pressure();
    tagged(IORING_OP_TIMEOUT, -1, time, 1, 3);
    submit(1);
    CHECK(done().res == -ETIME);
    pressure();
    tagged(IORING_OP_READ, fd, (void *)4096, 1, 4);
    submit(1);
    CHECK(done().res == -EFAULT);
    close(fd);
}
static void zero_copy(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), server;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK(bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0 && getsockname(listener, (void *)&at, &len) == 0);
    int room = 8 * M;
    setsockopt(client, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    CHECK(connect(client, (void *)&at, len) == 0 && (server = accept(listener, 0, 0)) >= 0);
    int notices = 0, sent = 0;
    for (; sent < 16; sent++) {
        memset(a + sent * M, sent + 1, 65536);
        tagged(SEND_ZC, client, a + sent * M, 65536, sent);
        submit(1);
        struct io_uring_cqe one;
        while ((one = done()).flags & IORING_CQE_F_NOTIF)
            notices--;
        if (one.res == -EINVAL)
            break; /* this kernel has none */
        CHECK(one.res == 65536);
        notices += (one.flags & IORING_CQE_F_MORE) != 0;
    }
    pressure();
    shutdown(client, SHUT_WR);
    static unsigned char got[65536];
    long total = 0, n;
    while ((n = recv(server, got, sizeof got, 0)) > 0) {
        for (long i = 0; i < n; i++)
            CHECK(got[i] == (total + i) / 65536 + 1);
        total += n;
    }
    CHECK(n == 0 && total == sent * 65536l);
    for (; notices > 0; notices--)
        CHECK(done().flags & IORING_CQE_F_NOTIF);
    close(listener), close(client), close(server);
}
static void aio(void) {
    char file[] = "/var/tmp/uringXXXXXX";
    int fd = mkstemp(file);
    CHECK(fd >= 0 && unlink(file) == 0);
    aio_context_t context = 0;
    CHECK(call(SYS_io_setup, 8, (long)&context, 0, 0, 0, 0) == 0);
    struct iocb **list = (void *)(a + 100);
    for (int i = 0; i < 4; i++) {
        struct iocb *one = list[i] = (void *)(a + (3 * i + 2) * M);
        *one = (struct iocb){.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_nbytes = 100000, .aio_offset = i * 100000};
        one->aio_buf = (long)memset(a + (3 * i + 3) * M, 'a' + i, 100000);
    }
    pressure();
    struct io_event *events = (void *)(a + 30 * M);
    int submitted = 0;
    for (long n; submitted < 4; submitted += n)
        CHECK((n = call(SYS_io_submit, context, 4 - submitted, (long)(list + submitted), 0, 0, 0)) > 0);
    pressure();
    for (long n, got = 0; got < 4; got += n) {
        CHECK((n = call(SYS_io_getevents, context, 1, 4, (long)events, 0, 0)) > 0);
        for (int i = 0; i < n; i++)
            CHECK(events[i].res == 100000);
    }
    pressure();
    CHECK(pread(fd, a, 400000, 0) == 400000);
    for (int i = 0; i < 400000; i++)
        CHECK(a[i] == 'a' + i / 100000);
    CHECK(call(SYS_io_destroy, context, 0, 0, 0, 0, 0) == 0);
    close(fd);
}
int main(void) {
    a = mmap(0, 32 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold = mmap(0, cold_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED && cold != MAP_FAILED);
    for (is_inline = 0; is_inline < 2; is_inline++) {
        set_up();
        waiting();
        provided();
        cold_arguments();
        if (!is_inline)
            zero_copy();
        aio();
        close(ring);
    }
    struct io_uring_params p = {.flags = IORING_SETUP_SQPOLL};
    CHECK(syscall(SYS_io_uring_setup, 8, &p) >= 0 || errno == EPERM);
    puts("ok");
    return 0;
}
