// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// NEEDS: root
// ARGS: groups
/* A filter kills for each call that is not the program's own: a long read of a file, a change of groups. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEN = 64 << 20, LONG = 512 << 10 };

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define IF(number, what) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, what)
#define ELSE(what) BPF_STMT(BPF_RET | BPF_K, what)

static int set_filter(struct sock_filter *steps, unsigned short count) {
    struct sock_fprog filter = {count, steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static void handle(int signal) {
    (void)signal;
}

int main(int argc, char **argv) {
    char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 1, LEN);
    if (argc > 1) {
        struct sock_filter steps[] = {NUMBER, IF(SYS_getgroups, SECCOMP_RET_KILL_PROCESS), ELSE(SECCOMP_RET_ALLOW)};
        gid_t groups[] = {7, 9};
        if (set_filter(steps, sizeof steps / sizeof *steps) || setgroups(2, groups)) return puts("groups"), 1;
        puts("ok");
        return 0;
    }
    signal(SIGALRM, handle);
    int file = open("/var/tmp", O_TMPFILE | O_RDWR, 0600);
    if (file < 0 || pwrite(file, bytes, LONG, 0) != LONG) return puts("file"), 1;
    struct sock_filter steps[] = {
        NUMBER, IF(SYS_read, SECCOMP_RET_ALLOW), IF(SYS_write, SECCOMP_RET_ALLOW),
        IF(SYS_exit_group, SECCOMP_RET_ALLOW), ELSE(SECCOMP_RET_KILL_PROCESS),
    };
    if (set_filter(steps, sizeof steps / sizeof *steps)) return puts("filter"), 1;
    int good = read(file, bytes + (20 << 20), LONG) == LONG;
    if (write(1, good ? "ok\n" : "no\n", 3) != 3) _exit(1);
    _exit(!good);
}
