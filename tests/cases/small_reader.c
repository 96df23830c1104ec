// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* A process with little memory reads that of its child, most of which is not in RAM: by process_vm_readv, by
 * /proc/PID/mem, and as its tracer. While the child is stopped the kernel's answer is EIO, without a long wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES (80L << 20)
#define STEP (1L << 20)

static uint64_t word_at(long at) { return (uint64_t)at * 0x9e3779b97f4a7c15u + 1; }

static void fail(const char *what, long at) {
    printf("%s at %ld: %m\n", what, at);
    exit(1);
}

static void child(int out) {
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long at = 0; at < BYTES; at += 8) {
        *(uint64_t *)(memory + at) = word_at(at);
    }
    if (write(out, &memory, sizeof memory) != sizeof memory) {
        _exit(3);
    }
    for (;;) {
        pause();
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(void) {
    int ends[2];
    char *memory, path[64];
    uint64_t word;
    if (pipe(ends) != 0) {
        fail("pipe", 0);
    }
    pid_t pid = fork();
    if (pid == 0) {
        child(ends[1]);
    }
    if (read(ends[0], &memory, sizeof memory) != sizeof memory) {
        fail("read", 0);
    }
    for (long at = 0; at < BYTES; at += STEP) {
        struct iovec to = {&word, 8}, from = {memory + at, 8};
        if (process_vm_readv(pid, &to, 1, &from, 1, 0) != 8 || word != word_at(at)) {
            fail("process_vm_readv", at);
        }
    }
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int file = open(path, O_RDONLY);
    for (long at = 4096; at < BYTES; at += STEP) {
        errno = 0;
        if (pread(file, &word, 8, (off_t)(memory + at)) != 8 || word != word_at(at) || errno != 0) {
            fail("pread", at);
        }
    }
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) != 0 || waitpid(pid, NULL, 0) != pid) {
        fail("attach", 0);
    }
    for (long at = 8192; at < BYTES; at += STEP) {
        errno = 0;
        word = ptrace(PTRACE_PEEKDATA, pid, memory + at, 0);
        if (errno != 0 || word != word_at(at)) {
            fail("peek", at);
        }
    }
    ptrace(PTRACE_DETACH, pid, 0, 0);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    double begin = now();
    for (long at = 12288; at < BYTES; at += 8 * STEP) {
        ssize_t got = pread(file, &word, 8, (off_t)(memory + at));
        if (got == 8 ? word != word_at(at) : errno != EIO) {
            fail("pread of the stopped", at);
        }
    }
    if (now() - begin > 4) {
        printf("it took %.1f s\n", now() - begin);
        return 1;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    puts("ok");
    return 0;
}
