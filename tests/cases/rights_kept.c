// EXPECT: exit 0, last line "ok"
// ARGS: threads
// BUDGETS: 24M
// NEEDS: root
// A program whose memory is managed keeps capabilities over a change of its user, and changes its groups by them, in
// the order of setpriv.
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (96ul << 20)

static char *memory;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void use_memory(int round) {
    for (size_t at = 0; at < SIZE; at += 4096) {
        check(memory[at] == (char)round, "memory");
        memory[at]++;
    }
}

int main(int count, char **words) {
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 }, wrong = { 77, 0 };
    struct __user_cap_data_struct data[2];
    check(syscall(SYS_capset, &wrong, data) == -1, "no such version");
    check(prctl(PR_SET_KEEPCAPS, 77) == -1, "no such value");
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (count > 1) use_memory(0);
    check(prctl(PR_SET_KEEPCAPS, 1) == 0, "prctl");
    check(setresuid(65534, 65534, 65534) == 0, "setresuid");
    check(syscall(SYS_capget, &header, data) == 0, "capget");
    data[0].effective = data[0].permitted;
    data[1].effective = data[1].permitted;
    check(data[0].permitted != 0 && syscall(SYS_capset, &header, data) == 0, "capset");
    check(setgroups(0, NULL) == 0, "setgroups");
    check(setresgid(65534, 65534, 65534) == 0, "setresgid");
    memset(data, 0, sizeof data);
    check(syscall(SYS_capset, &header, data) == 0, "capset of nothing");
    check(setgroups(0, NULL) == -1 && errno == EPERM, "setgroups without the right");
    use_memory(count > 1);
    use_memory(1 + (count > 1));
    pid_t child = fork();
    if (child == 0) {
        use_memory(2 + (count > 1));
        exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child");
    check(getuid() == 65534 && getgid() == 65534, "the user");
    puts("ok");
    return 0;
}
