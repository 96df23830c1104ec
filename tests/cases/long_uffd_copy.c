// BUDGETS: 24M 96M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// The program serves memory by a userfaultfd of its own, with one copy of more than fits in RAM, from memory that may
// have left it. A copy that meets a page tells how far it came.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(cond) do { if (!(cond)) failed(__LINE__, #cond); } while (0)
static void failed(int line, const char *what) {
    printf("line %d: %s (errno %d)\n", line, what, errno);
    fflush(stdout);
    _Exit(1);
}

static const size_t source_size = 80 << 20, size = 33 << 20, page = 4096;

static uint64_t *memory(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == EPERM) {
        puts("done"); /* only with privileges */
        return 0;
    }
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
    uint64_t *source = memory(source_size), *served = memory(size);
    for (size_t at = 0; at < source_size / sizeof *source; at++) source[at] = at * 0x9e3779b97f4a7c15;
    struct uffdio_register registered = {.range = {(uintptr_t)served, size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(fd, UFFDIO_REGISTER, &registered) == 0);
    const uintptr_t from = (uintptr_t)source, to = (uintptr_t)served;
    struct uffdio_copy copy = {.dst = to + size - page, .src = from + size - page, .len = page};
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0 && copy.copy == (int64_t)page);
    copy = (struct uffdio_copy){.dst = to, .src = from, .len = size};
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == -1 && errno == EAGAIN);
    CHECK(copy.copy == (int64_t)(size - page) && copy.len == size && copy.src == from);
    for (size_t at = 0; at < size / sizeof *served; at++) CHECK(served[at] == at * 0x9e3779b97f4a7c15);
    CHECK(madvise(served, size, MADV_DONTNEED) == 0);
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0 && copy.copy == (int64_t)size);
    for (size_t at = 0; at < size / sizeof *served; at++) CHECK(served[at] == at * 0x9e3779b97f4a7c15);
    copy = (struct uffdio_copy){.dst = to, .src = from, .len = size, .mode = 1 << 30, .copy = 7};
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == -1 && errno == EINVAL && copy.copy == 7);
    copy.mode = 0;
    CHECK(ioctl(-1, UFFDIO_COPY, &copy) == -1 && errno == EBADF && copy.copy == 7);
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == -1 && errno == EEXIST && copy.copy == -EEXIST);
    copy.len = 100;
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == -1 && errno == EINVAL);
    copy.len = page;
    CHECK(ioctl(fd, UFFDIO_COPY, &copy) == -1 && errno == EEXIST && copy.copy == -EEXIST);
    puts("done");
    return 0;
}
