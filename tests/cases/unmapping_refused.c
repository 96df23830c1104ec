// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// An munmap that the kernel refuses, for a sealed page behind the range, leaves what was advised for it: children get
// zeros (MADV_WIPEONFORK), or nothing (MADV_DONTFORK).
#include "check.h"
enum { SYS_MSEAL = 462 };
static char *refused(int advice) {
    char *memory = anonymous(9 * MIB);
    memset(memory, 7, 9 * MIB);
    madvise(memory, 8 * MIB, advice);
    if (syscall(SYS_MSEAL, memory + 8 * MIB, PAGE, 0) < 0) {
        puts("SKIP: this kernel has no mseal");
        exit(0);
    }
    CHECK(munmap(memory, 8 * MIB + PAGE) < 0 && errno == EPERM, "it was unmapped");
    return memory;
}
static int status_in_child(const volatile char *memory) {
    pid_t child = fork();
    if (!child) _exit(memory[12345]);
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}
int main(void) {
    char *wiped = refused(MADV_WIPEONFORK), *kept = refused(MADV_DONTFORK);
    char *others = anonymous(48 * MIB);
    fill(others, 48 * MIB);
    CHECK(wiped[12345] == 7 && kept[12345] == 7, "%d, %d here", wiped[12345], kept[12345]);
    CHECK(status_in_child(wiped) == 0, "not wiped");
    CHECK(WTERMSIG(status_in_child(kept)) == SIGSEGV, "in the child");
    DONE;
}
