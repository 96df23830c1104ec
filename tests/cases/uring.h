/* A ring of 8 requests. Who defines CALL makes its calls by that, and defines `mapped` himself. */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static int ring;
static unsigned *sq_tail, *sq_mask, *array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;
#ifdef CALL
static long CALL(long number, long a, long b, long c, long d, long e, long f);
static void *mapped(size_t len, long offset);
#else
#define CALL syscall
static void *mapped(size_t len, long offset) {
    void *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    CHECK(at != MAP_FAILED);
    return at;
}
#endif
static void set_up(void) {
    struct io_uring_params p = {0};
    ring = CALL(SYS_io_uring_setup, 8, (long)&p, 0, 0, 0, 0);
    CHECK(ring >= 0);
    char *s = mapped(p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
    char *c = mapped(p.cq_off.cqes + p.cq_entries * sizeof *cqes, IORING_OFF_CQ_RING);
    sqes = mapped(p.sq_entries * sizeof *sqes, IORING_OFF_SQES);
    sq_tail = (void *)(s + p.sq_off.tail), sq_mask = (void *)(s + p.sq_off.ring_mask), array = (void *)(s + p.sq_off.array);
    cq_head = (void *)(c + p.cq_off.head), cq_tail = (void *)(c + p.cq_off.tail), cq_mask = (void *)(c + p.cq_off.ring_mask);
    cqes = (void *)(c + p.cq_off.cqes);
}
static struct io_uring_sqe *next(int operation, int fd, const void *at, unsigned len) {
    unsigned index = *sq_tail & *sq_mask;
    memset(&sqes[index], 0, sizeof *sqes);
    sqes[index].opcode = operation, sqes[index].fd = fd, sqes[index].addr = (long)at, sqes[index].len = len;
    array[index] = index;
    __atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
    return &sqes[index];
}
