// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* The kernel cuts a process's name to 15 bytes, here within a letter: what /proc says of the process is not UTF-8. The
 * start of the heap is found all the same: brk does not move its end below that. */
#include "cold.h"

int main(int argc, char **argv) {
    const size_t len = 48 * MIB;
    if (argc == 1) {
        char path[4096] = "";
        CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0, "readlink");
        CHECK(symlink(path, "программа") == 0, "symlink");
        execl("./программа", argv[0], "again", NULL);
        CHECK(0, "execl");
        DONE;
    }
    char *heap = sbrk(len);
    CHECK(heap != (char *)-1, "sbrk");
    for (size_t at = 0; at < len; at += PAGE)
        *(size_t *)(heap + at) = at + 1;
    CHECK(brk(heap - 200 * MIB) == 0, "brk below the heap's start"); /* the C library looks for less than it wants */
    CHECK(sbrk(0) == heap + len, "the end has moved");
    for (size_t at = 0; at < len; at += PAGE)
        CHECK(*(size_t *)(heap + at) == at + 1, "wrong data at %zu", at);
    DONE;
}
