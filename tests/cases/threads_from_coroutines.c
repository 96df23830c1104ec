// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Coroutines on stacks of the program's start threads, fork and spawn while the part of their stack that this needs is
// not in RAM, from each depth on.
#include "check.h"
#include <spawn.h>
#include <ucontext.h>

enum { STEP = 32, NR = 4352 / STEP, APART = 128 << 10, NEEDED = 64 << 10, OTHERS = 64 << 20 };
static ucontext_t back, own;
static char *others;
static int way;
extern char **environ;

static void *work(void *argument) { return argument; }

static void use_other_memory(void) {
    for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
}

static void run(void) {
    pthread_t thread;
    pid_t child = -1;
    int status = -1;
    char *arguments[] = { "true", NULL };
    if (way == 0) {
        status = pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL);
    } else {
        if (way == 1 && (child = fork()) == 0) _exit(0);
        if (way == 2 && posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) child = -1;
        if (waitpid(child, &status, 0) != child) status = -1;
    }
    CHECK(status == 0, "way %d: %x", way, status);
    setcontext(&back);
}

int main(void) {
    others = anonymous(OTHERS);
    char *stacks = anonymous(NR * APART);
    madvise(stacks, NR * APART, MADV_NOHUGEPAGE);
    for (way = 0; way < 3; way++) {
        memset(stacks, 1, NR * APART);
        use_other_memory();
        for (int i = way; i < NR; i += way ? 4 : 1) {
            getcontext(&own);
            own.uc_stack.ss_sp = stacks + i * (size_t)APART;
            own.uc_stack.ss_size = NEEDED + (size_t)i * STEP + 512;
            own.uc_link = NULL;
            makecontext(&own, run, 0);
            swapcontext(&back, &own);
        }
    }
    DONE;
}
