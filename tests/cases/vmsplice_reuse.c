// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M 48M
// Pages that are in a pipe (vmsplice) keep their content when the program's memory leaves RAM or is given back.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#define M (1 << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static char got[M];
static char *fresh(size_t len, int byte) {
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, byte, len);
    return at;
}
static void drained(int fd, size_t len, int byte) {
    for (size_t n = 0; n < len;) {
        ssize_t k = read(fd, got + n, len - n);
        CHECK(k > 0);
        n += k;
    }
    for (size_t i = 0; i < len; i++)
        CHECK(got[i] == byte);
}
static long by_library(int fd, struct iovec *v, unsigned long n, unsigned flags) { return vmsplice(fd, v, n, flags); }
static long by_number(int fd, struct iovec *v, unsigned long n, unsigned flags) { return syscall(SYS_vmsplice, fd, v, n, flags); }
int main(void) {
    long (*each[])(int, struct iovec *, unsigned long, unsigned) = {by_library, by_number};
    for (int i = 0; i < 2; i++)
        for (int given = 0; given < 2; given++) {
            int p[2];
            CHECK(pipe(p) == 0 && fcntl(p[1], F_SETPIPE_SZ, M) == M);
            char *a = fresh(4 * M, 7);
            struct iovec v = {a, M};
            CHECK(each[i](p[1], &v, 1, given ? SPLICE_F_GIFT : 0) == M);
            if (given)
                munmap(a, 4 * M);
            char *b = fresh(64ul * M, 9);
            drained(p[0], M, 7);
            /* What fits goes in. Then the pipe is full, and the rest waits for a reader. */
            v = (struct iovec){b, 3 * M};
            CHECK(each[i](p[1], &v, 1, 0) == M);
            CHECK(each[i](p[1], &v, 1, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
            drained(p[0], M, 9);
            struct iovec two[2] = {{b + 100, 5000}, {b + 2 * M, 10000}};
            CHECK(each[i](p[1], two, 2, SPLICE_F_NONBLOCK) == 15000);
            drained(p[0], 15000, 9);
            CHECK(each[i](p[1], two, 0, 0) == 0);
            /* From the other end it copies. */
            memset(b, 5, 2 * M);
            CHECK(write(p[1], b, 4096) == 4096);
            v = (struct iovec){b + 50 * M, 4096};
            CHECK(each[i](p[0], &v, 1, 0) == 4096 && b[50 * M] == 5 && b[50 * M + 4095] == 5 && b[50 * M + 4096] == 9);
            int null = open("/dev/null", O_RDWR);
            v = (struct iovec){b, 4096};
            CHECK(each[i](null, &v, 1, 0) == -1 && errno == EBADF && each[i](-1, &v, 1, 0) == -1 && errno == EBADF);
            CHECK(each[i](p[1], &v, 1, 64) == -1 && errno == EINVAL);
            close(p[0]);
            signal(SIGPIPE, SIG_IGN);
            CHECK(each[i](p[1], &v, 1, 0) == -1 && errno == EPIPE);
            close(null), close(p[1]), munmap(b, 64ul * M);
            if (!given)
                munmap(a, 4 * M);
        }
    puts("ok");
    return 0;
}
