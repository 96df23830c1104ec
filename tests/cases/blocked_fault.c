// BUDGETS: 24M
// LIMIT_S: 30
// A SIGBUS that the processor raises ends the process if it is blocked, and is handled if it is not.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile char *behind_end;
static sigjmp_buf back;
static volatile int nr_handled;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void on_bus(int number) {
    (void)number;
    nr_handled++;
    siglongjmp(back, 1);
}

static void returns(int number) {
    (void)number;
    if (++nr_handled > 100) _exit(7);
}

static void fault_handled(void) {
    signal(SIGBUS, on_bus);
    for (int round = 1; round < 50; round++) {
        if (sigsetjmp(back, 1) == 0) *behind_end = 1;
        check(nr_handled == round, "handled");
    }
}

static void fault_blocked(void) {
    struct rlimit none = { 0, 0 };
    sigset_t all;
    sigfillset(&all);
    setrlimit(RLIMIT_CORE, &none);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, returns);
        sigprocmask(SIG_BLOCK, &all, NULL);
        *behind_end = 1;
        _exit(0);
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "blocked");
}

int main(void) {
    const size_t len = 48 << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < len; at += 4096) memory[at] = 5;
    FILE *file = tmpfile();
    check(file && ftruncate(fileno(file), 4096) == 0, "tmpfile");
    behind_end = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    check(behind_end != MAP_FAILED && ftruncate(fileno(file), 0) == 0, "mmap");
    fault_blocked();
    fault_handled();
    fault_blocked();
    for (size_t at = 0; at < len; at += 4096) check(memory[at] == 5, "memory");
    return 0;
}
