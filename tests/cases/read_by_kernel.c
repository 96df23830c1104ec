// EXPECT: exit 0, last line "ok"
// ARGS: rseq
// BUDGETS: 24M
// The selector of system call dispatch, and the area of restartable sequences: the kernel uses them whenever it likes,
// though they may be in memory that leaves RAM.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (64ul << 20)

int main(int count, char **words) {
    if (count > 1 && !getenv("GLIBC_TUNABLES")) { // the C library uses an area of its own otherwise
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execv(words[0], words);
        return 2;
    }
    char *memory = malloc(SIZE), *place = (char *)(((long)memory + (100 << 12)) & ~63l);
    memset(memory, 0, SIZE);
    if (count > 1 && syscall(SYS_rseq, place, 32, 0, 0x53053053) != 0) return 3;
    if (count == 1 && syscall(SYS_prctl, 59, 1, 0l, 1l, place) != 0) return 4;
    int is_child = count > 1 && fork() == 0; // goes on with the same area
    for (int round = 0; round < 3; round++) {
        for (size_t at = 4 << 20; at < SIZE; at += 64) memory[at] = 1;
        sched_yield();
        usleep(1000);
    }
    if (is_child) _exit(0);
    int status = 0;
    if (count > 1 && (wait(&status) < 0 || status != 0)) return 6;
    if (syscall(SYS_getpid) != getpid()) return 5;
    puts("ok");
    return 0;
}
