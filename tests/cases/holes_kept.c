// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M
// A program of one thread unmaps parts of its memory before it outgrows the budget. Nobody takes the addresses, and
// what it maps there later stays what it is, in a child of fork too.
#include "cold.h"
#define NR_HOLES 16
static char *holes[NR_HOLES + 3];
static size_t lens[NR_HOLES + 3] = {1, 1, 1, 2, 2, 3, 4, 8, 16, 33, 64, 100, 129, 256, 513, 1024, 256, 7680, 25600};
static int is_free(char *at, size_t len) {
    unsigned char state;
    for (size_t page = 0; page < len; page += PAGE)
        if (mincore(at + page, PAGE, &state) == 0 || errno != ENOMEM) return 0;
    return 1;
}
static long wrong_words(void) {
    long wrong = 0;
    for (size_t i = 0; i < NR_HOLES + 3; i++)
        for (size_t at = 0; at < lens[i] * PAGE; at += 8) wrong += *(volatile uint64_t *)(holes[i] + at) != i * MIB + at;
    return wrong;
}
int main(void) {
    for (int i = 0; i < NR_HOLES + 3; i++) {
        holes[i] = mmap(0, (lens[i] + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mprotect(holes[i], PAGE, PROT_READ | PROT_WRITE); // a mapping of its own, which stays
        holes[i] += PAGE;
    }
    for (int i = 0; i < NR_HOLES + 3; i++) munmap(holes[i], lens[i] * PAGE);
    // At an address of its own: the kernel would choose the largest hole.
    char *memory = mmap((void *)0x200000000000, 160 * MIB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    fill(memory, 160 * MIB);
    int status = -1;
    pid_t child = fork();
    for (int i = 0; i < NR_HOLES + 3; i++)
        CHECK(is_free(holes[i], lens[i] * PAGE), "%s: hole of %zu pages", child ? "parent" : "child", lens[i]);
    for (size_t i = 0; i < NR_HOLES + 3; i++) {
        char *mapped = mmap(holes[i], lens[i] * PAGE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(mapped == holes[i], "%p", mapped);
        for (size_t at = 0; at < lens[i] * PAGE; at += 8) *(uint64_t *)(mapped + at) = i * MIB + at;
    }
    for (int round = 0; round < 2; round++) {
        CHECK(wrong_pages(memory, 160 * MIB) == 0, "beside them");
        CHECK(wrong_words() == 0, "%ld wrong words", wrong_words());
        if (child > 0 && round == 0) waitpid(child, &status, 0);
    }
    if (child == 0) _exit(nr_wrong);
    CHECK(status == 0, "child: %x", status);
    DONE;
}
