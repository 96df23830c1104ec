// EXPECT: exit 0, last line "ok"
// BUDGETS: 48M
// CFLAGS: -Wl,--hash-style=sysv
/* The program has the older table of symbols alone, as Go's linker makes it: it is limited as others are. */
#include <sys/mman.h>
#include "peak.h"

int main(void) {
    size_t len = 200 << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < len; at += 4096) memory[at] = (char)(at / 4096 % 251 + 1);
    for (size_t at = 0; at < len; at += 4096)
        if (memory[at] != (char)(at / 4096 % 251 + 1)) return puts("wrong"), 1;
    return say_peak(110);
}
