// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
// ARGS: write
// ARGS: opened
// ARGS: left
/* Memory that is writable but, in name, not readable, mapped so or opened so later, and what MREMAP_DONTUNMAP leaves of
 * small mappings: what the process has in RAM stays near its budget. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include "peak.h"

enum { MOST_MIB = 48, PAGE = 4096, NR_PARTS = 160 };
static const size_t len = 160 << 20, part = 1 << 20;

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (!strcmp(what, "left")) {
        char *parts[NR_PARTS], *small = mmap(NULL, part, PROT_READ | PROT_WRITE, flags, -1, 0);
        for (int nr = 0; nr < NR_PARTS; nr++) {
            for (size_t at = 0; at < part; at += PAGE) *(size_t *)(small + at) = nr + at + 1;
            parts[nr] = mremap(small, part, part, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
            if (parts[nr] == MAP_FAILED) return perror("mremap"), 1;
        }
        for (int nr = 0; nr < NR_PARTS; nr++)
            for (size_t at = 0; at < part; at += PAGE)
                if (*(size_t *)(parts[nr] + at) != nr + at + 1) return printf("part %d is wrong\n", nr), 1;
        return say_peak(MOST_MIB);
    }
    const int first = !strcmp(what, "write") ? PROT_WRITE : !strcmp(what, "opened") ? PROT_NONE : PROT_READ | PROT_WRITE;
    char *memory = mmap(NULL, len, first, flags, -1, 0);
    if (first == PROT_NONE && mprotect(memory, len, PROT_WRITE) != 0) return perror("mprotect"), 1;
    for (size_t at = 0; at < len; at += PAGE) *(size_t *)(memory + at) = at * 2654435761u;
    for (size_t at = 0; at < len; at += PAGE)
        if (*(size_t *)(memory + at) != at * 2654435761u) return printf("%zu is wrong\n", at), 1;
    return say_peak(MOST_MIB);
}
