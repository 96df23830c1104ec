// EXPECT: exit 0, last line "ok"
// NEEDS: move
// Requests of libaio with lists of buffers. Requests, lists, buffers and what is waited with are not in RAM. One of the
// waits has a signal set.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define LEN 700
#define CHECK(right) \
    if (!(right)) \
        return printf("line %d: %m\n", __LINE__), 1

// What a call names, each in a page of its own.
static struct {
    struct iocb **list, *request;
    struct iovec *buffers;
    char *first, *second;
    struct io_event *event;
    struct timespec *limit;
    sigset_t *set;
    struct {
        sigset_t *set;
        size_t len;
    } *named;
} at;

static char *memory;

static void chill(void) {
    madvise(memory, 8 * MIB, MADV_PAGEOUT);
    madvise(memory, 8 * MIB, MADV_PAGEOUT);
}

// Submits one request for two buffers of LEN bytes, and waits for it.
static int perform(aio_context_t context, int what, int fd, int way) {
    memset(at.request, 0, sizeof *at.request);
    *at.list = at.request;
    at.buffers[0] = (struct iovec){at.first, LEN};
    at.buffers[1] = (struct iovec){at.second, LEN};
    *at.request = (struct iocb){.aio_lio_opcode = what, .aio_fildes = fd, .aio_nbytes = 2};
    at.request->aio_buf = (uintptr_t)at.buffers;
    *at.limit = (struct timespec){10, 0};
    at.named->set = at.set;
    at.named->len = 8;
    sigfillset(at.set);
    chill();
    CHECK(syscall(SYS_io_submit, context, 1, at.list) == 1);
    chill();
    // Without a set, and with one.
    if (way == 0)
        CHECK(syscall(SYS_io_getevents, context, 1, 1, at.event, at.limit) == 1);
    if (way > 0)
        CHECK(syscall(SYS_io_pgetevents, context, 1, 1, at.event, at.limit, way == 1 ? NULL : at.named) == 1);
    CHECK(at.event->res == 2 * LEN);
    return 0;
}

int main(void) {
    char name[] = "libaio-XXXXXX";
    int fd = mkstemp(name);
    char *others = mmap(NULL, 200 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 8 * MIB);
    for (size_t i = 0; i < 200 * MIB; i += PAGE)
        others[i] = 1;
    void **pages = (void **)&at;
    for (size_t i = 0; i < sizeof at / sizeof *pages; i++)
        pages[i] = memory + (100 * i + 50) * PAGE;
    aio_context_t context = 0;
    CHECK(fd >= 0 && unlink(name) == 0 && syscall(SYS_io_setup, 8, &context) == 0);
    for (int way = 0; way < 3; way++) {
        memset(at.first, 'a' + way, LEN);
        memset(at.second, 'x' + way, LEN);
        CHECK(!perform(context, IOCB_CMD_PWRITEV, fd, way));
        memset(at.first, 0, LEN);
        memset(at.second, 0, LEN);
        CHECK(!perform(context, IOCB_CMD_PREADV, fd, way));
        for (int i = 0; i < LEN; i++)
            CHECK(at.first[i] == 'a' + way && at.second[i] == 'x' + way);
    }
    printf("ok\n");
    return 0;
}
