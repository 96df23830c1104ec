// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// select and sleep on a coroutine's stack, which leaves RAM while they sleep: select tells the time that was left, and
// sleep says that a signal has interrupted it.
#include "cold.h"
#include <sys/select.h>
#include <sys/time.h>
static char *stack;
static volatile int is_over;
static void on_alarm(int number) { (void)number; }
static void *send_stack_out(void *argument) {
    while (!is_over) send_out(stack, MIB), usleep(100);
    return argument;
}
// Until it is 0: the first may come before a call sleeps.
static void alarm_each(int time_us) {
    struct itimerval alarm = {{0, time_us}, {0, time_us}};
    setitimer(ITIMER_REAL, &alarm, NULL);
}
static void run(void) {
    for (int i = 0; i < 100; i++) {
        alarm_each(0);
        struct timeval limit = {0, 4000};
        int result = select(0, NULL, NULL, NULL, &limit);
        CHECK(result == 0 && limit.tv_sec == 0 && limit.tv_usec == 0, "select: %d, %ld", result, (long)limit.tv_usec);
        limit = (struct timeval){100, 0};
        alarm_each(4000);
        result = select(0, NULL, NULL, NULL, &limit);
        int is_told = limit.tv_sec == 99 && limit.tv_usec > 0;
        CHECK(result == -1 && errno == EINTR && is_told, "interrupted: %d, %ld", result, (long)limit.tv_sec);
        unsigned left = sleep(100);
        CHECK((left == 99 || left == 100) && errno == EINTR, "sleep: %u", left);
    }
    alarm_each(0);
    errno = 0;
    CHECK(sleep(0) == 0 && errno == 0, "no sleep");
}
int main(void) {
    start_engine();
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    stack = anonymous(4 * MIB);
    stack = (char *)(((uintptr_t)stack + 2 * MIB - 1) & -(2 * MIB));
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_t sender;
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    if (pthread_create(&sender, NULL, send_stack_out, NULL)) return 2;
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    on_coroutine(stack, MIB, run);
    is_over = 1;
    pthread_join(sender, NULL);
    DONE;
}
