// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Memory that the program may not write to is written by /proc/self/mem, as the Julia compiler does, and made writable
// later: it has its content.
#include "check.h"
#define LEN (64 * MIB)
int main(void) {
    char *other = anonymous(LEN);
    fill(other, LEN);
    int rights[] = {PROT_READ, PROT_NONE, PROT_READ | PROT_EXEC}, file = open("/proc/self/mem", O_RDWR);
    for (int kind = 0; kind < 3; kind++) {
        char *memory = mmap(0, LEN, rights[kind], MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; at < LEN; at += PAGE) {
            uint64_t word = at + 1;
            if (pwrite(file, &word, sizeof word, (off_t)(uintptr_t)(memory + at)) != sizeof word) nr_wrong++;
        }
        CHECK(mprotect(memory, LEN, PROT_READ | PROT_WRITE) == 0, "mprotect");
        CHECK(wrong_pages(memory, LEN) == 0, "kind %d: %ld", kind, wrong_pages(memory, LEN));
    }
    CHECK(wrong_pages(other, LEN) == 0, "beside it: %ld", wrong_pages(other, LEN));
    DONE;
}
