// EXPECT: exit 0, last line "ok"
// BUDGETS: 96M
// LIMIT_S: 60
// A debugger starts its program: the child of vfork asks to be traced, touches its parent's memory, which is out of
// RAM, and executes a program. Only then does the parent, which is to let it go on after each signal, run again.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
extern char **environ;
static char *a;
static void out(void) { madvise(a, 120 * M, MADV_PAGEOUT); }
static void execute(int how, char **arguments) {
    switch (how) {
    case 0: execvp(arguments[0], arguments); break;
    case 1: execve("/bin/sh", arguments, environ); break;
    case 2: execl("/bin/sh", "sh", "-c", arguments[2], (char *)0); break;
    case 3: syscall(SYS_execve, "/bin/sh", arguments, environ); break;
    case 4: execv("/nowhere", arguments); _exit(errno == ENOENT ? 7 : 8);
    }
}
static void trace(int how) {
    char **arguments = (char **)(a + 3 * M);
    arguments[0] = strcpy(a + 5 * M, "sh"), arguments[1] = strcpy(a + 7 * M, "-c");
    arguments[2] = strcpy(a + 9 * M, "exit 7"), arguments[3] = 0;
    a[11 * M] = 1, a[13 * M] = 0;
    out();
    pid_t child = vfork();
    if (!child) {
        long first = how % 2 ? ptrace(PTRACE_TRACEME, 0, 0, 0) : syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0);
        if (first == 0 && ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && errno == EPERM)
            a[13 * M] = a[11 * M] + 1;
        execute(how, arguments);
        _exit(9);
    }
    CHECK(child > 0);
    int status, traps = 0;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status);
        CHECK(traps || signal == SIGTRAP);
        traps += signal == SIGTRAP;
        CHECK(ptrace(PTRACE_CONT, child, 0, signal == SIGTRAP ? 0 : signal) == 0);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(traps == (how < 4) && a[13 * M] == 2);
}
int main(void) {
    a = mmap(0, 120 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED);
    memset(a, 1, 120 * M);
    for (int i = 0; i < 10; i++)
        trace(i % 5);
    puts("ok");
    return 0;
}
