// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A transfer from a pipe or socket into memory that is out returns all that is there, as the kernel's, and does not
// wait for more.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static char *memory, *source;
static int ends[2];
static void out(void) {
    for (size_t byte = 0; byte < 64 * M; byte += 4096)
        memory[byte] = 0;
    madvise(memory, 8 * M, MADV_PAGEOUT);
}
static int make(int is_pipe, size_t len) {
    int bytes = 24 * M;
    if (is_pipe) {
        CHECK(pipe(ends) == 0);
        if (fcntl(ends[1], F_SETPIPE_SZ, len) < (int)len)
            return 0;
    } else {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        if (setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
            return 0; // not as root
    }
    out();
    for (size_t done = 0; done < len; done += M)
        CHECK(write(ends[1], source + done, len - done < M ? len - done : M) > 0);
    return 1;
}
static void is_right(ssize_t got, size_t len, int is_over) {
    CHECK(got == (ssize_t)len && memcmp(memory, source, len) == 0);
    if (is_over) {
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
}
static void *fill(void *len) {
    for (size_t done = 0; done < (size_t)len; done += M)
        CHECK(write(ends[1], source + done, M) == (ssize_t)M);
    return NULL;
}
static void *drain(void *len) {
    static size_t buffer[512];
    for (size_t done = 0; done < (size_t)len; done += sizeof buffer)
        CHECK(recv(ends[0], buffer, sizeof buffer, MSG_WAITALL) == sizeof buffer && buffer[0] == done);
    return NULL;
}
int main(void) {
    memory = mmap(NULL, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    source = mmap(NULL, 4 * M, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < 4 * M; i++)
        source[i] = i * 31 + (i >> 12);
    struct iovec list[2] = {{memory, 2 * M}, {memory + 2 * M, 2 * M}};
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 2};
    for (int is_pipe = 0; is_pipe < 2; is_pipe++) {
        size_t all = is_pipe ? M : 4 * M;
        static const size_t lens[] = {1000, 256 << 10, (256 << 10) + 1, 700000, 1 << 20};
        for (int at = 0; at < 5; at++) {
            if (!make(is_pipe, lens[at]))
                continue;
            is_right(read(ends[0], memory, 4 * M), lens[at], 1);
            CHECK(make(is_pipe, lens[at]));
            is_right(syscall(SYS_read, ends[0], memory, 4 * M), lens[at], 1);
        }
        if (make(is_pipe, all))
            is_right(readv(ends[0], list, 2), all, 1);
        if (make(is_pipe, all))
            is_right(syscall(SYS_readv, ends[0], list, 2), all, 1);
    }
    if (make(0, 4 * M)) {
        is_right(recv(ends[0], memory, 4 * M, MSG_PEEK), 4 * M, 0);
        out();
        is_right(recv(ends[0], memory, 4 * M, MSG_DONTWAIT), 4 * M, 1);
        CHECK(make(0, 3 * M));
        is_right(recvfrom(ends[0], memory, 4 * M, 0, NULL, NULL), 3 * M, 1);
        CHECK(make(0, 3 * M));
        is_right(syscall(SYS_recvfrom, ends[0], memory, 4 * M, 0, NULL, NULL), 3 * M, 1);
        CHECK(make(0, 3 * M));
        is_right(recvmsg(ends[0], &message, 0), 3 * M, 1);
    }
    pthread_t thread;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pthread_create(&thread, NULL, fill, (void *)(4 * M)) == 0);
    out();
    is_right(recvmsg(ends[0], &message, MSG_WAITALL), 4 * M, 0);
    CHECK(pthread_join(thread, NULL) == 0 && pthread_create(&thread, NULL, fill, (void *)(4 * M)) == 0);
    out();
    is_right(recv(ends[0], memory, 4 * M, MSG_WAITALL), 4 * M, 0);
    CHECK(pthread_join(thread, NULL) == 0);
    struct iovec long_list[2] = {{memory, 20 * M}, {memory + 20 * M, 12 * M}};
    struct msghdr long_message = {.msg_iov = long_list, .msg_iovlen = 2};
    for (size_t i = 0; i < 32 * M; i += 4096)
        *(size_t *)(memory + i) = i;
    CHECK(pthread_create(&thread, NULL, drain, (void *)(32 * M)) == 0);
    CHECK(sendmsg(ends[1], &long_message, 0) == 32 * M && pthread_join(thread, NULL) == 0);
    // The second message comes after all of the first, however many calls that takes.
    struct iovec last = {source, 8};
    struct mmsghdr both[2] = {{.msg_hdr = long_message}, {.msg_hdr = {.msg_iov = &last, .msg_iovlen = 1}}};
    memcpy(source, &(size_t){32 * M}, 8);
    CHECK(pthread_create(&thread, NULL, drain, (void *)(32 * M)) == 0);
    for (size_t done = 0, len = 0; done < 2 && len < 32 * M; len += both[0].msg_len) {
        both[0].msg_hdr.msg_iov[0] = (struct iovec){memory + len, 32 * M - len};
        both[0].msg_hdr.msg_iovlen = 1;
        done = sendmmsg(ends[1], both, 2, 0);
        CHECK(done == 1 || (done == 2 && len + both[0].msg_len == 32 * M));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    puts("ok");
    return 0;
}
