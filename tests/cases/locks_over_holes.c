// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M
// mlock and munlock over a hole, and over a page without access, fail with ENOMEM; what lies before the hole is locked
// or unlocked, what lies behind it is as it was. What is locked stays in RAM.
#include "check.h"

#define PART (3 * MIB)
#define HOLE (64 * 1024ul)

static long locked_kib(void) {
    char line[200];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmLck: %ld", &kib);
    fclose(status);
    return kib;
}

static long nr_in_ram(char *part) {
    static uint64_t entries[PART / PAGE];
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    long nr = 0;
    CHECK(pread(pagemap, entries, sizeof entries, (uintptr_t)part / PAGE * 8) == sizeof entries, "pagemap");
    close(pagemap);
    for (size_t at = 0; at < PART / PAGE; at++) nr += entries[at] >> 63;
    return nr;
}

static void push_out(char *memory) {
    char *other = anonymous(100 * MIB);
    memset(other, 1, 100 * MIB);
    madvise(memory, 2 * PART + HOLE, MADV_PAGEOUT);
    munmap(other, 100 * MIB);
}

static int lock(int how, char *at, size_t len) {
    switch (how) {
    case 0: return mlock(at, len);
    case 1: return mlock2(at, len, 0);
    case 2: return mlock2(at, len, MLOCK_ONFAULT);
    default: return syscall(SYS_mlock, at, len);
    }
}

static void check(int line, long before, long parts, char *first, char *second) {
    long kib = locked_kib() - before;
    CHECK(kib == parts * (long)(PART >> 10), "of line %d: %ld KiB are locked, not %ld parts", line, kib, parts);
    push_out(first);
    if (parts) CHECK(nr_in_ram(second) == PART / PAGE, "of line %d: %ld in RAM", line, nr_in_ram(second));
    CHECK(wrong_pages(first, PART) + wrong_pages(first + PART + HOLE, PART) == 0, "content");
}

int main(void) {
    char *first = anonymous(2 * PART + HOLE), *second = first + PART + HOLE;
    munmap(first + PART, HOLE);
    fill(first, PART), fill(second, PART);
    push_out(first);
    for (int how = 0; how < 4; how++) {
        long before = locked_kib();
        wrong_pages(first, PART);
        CHECK(lock(how, first, 2 * PART + HOLE) == -1 && errno == ENOMEM, "lock %d over a hole", how);
        check(__LINE__, before, 1, first, first);
        CHECK(munlock(first, 2 * PART + HOLE) == -1 && errno == ENOMEM, "munlock over a hole");
        check(__LINE__, before, 0, first, first);
        wrong_pages(second, PART);
        CHECK(lock(how, second, PART) == 0 && lock(how, first, PART) == 0, "both locked, %d", how);
        CHECK(munlock(first, 2 * PART + HOLE) == -1 && errno == ENOMEM, "munlock over a hole");
        check(__LINE__, before, 1, first, second);
        CHECK(munlock(first + PART, PART) == -1 && errno == ENOMEM, "munlock from a hole on");
        CHECK(lock(how, first + PART, PART + HOLE) == -1 && errno == ENOMEM, "lock %d from a hole on", how);
        check(__LINE__, before, 1, first, second);
        CHECK(munlockall() == 0, "munlockall");
        check(__LINE__, before, 0, first, first);
        CHECK(mprotect(second + MIB, PAGE, PROT_NONE) == 0, "mprotect");
        CHECK(lock(how, second, PART) == (how == 2 ? 0 : -1), "lock %d of a page without access", how);
        CHECK(mprotect(second + MIB, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
        wrong_pages(second, PART);
        check(__LINE__, before, 1, first, second);
        CHECK(munlock(second, PART) == 0, "munlock");
        check(__LINE__, before, 0, first, first);
    }
    DONE;
}
