// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* A program limits its addresses, and fills its heap with small blocks: it gets most of the limit, and can use it again. */
#include "check.h"

int main(void) {
    const size_t limited = 64 * MIB;
    struct rlimit limit = {limited, limited};
    size_t filled = 0;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    puts("limited"); /* which takes a buffer */
    for (int round = 0; round < 4; round++) {
        void **all = NULL, **block;
        filled = 0;
        for (size_t size = 1 << 20; size >= 16; size /= 2)
            while ((block = malloc(size)) != NULL)
                *block = all, all = block, filled += size;
        CHECK(errno == ENOMEM, "malloc");
        while (all)
            block = *all, free(all), all = block;
    }
    CHECK(filled > limited * 3 / 4, "%zu KiB in the last round", filled >> 10);
    DONE;
}
