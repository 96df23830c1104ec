// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Two threads write to memory with guards. The handler of the fault removes all of them, so the other thread may write
// before it has returned.
#include "check.h"
#include <stdatomic.h>
#include <time.h>
enum { NR_PAGES = 512, GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
static char *memory;
static atomic_int round_now, nr_done;
static void on_fault(int number) {
    (void)number;
    madvise(memory, NR_PAGES * PAGE, GUARD_REMOVE);
}
static void *write_half(void *half) {
    for (int round = 1;; round++) {
        while (round_now < round) sched_yield();
        for (long page = (long)half; page < NR_PAGES; page += 2) *(volatile int *)(memory + page * PAGE) = round;
        nr_done++;
    }
    return NULL;
}
int main(void) {
    memory = (char *)(((uintptr_t)anonymous(4 * MIB) + 2 * MIB - 1) & -(2 * MIB));
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    pthread_t thread;
    for (long half = 0; half < 2; half++) pthread_create(&thread, NULL, write_half, (void *)half);
    for (time_t end = time(NULL) + 4; time(NULL) < end && !nr_wrong;) {
        if (madvise(memory, NR_PAGES * PAGE, GUARD_INSTALL) < 0) {
            puts("SKIP: this kernel has no guards");
            return 0;
        }
        nr_done = 0;
        round_now++;
        while (nr_done < 2) sched_yield();
        for (int page = 0; page < NR_PAGES; page++)
            CHECK(*(int *)(memory + page * PAGE) == round_now, "page %d has lost a write of round %d", page, round_now);
    }
    DONE;
}
