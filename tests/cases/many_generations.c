// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
/* Each process forks the next, writes memory of its own and waits: the last one reads what all have written. Of what
 * its ancestors have written, each changes a little, and unmaps some. */
#include "check.h"

enum { GENERATIONS = 36, LEN = 6 << 20 };

int main(void) {
    char *parts[GENERATIONS];
    for (int nr = 0; nr < GENERATIONS; nr++) {
        parts[nr] = anonymous(LEN);
        fill(parts[nr], LEN);
        char *changed = parts[nr / 2];
        for (size_t at = 0; nr % 3 == 0 && changed && at < LEN; at += 16 * PAGE) *(uint64_t *)(changed + at + 8) = nr;
        if (nr % 8 == 7) munmap(parts[nr - 4], LEN), parts[nr - 4] = NULL;
        pid_t child = nr < GENERATIONS - 1 ? fork() : 0;
        CHECK(child >= 0, "fork %d", nr);
        if (child > 0) {
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0, "child %d ended with %x", nr, status);
            DONE;
        }
    }
    for (int nr = 0; nr < GENERATIONS; nr++)
        CHECK(!parts[nr] || wrong_pages(parts[nr], LEN) == 0, "what %d has written is wrong", nr);
    DONE;
}
