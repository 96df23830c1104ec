// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// A filter traps all calls but a few, so that the program's handler of SIGSYS runs: what this library does before the
// handler is not trapped.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static char *memory;
static volatile int nr_trapped;
static void trapped(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)context;
    nr_trapped += about->si_syscall == SYS_getppid && memory[(size_t)nr_trapped * MIB] == 1;
}
static void child(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write), ALLOW(SYS_exit_group), ALLOW(SYS_rt_sigreturn),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) _exit(2);
    for (int i = 0; i < 20; i++) syscall(SYS_getppid);
    _exit(nr_trapped != 20);
}
int main(void) {
    memory = anonymous(64 * MIB);
    memset(memory, 1, 64 * MIB);
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) child();
        int status;
        waitpid(pid, &status, 0);
        CHECK(status == 0, "status %x", status);
    }
    DONE;
}
