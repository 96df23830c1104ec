// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 40
// A child with one thread makes a call that its filter does not list, or ends its only thread, under a filter and in
// strict mode. It is gone then, although the engine has threads in it.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (64ul << 20)

static void set_filter(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) _exit(90);
}

static void act(int way, char *memory) {
    memset(memory, way, BYTES);
    if (way < 2) set_filter();
    else if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(91);
    if (way == 0 || way == 2) syscall(SYS_getppid);
    syscall(SYS_exit, 7);
    _exit(92);
}

int main(void) {
    char *memory = malloc(BYTES);
    memset(memory, 1, BYTES);
    for (int way = 0; way < 4; way++) {
        pid_t child = fork();
        if (child == 0) act(way, memory);
        int status = -1;
        if (waitpid(child, &status, 0) != child) return 2;
        int ends = way % 2 ? WIFEXITED(status) && WEXITSTATUS(status) == 7
                           : WIFSIGNALED(status) && (WTERMSIG(status) == SIGSYS || (way == 2 && WTERMSIG(status) == SIGKILL));
        if (!ends) {
            printf("FAIL way %d: status %x\n", way, status);
            return 1;
        }
    }
    printf("ok\n");
    return 0;
}
