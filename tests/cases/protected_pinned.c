// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 32M
// A protection that a program sets stays, though pages of that memory are pinned, and the engine tries to send it out.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#define M (1ul << 20)
#define P 4096ul
#define FOLIO (64ul << 10)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
enum { LEN = 4 * M, SECONDS = 4 };
static atomic_int ends;
static char *map(size_t len) {
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}
static void *press(void *nothing) {
    char *more = map(96 * M);
    for (unsigned round = 1; !ends; round++)
        for (size_t i = 0; i < 96 * M && !ends; i += P)
            more[i] = round;
    return nothing;
}
int main(void) {
    /* Small mappings, so that folios are small. */
    char *at = map(LEN + M);
    at += M - (size_t)at % M;
    for (size_t i = 0; i < LEN; i += M)
        munmap(at + i + M - 3 * P, P);
    memset(at, 1, M - 3 * P);
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    CHECK(ring >= 0);
    static struct iovec pinned[LEN / FOLIO];
    int count = 0;
    for (size_t i = 0; i < LEN; i += FOLIO)
        if (i % M + FOLIO < M) {
            memset(at + i, 1, FOLIO);
            pinned[count++] = (struct iovec){at + i + 5 * P, P};
        }
    CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, pinned, count) == 0);
    for (int i = 0; i < count; i++)
        CHECK(mprotect((char *)pinned[i].iov_base - 5 * P, FOLIO, PROT_READ) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, press, 0) == 0);
    time_t end = time(0) + SECONDS;
    unsigned long rounds = 0;
    for (; time(0) < end; rounds++)
        for (int i = 0; i < count; i++) {
            char *folio = (char *)pinned[i].iov_base - 5 * P;
            CHECK(mprotect(folio, FOLIO, PROT_READ | PROT_WRITE) == 0);
            for (size_t page = 0; page < FOLIO; page += P)
                folio[page]++; /* SIGSEGV, if it is read-only again */
            CHECK(mprotect(folio, FOLIO, PROT_READ) == 0);
        }
    ends = 1;
    pthread_join(thread, 0);
    for (int i = 0; i < count; i++)
        for (size_t page = 0; page < FOLIO; page += P)
            CHECK(((char *)pinned[i].iov_base - 5 * P)[page] == (char)(1 + rounds));
    puts("ok");
    return 0;
}
