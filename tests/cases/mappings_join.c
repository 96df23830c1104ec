// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* Every second page of a reservation, larger than the budget, gets writable for a moment. The kernel joins mappings that
 * have one protection again; a program may have 65,530 of them. */
#include "check.h"

static int nr_mappings(void) {
    static char text[1 << 16];
    int fd = open("/proc/self/maps", O_RDONLY), nr = 0;
    for (ssize_t len; (len = read(fd, text, sizeof text)) > 0;)
        for (ssize_t at = 0; at < len; at++)
            nr += text[at] == '\n';
    close(fd);
    return nr;
}

static void toggle(int before, int is_touched) {
    const size_t len = 100 * MIB;
    char *range = mmap(NULL, len, before, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(range != MAP_FAILED, "mmap");
    for (size_t at = 0; at < len; at += 2 * PAGE) {
        CHECK(mprotect(range + at, PAGE, PROT_READ | PROT_WRITE) == 0, "to writable at %zu", at);
        if (is_touched)
            range[at] = (char)(at / PAGE + 1);
        CHECK(mprotect(range + at, PAGE, before) == 0, "and back at %zu", at);
    }
    int nr = nr_mappings();
    CHECK(nr < 600, "%d mappings", nr);
    CHECK(mprotect(range, len, PROT_READ | PROT_WRITE) == 0, "all");
    for (size_t at = 0; at < len; at += PAGE)
        CHECK(range[at] == (char)(at % (2 * PAGE) == 0 && is_touched ? at / PAGE + 1 : 0), "content at %zu", at);
    munmap(range, len);
}

int main(void) {
    for (int is_touched = 0; is_touched < 2; is_touched++) {
        toggle(PROT_NONE, is_touched);
        toggle(PROT_READ, is_touched);
    }
    DONE;
}
