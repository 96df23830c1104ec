// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M
// A long write that ends at the limit of file sizes returns what it has written, and no SIGXFSZ comes. The next one,
// which begins there, raises it.
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#define M (1l << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static volatile int signals;
static void on_signal(int number) { signals += number == SIGXFSZ; }
static char *a, *cold;
static int fd;
static void again(void) {
    for (int i = 0; i < 2; i++)
        madvise(a, 24 * M, MADV_PAGEOUT);
    CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
}
static long by_stream(size_t len) {
    FILE *stream = fdopen(dup(fd), "w");
    setvbuf(stream, 0, _IONBF, 0);
    size_t done = fwrite(a, 1, len, stream);
    fclose(stream);
    return done;
}
int main(void) {
    a = mmap(0, 24 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold = mmap(0, 200 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[] = "/var/tmp/limitXXXXXX";
    fd = mkstemp(name);
    CHECK(a != MAP_FAILED && cold != MAP_FAILED && fd >= 0 && unlink(name) == 0);
    memset(a, 'a', 24 * M);
    memset(cold, 1, 200 * M); /* so that the engine runs */
    signal(SIGXFSZ, on_signal);
    for (long limit = 8 * M; limit <= 9 * M; limit += M) {
        struct rlimit most = {limit, RLIM_INFINITY};
        CHECK(setrlimit(RLIMIT_FSIZE, &most) == 0);
        struct iovec list[3] = {{a, 4 * M}, {a + 4 * M, 8 * M}, {a + 12 * M, 8 * M}};
        again();
        CHECK(write(fd, a, 20 * M) == limit && signals == 0);
        CHECK(write(fd, a, 20 * M) == -1 && errno == EFBIG && signals == 1);
        signals = 0, again();
        CHECK(pwrite(fd, a, 20 * M, 0) == limit && signals == 0);
        again();
        CHECK(writev(fd, list, 3) == limit && signals == 0);
        again();
        CHECK(pwritev(fd, list, 3, 0) == limit && signals == 0);
        again();
        CHECK(syscall(SYS_pwrite64, fd, a, 20 * M, 0) == limit && signals == 0);
        again();
        CHECK(syscall(SYS_writev, fd, list, 3) == limit && signals == 0);
        /* A signal that the program has blocked, and that waits, goes on waiting. */
        sigset_t set, waiting;
        sigemptyset(&set), sigaddset(&set, SIGXFSZ);
        CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
        again();
        CHECK(write(fd, a, 20 * M) == limit && sigpending(&waiting) == 0 && !sigismember(&waiting, SIGXFSZ));
        raise(SIGXFSZ), again();
        CHECK(write(fd, a, 20 * M) == limit && sigpending(&waiting) == 0 && sigismember(&waiting, SIGXFSZ));
        CHECK(sigprocmask(SIG_UNBLOCK, &set, 0) == 0 && signals == 1);
        signals = 0;
        /* A stream writes again what was left, and meets the limit. */
        again();
        CHECK(by_stream(20 * M) == limit && signals == 1);
        signals = 0;
    }
    puts("ok");
    return 0;
}
