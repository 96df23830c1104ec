// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 48M
// Memory that the program has only read, as zeros, when the engine takes it over. A child reads into it and writes from
// it by system calls.
#include "cold.h"
int main(void) {
    char *memory = anonymous(14 * MIB);
    memory += -(uintptr_t)memory % (2 * MIB);
    madvise(memory, 12 * MIB, MADV_NOHUGEPAGE);
    long sum = 0;
    for (size_t at = 0; at < 12 * MIB; at += PAGE) sum += *(volatile char *)(memory + at);
    char *others = anonymous(60 * MIB);
    fill(others, MIB);
    pid_t child = fork();
    if (!child) {
        int file = open("/proc/self/exe", O_RDONLY), zero = open("/dev/zero", O_RDONLY), ends[2];
        char begin[PAGE];
        if (pipe(ends) || pread(file, begin, PAGE, 0) < 64) _exit(2);
        CHECK(pread(file, memory + MIB, PAGE, 0) >= 64 && memcmp(memory + MIB, begin, 64) == 0, "a file");
        CHECK(read(zero, memory + 4 * MIB, MIB) == (ssize_t)MIB, "zeros");
        CHECK(write(ends[1], memory + 8 * MIB + 100, 100) == 100, "a pipe");
        _exit(nr_wrong);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0 && sum == 0, "the child's status: %x", status);
    DONE;
}
