// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Reads and writes whose length reaches past all addresses of a process, and polls of a number beyond 32 bits, end as
// without folioswap.
#include "cold.h"
#include <poll.h>
#define COLD(call) (send_out(memory, PAGE), errno = 0, (call))
#define AGREE(call) CHECK((call) == -1 && errno == EFAULT, #call " of %#lx", len)
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB);
    memset(memory, 1, 8 * MIB);
    int file = memfd_create("ten bytes", 0), null = open("/dev/null", O_WRONLY), ends[2];
    if (file < 0 || null < 0 || pipe(ends)) return 2;
    if (write(file, "0123456789", 10) != 10 || write(ends[1], "x", 1) != 1) return 2;
    // Linux 6.4 to 6.11 look at the addresses' sign only.
    char *local = (char *)syscall(SYS_mmap, NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int refuses = syscall(SYS_pread64, file, local, 1ul << 47, 0l) == -1;
    for (size_t len = 1ul << 40; len < 1ul << 48 && refuses; len <<= 7) {
        AGREE(COLD(pread(file, memory, len, 0)));
        AGREE(COLD(syscall(SYS_pread64, file, memory, len, 0l)));
        AGREE(COLD(read(ends[0], memory, len)));
        AGREE(COLD(write(null, memory, len)));
        AGREE(COLD(pwrite(null, memory, len, 0)));
    }
    CHECK(COLD(pread(file, memory, 1ul << 32, 0)) == 10, "a length within the addresses");
    memset(memory, 0, PAGE);
    for (int shift = 32; shift < 64; shift++) {
        CHECK(COLD(poll((struct pollfd *)memory, 1ul << shift, 0)) == 0, "poll of 1 << %d", shift);
        CHECK(COLD(ppoll((struct pollfd *)memory, 1ul << shift, &(struct timespec){0, 0}, NULL)) == 0, "ppoll");
        CHECK(COLD(syscall(SYS_poll, memory, 1ul << shift, 0)) == 0, "poll by number of 1 << %d", shift);
    }
    DONE;
}
