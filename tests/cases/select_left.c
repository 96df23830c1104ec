// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// select on a coroutine's stack, which leaves RAM meanwhile: it tells what is left of its limit. A signal that another
// thread takes first has the kernel begin anew with the rest, which it has stored by then; that is not left at the end.
#include "cold.h"
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
enum { WAITS = 250, LIMIT_US = 30000, SIGNAL_US = 4000 };
static void handler(int signal) { (void)signal; }
static void *press(void *none) {
    for (;;) use_others();
    return none;
}
static long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
static void wait_often(void) {
    for (int i = 0; i < WAITS; i++) {
        struct itimerval once = {{0, 0}, {0, SIGNAL_US}};
        struct timeval limit = {0, LIMIT_US};
        setitimer(ITIMER_REAL, &once, NULL);
        long start = now_us();
        int result = select(0, NULL, NULL, NULL, &limit);
        int is_interrupted = result < 0 && errno == EINTR;
        long took = now_us() - start, left = limit.tv_usec + 1000000 * limit.tv_sec;
        CHECK(result == 0 || is_interrupted, "%d", result);
        CHECK(result < 0 || (left == 0 && took >= LIMIT_US), "%ld us left after %ld", left, took);
        CHECK(result == 0 || took >= LIMIT_US || left > 0, "%ld us left after %ld", left, took);
        int is_rest = left < LIMIT_US && left + took >= LIMIT_US - 1;
        CHECK(result == 0 || is_rest, "%ld us left after %ld", left, took);
    }
}
int main(void) {
    start_engine();
    signal(SIGALRM, handler);
    pthread_t thread;
    pthread_create(&thread, NULL, press, NULL);
    on_coroutine(anonymous(4 * MIB), 4 * MIB, wait_often);
    DONE;
}
