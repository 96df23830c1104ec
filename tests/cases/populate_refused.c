// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 160M
// MADV_POPULATE_READ and MADV_POPULATE_WRITE of memory without that access are refused, whatever its size, and what
// lies before a hole is brought in.
#include "check.h"
#define LEN (64 * MIB)
static void refused(char *memory, size_t len, int advice) {
    int result = madvise(memory, len, advice);
    CHECK(result == -1 && errno == EINVAL, "advice %d on %zu bytes: %d", advice, len, result);
}
int main(void) {
    char *memory = anonymous(LEN);
    fill(memory, LEN);
    mprotect(memory, LEN, PROT_READ);
    refused(memory, LEN, MADV_POPULATE_WRITE);
    refused(memory, 4 * MIB, MADV_POPULATE_WRITE);
    CHECK(madvise(memory, LEN, MADV_POPULATE_READ) == 0, "populate for reading");
    mprotect(memory, LEN, PROT_NONE);
    refused(memory, LEN, MADV_POPULATE_READ);
    refused(memory, 2 * MIB, MADV_POPULATE_READ);
    mprotect(memory, LEN, PROT_READ | PROT_WRITE);
    CHECK(madvise(memory, LEN, MADV_POPULATE_WRITE) == 0, "populate for writing");
    CHECK(wrong_pages(memory, LEN) == 0, "%ld", wrong_pages(memory, LEN));
    munmap(memory + 48 * MIB, MIB);
    CHECK(madvise(memory, LEN, MADV_POPULATE_WRITE) == -1 && errno == ENOMEM, "over a hole");
    CHECK(wrong_pages(memory, 48 * MIB) == 0, "before the hole: %ld", wrong_pages(memory, 48 * MIB));
    DONE;
}
