// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A program allows itself only what malloc needs, and allocates. Another one forbids read, and forks: its children find
// their memory.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define LEN (40 * MIB)
#define IF(number, result) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, result)
#define ALLOW(number) IF(number, SECCOMP_RET_ALLOW)
static void set(struct sock_filter *steps, size_t nr) {
    struct sock_fprog filter = {nr, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) _exit(2);
}
static void allocate(void) {
    struct sock_filter steps[] = {
        NUMBER, ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_mprotect), ALLOW(SYS_brk), ALLOW(SYS_exit_group),
        ALLOW(SYS_futex), ALLOW(SYS_madvise), ALLOW(SYS_mremap), ALLOW(SYS_getrandom), ALLOW(SYS_rt_sigreturn),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    set(steps, sizeof steps / sizeof *steps);
    for (int i = 0; i < 60; i++) memset(malloc(MIB), i, MIB);
    _exit(0);
}
static void fork_some(void) {
    struct sock_filter steps[] = {
        NUMBER, IF(SYS_read, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    char *memory = anonymous(LEN);
    fill(memory, LEN);
    set(steps, sizeof steps / sizeof *steps);
    for (int round = 0; round < 4; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) _exit(wrong_pages(memory, LEN) != 0);
        if (waitpid(child, &status, 0) != child || status != 0) fprintf(stderr, "inner %x\n", status), _exit(3);
    }
    _exit(0);
}
int main(void) {
    void (*const ways[])(void) = {allocate, fork_some};
    for (int way = 0; way < 2; way++) {
        int status;
        pid_t child = fork();
        if (child == 0) ways[way]();
        CHECK(waitpid(child, &status, 0) == child && status == 0, "way %d: status %x", way, status);
    }
    DONE;
}
