// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 100
// A program limits its data (RLIMIT_DATA), takes all that it can get, down to small blocks, and uses it. There is room
// for the records of what was swapped out.
#include "check.h"
#define LEN (400 * MIB)
int main(void) {
    static char *maps[4096];
    struct rlimit limit = {LEN, RLIM_INFINITY};
    int nr = 0;
    void *last = NULL, *block;
    if (setrlimit(RLIMIT_DATA, &limit)) return 2;
    while (nr < 4096 && (maps[nr] = anonymous(MIB)) != MAP_FAILED) nr++;
    CHECK(nr > 300 && nr < 4096, "%d mappings", nr);
    for (size_t size = 1 << 16; size >= 64; size /= 2)
        while ((block = malloc(size))) {
            *(void **)block = last;
            last = block;
            if (size >= PAGE) ((char *)block)[PAGE - 1] = 1;
        }
    for (int i = 0; i < nr; i++) fill(maps[i], MIB);
    long wrong = 0;
    for (int i = 0; i < nr; i++) wrong += wrong_pages(maps[i], MIB);
    CHECK(wrong == 0, "%ld pages", wrong);
    while ((block = last)) {
        last = *(void **)block;
        free(block);
    }
    DONE;
}
