// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// MAPPERS: move copy
// O_DIRECT other than by the C library's calls for it: by system calls outside it and by `syscall`, by its asynchronous
// I/O and its streams. More memory than is in RAM at once, while another thread uses other memory: the kernel pins the
// pages that it transfers.
#include "check.h"
#include <aio.h>
#include <sys/uio.h>
#define LEN (24 * MIB)
#define OTHER (32 * MIB)
#define NR 8
static char *memory, *other;
static int file;
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
static long by_syscall(long number, long fd, void *at, size_t len, size_t offset) {
    return syscall(number, fd, at, len, offset, 0);
}
// All of the memory, in calls of at most so many bytes.
static void by_number(long (*make)(long, long, void *, size_t, size_t), long number, size_t most) {
    int is_list = number == SYS_preadv || number == SYS_pwritev;
    lseek(file, 0, SEEK_SET);
    for (size_t at = 0; at < LEN;) {
        size_t len = LEN - at < most ? LEN - at : most;
        struct iovec list[2] = {{memory + at, len / 2}, {memory + at + len / 2, len - len / 2}};
        long result = make(number, file, is_list ? (void *)list : memory + at, is_list ? 2 : len, at);
        CHECK(result > 0 && result <= (long)len, "call %ld: %ld", number, result);
        if (result <= 0) return;
        at += result;
    }
}
static void by_aio(int writes, int is_list) {
    for (size_t at = 0; at < LEN; at += NR * MIB) {
        struct aiocb blocks[NR], *all[NR];
        memset(blocks, 0, sizeof blocks);
        for (int i = 0; i < NR; i++) {
            size_t offset = at + i * MIB;
            int what = writes ? LIO_WRITE : LIO_READ;
            blocks[i] = (struct aiocb){.aio_fildes = file, .aio_buf = memory + offset, .aio_nbytes = MIB,
                                       .aio_offset = offset, .aio_lio_opcode = what};
            all[i] = &blocks[i];
            if (!is_list) CHECK((writes ? aio_write(all[i]) : aio_read(all[i])) == 0, "request");
        }
        if (is_list) CHECK(lio_listio(LIO_WAIT, all, NR, NULL) == 0, "requests");
        for (int i = 0; i < NR; i++) {
            while (aio_error(all[i]) == EINPROGRESS) aio_suspend((const struct aiocb **)&all[i], 1, NULL);
            CHECK(aio_return(all[i]) == (long)MIB, "result");
        }
    }
}
static void by_stream(int writes) {
    lseek(file, 0, SEEK_SET);
    FILE *stream = fdopen(dup(file), writes ? "w" : "r");
    setvbuf(stream, NULL, _IONBF, 0);
    size_t done = writes ? fwrite(memory, 1, LEN, stream) : fread(memory, 1, LEN, stream);
    CHECK(done == LEN, "%zu", done);
    fclose(stream);
}
static void transfer(int way, int writes) {
    switch (way) {
    case 0: return by_number(past_libc, writes ? SYS_pwrite64 : SYS_pread64, writes ? LEN : MIB);
    case 1: return by_number(by_syscall, writes ? SYS_write : SYS_read, writes ? MIB : LEN);
    case 2: return by_number(past_libc, writes ? SYS_pwritev : SYS_preadv, writes ? MIB : LEN);
    case 3: return by_aio(writes, 0);
    case 4: return by_aio(writes, 1);
    default: by_stream(writes);
    }
}
static void *use_other(void *unused) {
    while (!is_over)
        for (size_t at = 0; at < OTHER && !is_over; at += PAGE) other[at]++;
    return unused;
}
int main(void) {
    char name[] = "/var/tmp/directXXXXXX";
    file = mkostemp(name, O_DIRECT);
    unlink(name);
    memory = anonymous(LEN), other = anonymous(OTHER);
    pthread_t thread;
    pthread_create(&thread, NULL, use_other, NULL);
    for (int way = 0; way < 6; way++) {
        for (size_t at = 0; at < LEN; at += sizeof(long)) *(long *)(memory + at) = at * 7 + way;
        transfer(way, 1);
        memset(memory, 1, LEN);
        transfer(way, 0);
        long nr_others = 0;
        for (size_t at = 0; at < LEN; at += sizeof(long)) nr_others += *(long *)(memory + at) != (long)at * 7 + way;
        CHECK(nr_others == 0, "way %d: %ld words", way, nr_others);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    DONE;
}
