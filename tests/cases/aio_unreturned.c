// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M
// Requests of POSIX aio whose end is asked for in any of the ways: without aio_return, no memory stays in RAM for them.
// Requests that are longer than the budget, and more than it holds at a time, are made.
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define M (1ul << 20)
#define NR 24
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static char *a, *cold;
static struct aiocb *requests; /* each on a page of its own */
static struct aiocb *request(int i) { return (void *)((char *)requests + i * 4096); }
static void out(void) {
    for (size_t i = 0; i < 200 * M; i += 4096)
        cold[i]++;
    madvise(a, 2 * NR * M, MADV_PAGEOUT);
}
static struct aiocb *one(int fd, int i, size_t len, int what) {
    struct aiocb *new = request(i);
    memset(new, 0, sizeof *new);
    new->aio_fildes = fd, new->aio_buf = a + 2 * i * M, new->aio_nbytes = len, new->aio_offset = 2 * i * M;
    new->aio_lio_opcode = what;
    return new;
}
static int is_done(int i) {
    int error;
    while ((error = aio_error(request(i))) == EINPROGRESS)
        usleep(100);
    return error == 0;
}
static int is(char c, size_t from, size_t to) {
    for (size_t i = from; i < to; i += 4096)
        if (a[i] != c)
            return 0;
    return 1;
}
int main(void) {
    a = mmap(0, 2 * NR * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold = mmap(0, 200 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    requests = mmap(0, NR * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[] = "/var/tmp/aioXXXXXX";
    int fd = mkstemp(name);
    CHECK(a != MAP_FAILED && cold != MAP_FAILED && requests != MAP_FAILED && fd >= 0 && unlink(name) == 0);
    memset(a, 'a', 2 * NR * M);
    out();
    /* One by one, with aio_error alone. */
    for (int i = 0; i < NR; i++)
        CHECK(aio_write(one(fd, i, 2 * M, 0)) == 0 && is_done(i));
    out();
    /* Many at a time, with aio_suspend alone. */
    for (int i = 0; i < NR; i++)
        CHECK(aio_write(one(fd, i, 2 * M, 0)) == 0);
    for (int i = 0; i < NR; i++) {
        const struct aiocb *list[] = {request(i)};
        CHECK(aio_suspend(list, 1, 0) == 0);
    }
    out();
    /* A list. */
    struct aiocb *list[NR];
    for (int i = 0; i < NR; i++)
        list[i] = one(fd, i, 2 * M, i == 3 ? LIO_NOP : LIO_READ);
    memset(a, 0, 2 * NR * M);
    out();
    CHECK(lio_listio(LIO_WAIT, list, NR, 0) == 0);
    out();
    CHECK(is('a', 0, 6 * M) && is(0, 6 * M, 8 * M) && is('a', 8 * M, 2 * NR * M));
    for (int i = 0; i < NR; i++)
        CHECK(i == 3 || aio_return(request(i)) == 2 * M);
    /* All at once. */
    memset(a, 'b', 2 * NR * M);
    out();
    struct aiocb *whole = one(fd, 0, 2 * NR * M, 0);
    CHECK(aio_write(whole) == 0 && is_done(0) && whole->aio_nbytes == 2 * NR * M && aio_return(whole) == 2 * NR * M);
    memset(a, 0, 2 * NR * M);
    out();
    CHECK(aio_read(whole) == 0 && is_done(0) && aio_return(whole) == 2 * NR * M && is('b', 0, 2 * NR * M));
    /* The same on a descriptor that is not open for it. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = open(path, O_RDONLY);
    CHECK(other >= 0);
    struct aiocb *refused = one(other, 0, 2 * NR * M, 0);
    int result = aio_write(refused), error = result ? errno : 0;
    while (!result && (error = aio_error(refused)) == EINPROGRESS)
        usleep(100);
    CHECK(error == EBADF && (result || aio_return(refused) == -1));
    puts("ok");
    return 0;
}
