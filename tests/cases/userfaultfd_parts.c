// EXPECT: exit 0, last line "ok"
// NEEDS: root
// Parts of memory that is in use, much of it out of RAM, are registered with a userfaultfd of the program: odd pages,
// whole blocks, and memory that has no access yet. What was there stays; what the program drops there is its own to
// fill; what is beside it is not touched. UFFDIO_MOVE takes pages of memory that it did not register.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define M (1ul << 20)
#define PAGE 4096ul
#define SIZE (240 * M)
#define FAIL(...) do { printf("FAIL " __VA_ARGS__); printf(": %s\n", strerror(errno)); exit(1); } while (0)
#ifndef UFFDIO_MOVE
struct uffdio_move { uint64_t dst, src, len, mode; int64_t move; };
#define UFFDIO_MOVE _IOWR(0xAA, 5, struct uffdio_move)
#endif

static int fd;
static long served;

static void *serve(void *unused) {
    static unsigned char page[PAGE];
    for (;;) {
        struct uffd_msg m;
        if (read(fd, &m, sizeof m) != sizeof m) return unused;
        uint64_t at = m.arg.pagefault.address & ~(PAGE - 1);
        memset(page, 0x77, PAGE);
        struct uffdio_copy c = {at, (uint64_t)page, PAGE, 0, 0};
        __atomic_fetch_add(&served, 1, __ATOMIC_SEQ_CST); // before the copy, which lets the other thread go on
        if (ioctl(fd, UFFDIO_COPY, &c)) {
            if (errno != EEXIST) FAIL("copy");
            __atomic_fetch_sub(&served, 1, __ATOMIC_SEQ_CST);
        }
    }
}

static void take(unsigned char *at, size_t len) {
    struct uffdio_register r = {{(uint64_t)at, len}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(fd, UFFDIO_REGISTER, &r)) FAIL("register");
}

static unsigned char want(size_t i) { return i / PAGE * 7 + 1; }

int main(void) {
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {UFFD_API, 0, 0};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) FAIL("userfaultfd");
    unsigned char *p = mmap(0, SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < SIZE; i += PAGE) memset(p + i, want(i), PAGE);
    size_t parts[][2] = {{3 * M + PAGE, M + 2 * PAGE}, {10 * M, 4 * M}, {101 * M - PAGE, PAGE}, {SIZE - 9 * M, 5 * M + PAGE}};
    int nr = sizeof parts / sizeof *parts;
    for (int k = 0; k < nr; k++) take(p + parts[k][0], parts[k][1]);
    pthread_t thread;
    pthread_create(&thread, 0, serve, 0);
    for (size_t i = 0; i < SIZE; i += 512)
        if (p[i] != want(i)) FAIL("after registering: byte %#zx is %d", i, p[i]);
    for (int k = 0; k < nr; k++)
        if (madvise(p + parts[k][0], parts[k][1], MADV_DONTNEED)) FAIL("drop");
    long dropped = 0;
    for (size_t i = 0; i < SIZE; i += 512) {
        int w = want(i);
        for (int k = 0; k < nr; k++)
            if (i >= parts[k][0] && i < parts[k][0] + parts[k][1]) w = 0x77, dropped += i % PAGE == 0;
        if (p[i] != w) FAIL("after dropping: byte %#zx is %d, not %d", i, p[i], w);
    }
    if (served != dropped) FAIL("%ld pages served, %ld dropped", served, dropped);

    unsigned char *reserved = mmap(0, 8 * M, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    take(reserved, 8 * M);
    if (mprotect(reserved, 8 * M, 3)) FAIL("mprotect");
    for (size_t i = 0; i < 8 * M; i += PAGE)
        if (reserved[i] != 0x77) FAIL("reserved memory: byte %#zx is %d", i, reserved[i]);

    struct uffdio_move move = {(uint64_t)p + 10 * M, (uint64_t)p + 20 * M, 16 * PAGE, 0, 0};
    for (size_t i = 20 * M; i < 20 * M + 16 * PAGE; i += PAGE) p[i + 1] = 5;
    if (madvise(p + 10 * M, 4 * M, MADV_DONTNEED)) FAIL("drop");
    if (ioctl(fd, UFFDIO_MOVE, &move) == 0) {
        for (size_t i = 0; i < 16 * PAGE; i += PAGE)
            if (p[10 * M + i] != want(20 * M + i) || p[10 * M + i + 1] != 5 || p[20 * M + i]) FAIL("moved: %#zx", i);
    } else if (errno != EINVAL && errno != EBUSY) {
        FAIL("move");
    }
    struct uffdio_range all = {(uint64_t)p + 10 * M, 4 * M};
    if (ioctl(fd, UFFDIO_UNREGISTER, &all)) FAIL("unregister");
    memset(p + 10 * M, 1, 4 * M), memset(p + 30 * M, 2, 150 * M);
    for (size_t i = 10 * M; i < 180 * M; i += PAGE) {
        int w = i < 14 * M ? 1 : i >= 30 * M ? 2 : want(i);
        if (i >= 20 * M && i < 20 * M + 16 * PAGE) continue;
        if (p[i] != w) FAIL("at the end: byte %#zx is %d, not %d", i, p[i], w);
    }
    munmap(p, SIZE);
    puts("ok");
    return 0;
}
