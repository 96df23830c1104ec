// EXPECT: exit 0, last line "ok"
// MODES: direct
// A program that brings its own clock_gettime, with the system call in its own code: as in a library that fakes the
// time, and as the kernel's vDSO does where the clock source is not the TSC. Direct mode catches that call by SIGSYS,
// also where swap itself asks for the time while it resolves a fault.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NR_WORDS ((size_t)25 << 20)

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(228L), "D"((long)clock), "S"(now) : "rcx", "r11", "memory");
    return (int)result;
}

int main(void) {
    uint64_t *words = malloc(NR_WORDS * sizeof *words);
    if (!words)
        return 1;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < NR_WORDS; i++) {
            if (round && words[i] != i * 7) {
                printf("word %zu holds %llu\n", i, (unsigned long long)words[i]);
                return 1;
            }
            words[i] = i * 7;
        }
    printf("ok\n");
    return 0;
}
