// EXPECT: exit 0, last line "ok"
// NEEDS: root
// BUDGETS: 24M
// A thread changes its user by number. A function of the C library's, which does so for all, gets one answer from all.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    if (syscall(SYS_setresgid, 65534, 65534, 65534) != 0 || syscall(SYS_setresuid, 65534, 65534, 65534) != 0) return 2;
    if (setuid(0) != -1 || errno != EPERM || getuid() != 65534) return 3;
    if (setgid(0) != -1 || errno != EPERM || getgid() != 65534) return 4;
    for (size_t at = 0; at < 64 << 20; at += 4096)
        if (memory[at] != 1) return 5;
    puts("ok");
    return 0;
}
