// EXPECT: exit 0, last line "ok"
// NEEDS: root
// BUDGETS: 24M
// munmap, mmap and mremap that the kernel refuses, because a page in their range is sealed or what comes would be
// locked beyond the limit, leave the managed memory in the range as it is.
#include "check.h"
#define LEN (64 * MIB)
#define SYS_MSEAL 462
int main(void) {
    char *memory = anonymous(LEN + 2 * MIB), *sealed = memory + LEN;
    fill(memory, LEN + PAGE);
    if (syscall(SYS_MSEAL, sealed, PAGE, 0) == 0) {
        char *last = sealed - 8 * MIB;
        int unmapped = munmap(last, 8 * MIB + PAGE);
        CHECK(unmapped == -1 && errno == EPERM, "munmap: %d", unmapped);
        CHECK(wrong_pages(memory, LEN) == 0, "after munmap: %ld", wrong_pages(memory, LEN));
        fill(memory, LEN);
        char *mapped =
            mmap(last, 8 * MIB + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(mapped == MAP_FAILED && errno == EPERM, "mmap: %p", mapped);
        CHECK(wrong_pages(memory, LEN) == 0, "after mmap: %ld", wrong_pages(memory, LEN));
        fill(memory, LEN);
        mapped = mremap(memory, LEN + PAGE, LEN - 8 * MIB, 0);
        CHECK(mapped == MAP_FAILED && errno == EPERM, "mremap: %p", mapped);
        CHECK(wrong_pages(memory, LEN) == 0, "after mremap: %ld", wrong_pages(memory, LEN));
        fill(memory, LEN);
    }
    // Beside something else that the kernel does unmap.
    char *file = mmap(0, MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *beside = mmap(sealed - 4 * MIB, MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(file != MAP_FAILED && beside == sealed - 4 * MIB, "shared memory: %p", beside);
    CHECK(munmap(sealed - 6 * MIB, 4 * MIB) == 0, "munmap of both");
    CHECK(wrong_pages(memory, LEN - 6 * MIB) == 0, "what was left: %ld", wrong_pages(memory, LEN - 6 * MIB));
    CHECK(msync(sealed - 6 * MIB, 4 * MIB, MS_ASYNC) == -1 && errno == ENOMEM, "it is still mapped");
    struct rlimit limit = {64 << 10, 64 << 10};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setuid(65534) == 0, "another user");
    fill(memory, LEN - 6 * MIB);
    char *mapped = mmap(memory + 8 * MIB, 8 * MIB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_LOCKED, -1, 0);
    CHECK(mapped == MAP_FAILED && errno == EAGAIN, "locked: %p", mapped);
    CHECK(wrong_pages(memory, LEN - 6 * MIB) == 0, "after that: %ld", wrong_pages(memory, LEN - 6 * MIB));
    DONE;
}
