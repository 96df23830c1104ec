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
        int file = fileno(tmpfile()), ends[2];
        static char ones[MIB];
        memset(ones, 1, MIB);
        if (pipe(ends) || pwrite(file, ones, MIB, 0) != (ssize_t)MIB) _exit(2);
        CHECK(pread(file, memory + MIB, MIB, 0) == (ssize_t)MIB && memcmp(memory + MIB, ones, MIB) == 0, "read");
        CHECK(pwrite(file, memory + 4 * MIB, MIB, 0) == (ssize_t)MIB, "written");
        CHECK(write(ends[1], memory + 8 * MIB + 100, 100) == 100, "a pipe");
        _exit(nr_wrong);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0 && sum == 0, "the child's status: %x", status);
    DONE;
}
