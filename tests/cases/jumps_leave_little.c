// BUDGETS: 16M
// EXPECT: exit 0, last line "ok"
// LIMIT_S: 60
// A handler that leaves a short call by a jump leaves the call's copy behind: little, as the call is short.
#include "check.h"
#include <setjmp.h>
#include <sys/time.h>

static sigjmp_buf before;

static void on_signal(int number) {
    (void)number;
    siglongjmp(before, 1);
}

static long anonymous_kib(void) {
    char line[200];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %ld", &kib);
    fclose(file);
    return kib;
}

int main(void) {
    char *buffer = anonymous(4 * MIB);
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    fill(buffer, 4 * MIB);
    signal(SIGALRM, on_signal);
    long at_first = 0;
    for (volatile int round = 0; round < 3300; round++) {
        if (round == 300) at_first = anonymous_kib();
        struct itimerval soon = { { 0, 0 }, { 0, 400 } };
        if (sigsetjmp(before, 1) == 0) {
            setitimer(ITIMER_REAL, &soon, NULL);
            CHECK(read(ends[0], buffer + 40, 100) < 0, "nothing is written there");
        }
    }
    long grown = anonymous_kib() - at_first;
    CHECK(grown < 4096, "3000 jumps have left %ld KiB", grown);
    DONE;
}
