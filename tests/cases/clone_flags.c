// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Children with a copy of the memory that begin without signal handlers (CLONE_CLEAR_SIGHAND), or for which their
// parent waits (CLONE_VFORK without CLONE_VM), have the memory of their parent.
#include "check.h"
#include <linux/sched.h>
#include <sched.h>
#include <time.h>
#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ull
#endif

enum { BYTES = 64 << 20, SEEN = 17 };
static char *memory;
static int ends[2], clears, waits;

static void on_signal(int number) { (void)number; }

static int look(void) {
    if (wrong_pages(memory, BYTES)) return 1;
    for (size_t at = 0; at < BYTES; at += PAGE) *(uint64_t *)(memory + at) = at + 2;
    for (size_t at = 0; at < BYTES; at += PAGE)
        if (*(uint64_t *)(memory + at) != at + 2) return 2;
    struct sigaction handled, bus, ignored;
    if (sigaction(SIGUSR1, NULL, &handled) || sigaction(SIGBUS, NULL, &bus) || sigaction(SIGUSR2, NULL, &ignored)) return 3;
    void (*kept)(int) = clears ? SIG_DFL : on_signal;
    if (handled.sa_handler != kept || bus.sa_handler != kept || ignored.sa_handler != SIG_IGN) return 4;
    pid_t grandchild = fork();
    if (grandchild == 0) _exit(*(uint64_t *)(memory + PAGE) == PAGE + 2 ? 0 : 1);
    int status = -1;
    if (waitpid(grandchild, &status, 0) != grandchild || status) return 5;
    usleep(waits ? 100000 : 0);
    return write(ends[1], "", 1) == 1 ? SEEN : 6;
}

static int work(void *argument) { return argument ? execl("/bin/sleep", "sleep", argument, NULL) : look(); }

static pid_t make(int way) {
    char *stack = malloc(1 << 20) + (1 << 20);
    struct clone_args *about = calloc(1, 8192);
    about->exit_signal = SIGCHLD;
    clears = way == 0 || way == 5, waits = way > 0;
    about->flags = (clears ? CLONE_CLEAR_SIGHAND : 0) | (waits ? CLONE_VFORK : 0);
    pid_t child;
    switch (way) {
    case 2: child = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0); break;
    case 3: return clone(work, stack, CLONE_VFORK | SIGCHLD, NULL);
    case 4: return clone(work, stack, CLONE_VFORK | SIGCHLD, (void *)"2");
    case 6: child = syscall(SYS_clone3, about, 4096); break;
    default: child = syscall(SYS_clone3, about, sizeof *about); break;
    }
    if (child == 0) _exit(look());
    return child;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(void) {
    memory = anonymous(BYTES);
    if (pipe2(ends, O_NONBLOCK)) return 2;
    fill(memory, BYTES);
    signal(SIGUSR1, on_signal), signal(SIGBUS, on_signal), signal(SIGUSR2, SIG_IGN);
    for (int way = 0; way < 7; way++) {
        double begun = now();
        pid_t child = make(way);
        double took = now() - begun;
        char got;
        int status = -1;
        if (way == 4) {
            CHECK(child > 0 && waitpid(child, &status, WNOHANG) == 0, "way 4: the parent waited for more than the exec");
            CHECK(took < 1.9, "way 4 took %.2f s", took);
            CHECK(waitpid(child, &status, 0) == child && status == 0, "way 4: status %x", status);
            continue;
        }
        CHECK(child > 0 && (!waits || read(ends[0], &got, 1) == 1), "way %d: the parent did not wait", way);
        CHECK(waitpid(child, &status, 0) == child && status == SEEN << 8, "way %d: status %x", way, status);
        while (read(ends[0], &got, 1) == 1) {}
        CHECK(wrong_pages(memory, BYTES) == 0, "way %d: the parent's pages", way);
    }
    struct sigaction handled;
    sigaction(SIGUSR1, NULL, &handled);
    CHECK(handled.sa_handler == on_signal, "the parent's handler");
    DONE;
}
