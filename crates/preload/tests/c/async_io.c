/* Asynchronous I/O: a device writes to pages that the kernel has pinned. If pinned pages cannot leave RAM, the data
   arrives. If pins cannot be seen (folios are copied), such I/O is refused, and a program falls back to other calls. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LEN = 64 << 10, OTHERS = 64 << 20 };

static void *ring_part(int ring, size_t len, off_t offset) {
    void *part = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    CHECK(part != MAP_FAILED);
    return part;
}

/* Reads LEN bytes of a file into a registered buffer. */
static void read_fixed(int ring, const struct io_uring_params *params, int file, void *buffer) {
    char *sq = ring_part(ring, params->sq_off.array + params->sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = ring_part(ring, params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqe = ring_part(ring, params->sq_entries * sizeof *sqe, IORING_OFF_SQES);
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_READ_FIXED;
    sqe->fd = file;
    sqe->addr = (unsigned long)buffer;
    sqe->len = LEN;
    ((unsigned *)(sq + params->sq_off.array))[0] = 0;
    atomic_store((_Atomic unsigned *)(sq + params->sq_off.tail), 1);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    CHECK(((struct io_uring_cqe *)(cq + params->cq_off.cqes))[0].res == LEN);
}

int main(void) {
    const char *settings = getenv("FOLIOSWAP_RUN");
    int copies = settings != NULL && strstr(settings, "mapper=copy") != NULL;
    char name[4096];
    snprintf(name, sizeof name, "%s/async_io-%d", getenv("TEST_FOLDER"), getpid());
    int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0 && unlink(name) == 0);
    static char content[LEN];
    memset(content, 'B', LEN);
    CHECK(write(file, content, LEN) == LEN);

    char *buffer = aligned_alloc(2 << 20, 4 << 20), *others = malloc(OTHERS);
    memset(buffer, 'A', 4 << 20);
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) {
        printf("io_uring: %s\n", strerror(errno));
        CHECK(!copies || errno == ENOSYS);
        CHECK(pread(file, buffer, LEN, 0) == LEN);
    } else {
        struct iovec registered = {buffer, LEN};
        CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &registered, 1) == 0);
        for (int round = 0; round < 2; round++)
            memset(others, round, OTHERS);
        read_fixed(ring, &params, file, buffer);
    }
    CHECK(memcmp(buffer, content, LEN) == 0);

    unsigned long context = 0;
    CHECK(!copies || (syscall(SYS_io_setup, 4, &context) == -1 && errno == ENOSYS));
    return 0;
}
