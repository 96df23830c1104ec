// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 90
// Threads advise MADV_WILLNEED and MADV_FREE while another forks. Each child finds its memory, and none waits for a
// lock that one of the threads had.
#include "check.h"
#define LEN (26 * MIB)
#define NR 3
static char *memory;
static volatile int is_over;
static void *advise(void *unused) {
    char *own = anonymous(4 * MIB);
    (void)unused;
    while (!is_over) {
        madvise(memory + LEN / 2, 2 * MIB, MADV_WILLNEED);
        memset(own, 1, 16 * PAGE);
        madvise(own, 4 * MIB, MADV_FREE);
    }
    return NULL;
}
int main(void) {
    pthread_t advisers[NR];
    memory = anonymous(LEN);
    fill(memory, LEN);
    for (int i = 0; i < NR; i++) pthread_create(&advisers[i], NULL, advise, NULL);
    for (int round = 0; round < 150; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            for (size_t i = 0; i < 64; i++) {
                size_t at = (i * 7919 + round * 131) % (LEN / PAGE) * PAGE;
                if (*(uint64_t *)(memory + at) != at + 1) _exit(3);
            }
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "child %d: status %x", round, status);
        if (status) break;
    }
    is_over = 1;
    for (int i = 0; i < NR; i++) pthread_join(advisers[i], NULL);
    DONE;
}
