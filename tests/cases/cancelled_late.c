// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* A thread that is to be cancelled makes calls that are no cancellation points: each does what it does. It ends at the
 * first call behind them that is one. */
#include "check.h"
#include <spawn.h>
static int nr_done;

static int status_of(pid_t child) {
    int status = -1;
    CHECK(child > 0, "no child");
    while (syscall(SYS_wait4, child, &status, 0, NULL) != child) {} /* waitpid is a cancellation point */
    return status;
}

static void *make_calls(void *memory) {
    char *spawned[] = {"true", NULL};
    struct rlimit limit;
    pthread_t other;
    pid_t child = 0;
    int state;

    CHECK(pthread_cancel(pthread_self()) == 0, "cancel");
    child = fork();
    if (child == 0)
        _exit(wrong_pages(memory, 24 * MIB) ? 4 : 3);
    CHECK(status_of(child) == 3 << 8, "fork");
    nr_done++;
    child = vfork();
    if (child == 0) {
        execv("/bin/true", spawned);
        _exit(1);
    }
    CHECK(status_of(child) == 0, "vfork");
    nr_done++;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE, "the state");
    nr_done++;
    CHECK(posix_spawnp(&child, "true", NULL, NULL, spawned, environ) == 0 && status_of(child) == 0, "posix_spawnp");
    nr_done++;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0, "getrlimit");
    limit.rlim_cur = 1ul << 40;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == 1ul << 40, "setrlimit");
    nr_done++;
    CHECK(mlock(memory, PAGE) == 0 && munlock(memory, PAGE) == 0, "mlock");
    nr_done++;
    char *more = mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED, "mmap");
    fill(more, 24 * MIB);
    CHECK(wrong_pages(more, 24 * MIB) == 0 && munmap(more, 24 * MIB) == 0, "munmap");
    nr_done++;
    CHECK(pthread_create(&other, NULL, (void *(*)(void *))getppid, NULL) == 0 && pthread_detach(other) == 0, "create");
    nr_done++;
    CHECK(setuid(getuid()) == 0, "setuid");
    nr_done++;
    pthread_testcancel();
    return NULL;
}

static void *end_process(void *unused) {
    (void)unused;
    pthread_cancel(pthread_self());
    exit(7);
}

int main(void) {
    char *memory = anonymous(24 * MIB);
    pthread_t thread;
    void *result = NULL;
    fill(memory, 24 * MIB);
    pthread_create(&thread, NULL, make_calls, memory);
    pthread_join(thread, &result);
    CHECK(result == PTHREAD_CANCELED && nr_done == 9, "%d calls", nr_done);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        pthread_create(&thread, NULL, end_process, NULL);
        pthread_join(thread, &result);
        _exit(0);
    }
    CHECK(status_of(child) == 7 << 8, "exit in a thread");
    DONE;
}
