// EXPECT: exit 0, last line "ok"
// BUDGETS: 96M 160M
// Long transfers are whole, as without a budget: gathered and scattered ones, to files, pipes, sockets and devices;
// and records of two processes that append to one file do not mix.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static unsigned char *a;
static unsigned char byte_at(size_t at) { return at * 2654435761u >> 13; }
static int temporary(void) {
    char name[] = "/var/tmp/longXXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    return fd;
}
static void *drain(void *fd) {
    static unsigned char got[65536];
    size_t total = 0;
    for (ssize_t n; (n = read(*(int *)fd, got, sizeof got)) > 0; total += n)
        for (ssize_t i = 0; i < n; i++)
            CHECK(got[i] == byte_at(total + i));
    return (void *)total;
}
static void to_stream(int *ends, int is_message) {
    pthread_t reader;
    CHECK(pthread_create(&reader, 0, drain, &ends[0]) == 0);
    struct iovec list[3] = {{a, M + 5}, {a + M + 5, 4 * M}, {a + 5 * M + 5, 3 * M - 5}};
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 3};
    CHECK((is_message ? sendmsg(ends[1], &message, 0) : writev(ends[1], list, 3)) == (ssize_t)(8 * M));
    close(ends[1]);
    void *total;
    CHECK(pthread_join(reader, &total) == 0 && (size_t)total == 8 * M);
    close(ends[0]);
}
static void append(const char *name, int byte) {
    int fd = open(name, O_WRONLY | O_APPEND);
    CHECK(fd >= 0);
    memset(a, byte, 6 * M);
    struct iovec list[2] = {{a, 3 * M}, {a + 3 * M, 3 * M}};
    for (int i = 0; i < 10; i++)
        CHECK((i & 1 ? writev(fd, list, 2) : write(fd, a, 6 * M)) == (ssize_t)(6 * M));
    _exit(0);
}
int main(void) {
    size_t len = 200 * M;
    a = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED);
    for (size_t i = 0; i < len; i++)
        a[i] = byte_at(i);
    int fd = temporary();
    struct iovec list[1024] = {{a, M + 7}, {a + M + 7, 2 * M - 7}};
    CHECK(writev(fd, list, 2) == (ssize_t)(3 * M));
    CHECK(pwritev(fd, list, 2, 3 * M) == (ssize_t)(3 * M) && pwritev2(fd, list, 2, -1, 0) == (ssize_t)(3 * M));
    unsigned char *b = a + 100 * M;
    memset(b, 0, 9 * M);
    struct iovec back[2] = {{b, 2 * M + 1}, {b + 2 * M + 1, 4 * M - 1}};
    CHECK(preadv(fd, back, 2, 0) == (ssize_t)(6 * M));
    CHECK(!memcmp(b, a, 3 * M) && !memcmp(b + 3 * M, a, 3 * M));
    CHECK(lseek(fd, 3 * M, SEEK_SET) == (off_t)(3 * M) && readv(fd, back, 2) == (ssize_t)(3 * M) && lseek(fd, 0, SEEK_CUR) == (off_t)(6 * M));
    /* Scattered: 1024 pieces, each in another block. */
    for (int i = 0; i < 1024; i++)
        list[i] = (struct iovec){a + i % 95 * 2 * M + i / 95 * 8192, 8000};
    for (int i = 0; i < 1024; i++)
        memset(list[i].iov_base, i, 8000);
    CHECK(pwritev(fd, list, 1024, 0) == 1024 * 8000);
    for (int i = 0; i < 1024; i++)
        memset(list[i].iov_base, 0, 8000);
    CHECK(preadv(fd, list, 1024, 0) == 1024 * 8000);
    for (int i = 0; i < 1024; i++)
        for (int j = 0; j < 8000; j++)
            CHECK(((unsigned char *)list[i].iov_base)[j] == (unsigned char)i);
    int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY);
    CHECK(write(null, a, 100 * M) == (ssize_t)(100 * M) && read(zero, a, 100 * M) == (ssize_t)(100 * M) && !a[99 * M]);
    for (size_t i = 0; i < 9 * M; i++)
        a[i] = byte_at(i);
    int ends[2];
    CHECK(pipe(ends) == 0);
    to_stream(ends, 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    to_stream(ends, 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    to_stream(ends, 1);
    /* What does not fit a pipe that does not wait is cut, not lost. */
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    ssize_t some = writev(ends[1], (struct iovec[]){{a, 2 * M}, {a + 2 * M, 2 * M}}, 2);
    CHECK(some == 65536 && read(ends[0], b, M) == some && !memcmp(a, b, some));
    char name[] = "/var/tmp/longXXXXXX";
    int log = mkstemp(name);
    CHECK(log >= 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++)
        if (!(children[i] = fork()))
            append(name, 'a' + i);
    for (int i = 0, status; i < 2; i++)
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    unlink(name);
    for (int i = 0; i < 20; i++) {
        CHECK(pread(log, b, 6 * M, i * 6 * M) == (ssize_t)(6 * M) && (b[0] == 'a' || b[0] == 'b'));
        CHECK(!memcmp(b, b + 1, 6 * M - 1));
    }
    puts("ok");
    return 0;
}
