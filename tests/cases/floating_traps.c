// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// CFLAGS: -lm
// A program that traps inexact results, rounds towards zero and has a child: the engine's threads compute as usual.
#include "check.h"
#include <fenv.h>
static void on_trap(int number) {
    (void)number;
    _exit(77);
}
int main(void) {
    signal(SIGFPE, on_trap);
    fesetround(FE_TOWARDZERO);
    feenableexcept(FE_INEXACT | FE_DIVBYZERO | FE_INVALID);
    char *memory = anonymous(96 * MIB);
    for (int round = 0; round < 2; round++) {
        fill(memory, 96 * MIB);
        for (size_t part = 10; part < 90; part += 20) {
            madvise(memory + part * MIB, 3 * MIB, MADV_PAGEOUT);
            madvise(memory + (part + 5) * MIB, 3 * MIB, MADV_WILLNEED);
        }
        for (int i = 0; i < 5000; i++) free(malloc(i * 37));
    }
    pid_t child = fork();
    if (!child) _exit(wrong_pages(memory, 96 * MIB) != 0);
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0, "the child's status: %x", status);
    CHECK(wrong_pages(memory, 96 * MIB) == 0 && fegetround() == FE_TOWARDZERO, "here");
    DONE;
}
