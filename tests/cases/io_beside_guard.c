// RUN: gcc -O2 -o io_beside_guard io_beside_guard.c && ./io_beside_guard    EXPECT: exit 0
// BUDGETS: 64M
// NEEDS: move
/* A device writes into a block one page of which is a guard, or which is protected meanwhile, while the program asks for
   it to be paged out. What the device has read is there afterwards. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d round %d: %s\n", __LINE__, round_, strerror(errno)); exit(1); } } while (0)
static int round_;
int main(void) {
    char name[] = "/var/tmp/guardXXXXXX", *a = mmap(0, 4 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    a = (char *)(((size_t)a + 2 * M - 1) & ~(2 * M - 1)); /* one block */
    int file = mkstemp(name), direct = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    memset(a, 2, M);
    CHECK(file >= 0 && write(file, a, M) == (long)M && fsync(file) == 0);
    if (direct < 0) {
        printf("SKIP: no direct I/O here\n");
        return 0;
    }
    CHECK(mprotect(a + 2 * M - 4096, 4096, PROT_NONE) == 0);
    aio_context_t context = 0;
    CHECK(syscall(SYS_io_setup, 1, &context) == 0);
    for (round_ = 0; round_ < 300; round_++) {
        memset(a, 1, M);
        struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = direct, .aio_buf = (size_t)a, .aio_nbytes = M};
        struct iocb *list[] = {&request};
        struct io_event event;
        CHECK(syscall(SYS_io_submit, context, 1, list) == 1);
        int protects = round_ % 3 == 2;
        if (protects)
            CHECK(mprotect(a, M, PROT_READ) == 0);
        madvise(a, 2 * M - 4096, MADV_PAGEOUT);
        madvise(a, 2 * M, MADV_PAGEOUT);
        CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, 0) == 1 && event.res == (long)M);
        for (size_t i = 0; i < M; i += 512)
            CHECK(a[i] == 2);
        if (protects)
            CHECK(mprotect(a, M, PROT_READ | PROT_WRITE) == 0);
    }
    return 0;
}
