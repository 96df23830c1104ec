// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A mapping of huge pages over managed memory takes whole huge pages, whatever its length; so does the kernel's refusal
// of one, which has none. What was there is gone, and the rest is not.
#include "check.h"
#include <setjmp.h>
#define LEN (64 * MIB)
static sigjmp_buf back;
static void on_fault(int number) { siglongjmp(back, number); }
static int is_there(char *page) {
    if (sigsetjmp(back, 1)) return 0;
    return *(volatile uint64_t *)page != 0;
}
static long pages_there(char *memory, size_t len) {
    long there = 0;
    for (size_t at = 0; at < len; at += PAGE) there += is_there(memory + at);
    return there;
}
int main(void) {
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    char *memory = anonymous(LEN + 4 * MIB);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    fill(memory, LEN);
    CHECK(wrong_pages(memory, LEN) == 0, "content");
    char *place = memory + 4 * MIB;
    char *huge = mmap(place, PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB, -1, 0);
    CHECK(huge == MAP_FAILED || huge == place, "%p", huge);
    CHECK(wrong_pages(memory, 4 * MIB) == 0, "before it");
    CHECK(pages_there(memory + 6 * MIB, LEN - 6 * MIB) == (long)((LEN - 6 * MIB) / PAGE), "behind it");
    long there = pages_there(place, 2 * MIB);
    CHECK(there == 0 || (huge == MAP_FAILED && there == 512), "in it: %ld pages", there);
    CHECK(munmap(memory + 2 * MIB, 8 * MIB) == 0, "munmap");
    CHECK(pages_there(memory + 2 * MIB, 8 * MIB) == 0, "what is unmapped");
    char *new = mmap(memory + 2 * MIB, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(new == memory + 2 * MIB && pages_there(new, 8 * MIB) == 0, "new memory");
    fill(memory, LEN);
    CHECK(wrong_pages(memory, LEN) == 0, "content at the end");
    DONE;
}
