// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// MAPPERS: move copy
// O_DIRECT by system calls outside the C library and by `syscall`, into and from more memory than is in RAM at once,
// while another thread uses other memory: the kernel pins the pages that it transfers.
#include "check.h"
#include <sys/uio.h>
#define LEN (32 * MIB)
#define OTHER (48 * MIB)
static char *memory, *other;
static volatile int is_over;
static long past_libc(long number, long fd, void *at, size_t len, size_t offset) {
    long result;
    register long fourth __asm__("r10") = offset, fifth __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(fd), "S"(at), "d"(len), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    if (result < 0) errno = -result, result = -1;
    return result;
}
static long by_libc(long number, long fd, void *at, size_t len, size_t offset) {
    return syscall(number, fd, at, len, offset, 0);
}
static long (*const ways[])(long, long, void *, size_t, size_t) = {past_libc, by_libc};
// Transfers all of the memory, in calls of at most so many bytes.
static void transfer(int way, long number, int fd, size_t most) {
    int is_list = number == SYS_preadv || number == SYS_pwritev;
    lseek(fd, 0, SEEK_SET);
    for (size_t at = 0; at < LEN;) {
        size_t len = LEN - at < most ? LEN - at : most;
        struct iovec list[2] = {{memory + at, len / 2}, {memory + at + len / 2, len - len / 2}};
        long result = ways[way](number, fd, is_list ? (void *)list : memory + at, is_list ? 2 : len, at);
        CHECK(result > 0 && result <= (long)len, "call %ld: %ld", number, result);
        if (result <= 0) return;
        at += result;
    }
}
static void *use_other(void *unused) {
    while (!is_over)
        for (size_t at = 0; at < OTHER && !is_over; at += PAGE) other[at]++;
    return unused;
}
int main(void) {
    static const long reads[] = {SYS_pread64, SYS_read, SYS_preadv};
    static const long writes[] = {SYS_pwrite64, SYS_write, SYS_pwritev};
    char name[] = "/var/tmp/directXXXXXX";
    int file = mkostemp(name, O_DIRECT);
    unlink(name);
    memory = anonymous(LEN), other = anonymous(OTHER);
    pthread_t thread;
    pthread_create(&thread, NULL, use_other, NULL);
    for (int round = 0; round < 6; round++) {
        int way = round % 2, call = round / 2;
        for (size_t at = 0; at < LEN; at += sizeof(long)) *(long *)(memory + at) = at * 7 + round;
        transfer(way, writes[call], file, round % 2 ? MIB : LEN);
        memset(memory, 1, LEN);
        transfer(way, reads[call], file, round % 2 ? LEN : MIB);
        long nr_others = 0;
        for (size_t at = 0; at < LEN; at += sizeof(long)) nr_others += *(long *)(memory + at) != (long)at * 7 + round;
        CHECK(nr_others == 0, "way %d, call %d: %ld words", way, call, nr_others);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    DONE;
}
