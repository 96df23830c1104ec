// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 24M 96M
// Advice given by a request of io_uring is followed as that of madvise, for memory in RAM and out of it: what is not
// needed reads as zero, what children shall not see they do not see. In a chain, it is followed in its turn.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include "uring.h"
/* Submits the requests. Returns the result of the last. */
static int done(int count) {
    CHECK(syscall(SYS_io_uring_enter, ring, count, count, IORING_ENTER_GETEVENTS, 0, 0) == count);
    int result = 0;
    for (; count > 0; count--) {
        CHECK(*cq_head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE));
        result = cqes[*cq_head & *cq_mask].res;
        __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
    }
    return result;
}
static char *a, *cold;
static void pressure(void) {
    for (size_t i = 0; i < 200 * M; i += 4096)
        cold[i]++;
}
static void out(void) { madvise(a, 24 * M, MADV_PAGEOUT); }
static int advise(void *at, size_t len, int advice) {
    next(IORING_OP_MADVISE, -1, at, len)->fadvise_advice = advice;
    return done(1);
}
static int is(char c, size_t from, size_t to) {
    for (size_t i = from; i < to; i += 512)
        if (a[i] != c)
            return 0;
    return 1;
}
int main(void) {
    a = mmap(0, 24 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold = mmap(0, 200 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED && cold != MAP_FAILED);
    pressure();
    set_up();
    memset(a, 'x', 16 * M);
    out();
    CHECK(advise(a + 4 * M, 2 * M, MADV_DONTNEED) == 0);
    CHECK(is('x', 0, 4 * M) && is(0, 4 * M, 6 * M) && is('x', 6 * M, 8 * M));
    memset(a + 8 * M, 'y', 2 * M); /* in RAM */
    CHECK(advise(a + 8 * M, M + 4096, MADV_DONTNEED) == 0);
    pressure();
    CHECK(is(0, 8 * M, 9 * M + 4096) && is('y', 9 * M + 4096, 10 * M));
    CHECK(advise(a + 1, M, MADV_DONTNEED) == -EINVAL && advise(a, M, 9999) == -EINVAL);

    /* A chain: written out, then not needed. */
    char file[] = "/var/tmp/uringXXXXXX", got[4096];
    int fd = mkstemp(file);
    CHECK(fd >= 0 && unlink(file) == 0);
    memset(a + 12 * M, 'z', M);
    out();
    next(IORING_OP_WRITE, fd, a + 12 * M, M)->flags = IOSQE_IO_LINK;
    next(IORING_OP_MADVISE, -1, a + 12 * M, M)->fadvise_advice = MADV_DONTNEED;
    CHECK(done(2) == 0 && is(0, 12 * M, 13 * M) && is('x', 13 * M, 14 * M));
    CHECK(pread(fd, got, 4096, M - 4096) == 4096 && got[0] == 'z' && got[4095] == 'z');

    a[20 * M] = 5, a[22 * M] = 6;
    CHECK(advise(a + 20 * M, M, MADV_WIPEONFORK) == 0);
    out();
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child)
        _exit(a[20 * M] == 0 && a[22 * M] == 6 ? 0 : 9);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && a[20 * M] == 5);
    puts("ok");
    return 0;
}
