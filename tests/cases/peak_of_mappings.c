// EXPECT: exit 0, last line "ok"
// BUDGETS: 256M
/* 400 MiB in 51,200 mappings of 8 KiB: what the process has in RAM stays near its budget. */
#include <sys/mman.h>
#include "peak.h"

enum { PAGE = 4096, NR_MAPPINGS = 51200, MOST_MIB = 330 };

int main(void) {
    static volatile char *all[NR_MAPPINGS];
    for (size_t number = 0; number < NR_MAPPINGS; number++) {
        char *made = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) return puts("no memory"), 1;
        memset(made, (int)(number % 251 + 1), 2 * PAGE);
        all[number] = made;
    }
    for (size_t number = 0; number < NR_MAPPINGS; number++)
        for (size_t at = 0; at < 2 * PAGE; at += PAGE)
            if (all[number][at + number % PAGE] != (char)(number % 251 + 1)) return puts("wrong"), 1;
    return say_peak(MOST_MIB);
}
