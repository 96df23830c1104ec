// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// System calls with numbers that the kernel does not know, -1 among them, fail with ENOSYS; with addresses and lengths
// that no process can have, with EFAULT.
#include "cold.h"
#include <sys/socket.h>
#include <sys/uio.h>
static long make(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB);
    fill(memory, 8 * MIB);
    static const long numbers[] = {-1, -2, 100000, 0xffffffffl};
    for (int i = 0; i < 4; i++) {
        CHECK(make(numbers[i], 0, 0, 0, 0) == -ENOSYS, "number %ld", numbers[i]);
        CHECK(syscall(numbers[i]) == -1 && errno == ENOSYS, "by syscall: number %ld", numbers[i]);
    }
    static const uintptr_t places[] = {0xffff800000001000, 0xffffffffff600000, 0x7ffffffff000, 0x800000000000,
                                       0x100000000000000,  0x8000000000000000, 0xfffffffffffff000, 0x1000};
    for (int i = 0; i < 8; i++) {
        send_out(memory, 8 * MIB);
        struct iovec own = {memory, 8192}, other = {(void *)places[i], 4096};
        CHECK(process_vm_readv(getpid(), &own, 1, &other, 1, 0) == -1 && errno == EFAULT, "read %#lx", places[i]);
        CHECK(process_vm_writev(getpid(), &own, 1, &other, 1, 0) == -1 && errno == EFAULT, "write %#lx", places[i]);
    }
    int zero = open("/dev/zero", O_RDWR), file = fileno(tmpfile());
    CHECK(write(file, memory, MIB) == MIB, "file");
    static const size_t lengths[] = {1ul << 63, 0xfffffffffffff000, -1ul};
    for (int i = 0; i < 3; i++) {
        send_out(memory, 8 * MIB);
        size_t len = lengths[i];
        CHECK(make(SYS_pread64, file, (long)memory, len, 0) == -EFAULT, "pread64 of %#zx", len);
        CHECK(make(SYS_read, zero, (long)memory, len, 0) == -EFAULT, "read of %#zx", len);
        CHECK(make(SYS_pwrite64, file, (long)memory, len, 0) == -EFAULT, "pwrite64 of %#zx", len);
        CHECK(read(zero, memory, len) == -1 && errno == EFAULT, "by name: read of %#zx", len);
        CHECK(pwrite(file, memory, len, 0) == -1 && errno == EFAULT, "by name: pwrite of %#zx", len);
    }
    CHECK(wrong_pages(memory, 8 * MIB) == 0, "content");
    // This takes the length to be at most 2 GiB first.
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 && send(ends[1], "text", 5, 0) == 5, "send");
    send_out(memory, 8 * MIB);
    CHECK(recv(ends[0], memory, -1ul, 0) == 5 && strcmp(memory, "text") == 0, "recv of all");
    DONE;
}
