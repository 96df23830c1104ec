// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M 160M
// Memory that is out is read and written through /proc/self/mem by every call that transfers bytes, however the file
// was opened.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#define M (1ul << 20)
#define LEN (300ul << 10)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static char *memory, *there, buffer[LEN];
static off_t at;
static void out(void) {
    for (size_t byte = 0; byte < 64 * M; byte += 4096)
        memory[byte]++;
    madvise(there, LEN, MADV_PAGEOUT);
    memset(buffer, 0, LEN);
}
static void is_read(ssize_t len) {
    CHECK(len == (ssize_t)LEN && memcmp(buffer, there, LEN) == 0);
    out();
}
static void is_written(ssize_t len, int byte) {
    CHECK(len == (ssize_t)LEN);
    for (size_t i = 0; i < LEN; i++)
        CHECK(there[i] == byte);
    for (size_t i = 0; i < LEN; i++)
        there[i] = i * 7;
    out();
}
int main(void) {
    memory = mmap(NULL, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    there = mmap(NULL, 2 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < LEN; i++)
        there[i] = i * 7;
    at = (off_t)(uintptr_t)there;
    int folder = open("/proc/self", O_DIRECTORY), fd = openat(folder, "mem", O_RDWR);
    CHECK(fd >= 0);
    struct iovec list[2] = {{buffer, LEN / 3}, {buffer + LEN / 3, LEN - LEN / 3}};
    out();
    is_read(pread(fd, buffer, LEN, at));
    is_read(preadv(fd, list, 2, at));
    is_read(preadv2(fd, list, 2, at, 0));
    CHECK(lseek(fd, at, SEEK_SET) == at);
    is_read(preadv2(fd, list, 2, -1, 0));
    is_read(syscall(SYS_pread64, fd, buffer, LEN, at));
    is_read(syscall(SYS_preadv, fd, list, 2, at, 0));
    is_read(syscall(SYS_preadv2, fd, list, 2, at, 0, 0));
    CHECK(lseek(fd, at, SEEK_SET) == at);
    is_read(syscall(SYS_read, fd, buffer, LEN));
    CHECK(lseek(fd, at, SEEK_SET) == at);
    is_read(syscall(SYS_readv, fd, list, 2));
    memset(buffer, 1, LEN);
    is_written(pwrite(fd, buffer, LEN, at), 1);
    memset(buffer, 2, LEN);
    is_written(pwritev2(fd, list, 2, at, 0), 2);
    memset(buffer, 3, LEN);
    is_written(syscall(SYS_pwritev, fd, list, 2, at, 0), 3);
    memset(buffer, 4, LEN);
    is_written(syscall(SYS_pwritev2, fd, list, 2, at, 0, 0), 4);
    for (int mode = _IOFBF; mode <= _IONBF; mode++) {
        FILE *stream = fopen("/proc/self/mem", "r");
        CHECK(stream && setvbuf(stream, NULL, mode, mode == _IONBF ? 0 : 4096) == 0);
        CHECK(fseeko(stream, at, SEEK_SET) == 0);
        is_read(fread(buffer, 1, LEN, stream));
        CHECK(fseeko(stream, at + 5, SEEK_SET) == 0);
        CHECK(fread(buffer, 4, 25, stream) == 25 && memcmp(buffer, there + 5, 100) == 0);
        fclose(stream);
        out();
    }
    puts("ok");
    return 0;
}
