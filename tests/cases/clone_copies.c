// EXPECT: exit 0, last line "ok"
// Children made by clone, by its system call, by an instruction of the program's own, and by _Fork have the memory of
// their parent, and their parent keeps its own. The stack that clone is given comes from malloc.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (300ul << 20 >> 3)
#define STEP (PAGE / 8)
#define STACK (256 << 10)
#define SEEN 17

static uint64_t *memory;
static pid_t *id_in_child;

/* Looks at a part, writes all of that, and looks again. */
static int child_work(void *argument) {
    uint64_t first = (uint64_t)argument;
    for (size_t at = first * STEP; at < WORDS; at += 64 * STEP)
        if (memory[at] != at * 3) return 1;
    for (size_t at = first * STEP; at < WORDS; at += 64 * STEP) memory[at] = ~at;
    for (size_t at = first * STEP; at < WORDS; at += 64 * STEP)
        if (memory[at] != ~at) return 2;
    char *own = malloc(3 << 20);
    memset(own, 5, 3 << 20);
    pid_t grandchild = fork();
    if (grandchild == 0) _exit(memory[first * STEP] == ~(first * STEP) && own[1 << 20] == 5 ? 0 : 1);
    int status = -1;
    if (waitpid(grandchild, &status, 0) != grandchild || status) return 3;
    return SEEN;
}

static long make(int way) {
    static const char *const names[] = {"clone", "SYS_clone", "SYS_clone3", "instruction clone", "instruction fork", "_Fork"};
    void *part = (void *)(uintptr_t)way;
    char *stack = malloc(STACK);
    long child;
    printf("%s\n", names[way]);
    fflush(stdout);
    if (way == 0) {
        child = clone(child_work, stack + STACK, SIGCHLD | CLONE_CHILD_SETTID | CLONE_FS | CLONE_IO, part, NULL, NULL, id_in_child);
        return child;
    } else if (way == 1) {
        child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    } else if (way == 2) {
        struct clone_args *arguments = calloc(1, sizeof *arguments);
        arguments->exit_signal = SIGCHLD;
        child = syscall(SYS_clone3, arguments, sizeof *arguments);
#if defined(__x86_64__)
    } else if (way <= 4) {
        register long tid __asm__("r10") = 0, tls __asm__("r8") = 0;
        long number = way == 3 ? SYS_clone : SYS_fork;
        __asm__ volatile("syscall" : "=a"(child) : "a"(number), "D"((long)SIGCHLD), "S"(0l), "d"(0l), "r"(tid), "r"(tls) : "rcx", "r11", "memory");
#endif
    } else {
        child = _Fork();
    }
    if (child == 0) _exit(child_work(part));
    free(stack);
    return child;
}

int main(int argc, char **argv) {
    (void)argv;
    errno = 0;
    if (syscall(SYS_clone, CLONE_NEWNS | CLONE_FS | SIGCHLD, 0, 0, 0, 0) != -1 || errno != EINVAL) {
        printf("FAIL flags that exclude each other: errno %d\n", errno);
        return 1;
    }
    memory = malloc(WORDS * 8);
    id_in_child = malloc(64 << 20);
    for (size_t at = 0; at < WORDS; at += STEP) memory[at] = at * 3;
    for (int way = 0; way < 6; way++) {
        if (argc > 1 && (way == 3 || way == 4)) continue;
        long child = make(way);
        int status = -1;
        if (child <= 0 || waitpid((pid_t)child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != SEEN) {
            printf("FAIL way %d: child %ld, status %x\n", way, child, status);
            return 1;
        }
        for (size_t at = 0; at < WORDS; at += STEP)
            if (memory[at] != at * 3) { printf("FAIL way %d: word %zu\n", way, at); return 1; }
    }
    printf("ok\n");
    return 0;
}
