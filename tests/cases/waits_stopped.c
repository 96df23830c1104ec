// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Calls with a limit of time, on a coroutine's stack that leaves RAM meanwhile. The process is stopped and goes on: the
// kernel begins such a call anew, with what is left of the limit.
#include "cold.h"
#include <poll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
enum { LIMIT_US = 300000, NR_KINDS = 8 };
static volatile int ends;
static void *press(void *none) {
    while (!ends) use_others();
    return none;
}
static long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
static int waits(int kind) {
    struct timespec limit = {0, LIMIT_US * 1000l};
    struct timeval time = {0, LIMIT_US};
    fd_set set;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    FD_ZERO(&set);
    int result = -2;
    switch (kind) {
    case 0: result = ppoll(NULL, 0, &limit, NULL); break;
    case 1: result = pselect(0, NULL, NULL, NULL, &limit, NULL); break;
    case 2: result = select(1, NULL, NULL, &set, &time); break;
    case 3: result = poll(NULL, 0, LIMIT_US / 1000); break;
    case 4: result = ppoll(NULL, 0, &limit, &mask); break;
    case 5: result = pselect(1, NULL, &set, NULL, &limit, &mask); break;
    case 6: result = syscall(SYS_ppoll, NULL, 0, &limit, NULL, 8); break;
    case 7: result = syscall(SYS_pselect6, 0, NULL, NULL, NULL, &limit, NULL); break;
    }
    CHECK(kind != 2 || (time.tv_sec == 0 && time.tv_usec == 0), "%ld us left", time.tv_usec);
    CHECK(kind >= 6 ? limit.tv_sec == 0 && limit.tv_nsec == 0 : limit.tv_nsec == LIMIT_US * 1000l, "%d: %ld ns left",
          kind, limit.tv_nsec);
    return result;
}
static void wait_often(void) {
    for (int i = 0; i < 2 * NR_KINDS; i++) {
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            for (int at = 0; at < 4; at++) {
                usleep(60000);
                kill(parent, SIGSTOP);
                usleep(10000);
                kill(parent, SIGCONT);
            }
            _exit(0);
        }
        long start = now_us();
        int result = waits(i % NR_KINDS);
        long took = now_us() - start;
        CHECK(result == 0, "%d: %d", i % NR_KINDS, result);
        CHECK(result < 0 || took >= LIMIT_US, "%d: took %ld us", i % NR_KINDS, took);
        waitpid(child, NULL, 0);
    }
}
int main(void) {
    start_engine();
    pthread_t thread;
    pthread_create(&thread, NULL, press, NULL);
    on_coroutine(anonymous(4 * MIB), 4 * MIB, wait_often);
    ends = 1;
    pthread_join(thread, NULL);
    DONE;
}
