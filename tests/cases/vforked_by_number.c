// BUDGETS: 24M
// LIMIT_S: 60
// A child that shares the memory until it executes a program makes its calls without the C library, as Go's do, while
// what they name leaves RAM. It finds it as its parent would, has signal actions of its own, and where its parent is
// told of it is right, too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, NR_TIMES = 300, NR_PAGES = 512 };

struct action {
    void (*handler)(int);
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

// What is named, a page each.
static struct {
    char path[PAGE];
    char argument[PAGE];
    char *arguments[PAGE / sizeof(char *)];
    char *environment[PAGE / sizeof(char *)];
    struct action action[PAGE / sizeof(struct action)];
    int descriptor[PAGE / sizeof(int)];
    char read_by_child[PAGE];
    char missing[PAGE];
} *named;
static volatile int ended, nr_handled;

static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}

static void *page_out(void *unused) {
    while (!ended) {
        madvise(named, sizeof *named, MADV_PAGEOUT);
        usleep(30);
    }
    return unused;
}

static void handle(int number) {
    (void)number;
    nr_handled++;
}

// Ends with an error number if something failed, with 250 if something was wrong.
static inline __attribute__((always_inline)) void be_child(const char *path) {
    for (int at = 0; at < 3; at++) { // as Go does for all signals
        static const int numbers[] = { SIGBUS, SIGSYS, SIGUSR1 };
        long failed = call(SYS_rt_sigaction, numbers[at], (long)&named->action[0], (long)&named->action[1], 8);
        if (failed) call(SYS_exit, -failed, 0, 0, 0);
        if (named->action[1].handler == SIG_DFL) call(SYS_exit, 250, 0, 0, 0);
    }
    if (named->read_by_child[0] != 'r') call(SYS_exit, 250, 0, 0, 0);
    long failed = call(SYS_execve, (long)path, (long)named->arguments, (long)named->environment, 0);
    call(SYS_exit, -failed, 0, 0, 0);
}

static __attribute__((noinline)) long start(const char *path) {
    long flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD;
    long child = call(SYS_clone, flags, 0, (long)named->descriptor, 0);
    if (child == 0) be_child(path);
    return child;
}

// The status of a child, or -1.
static int run(const char *path) {
    named->descriptor[0] = -1;
    long child = start(path);
    int status = -1;
    if (child < 0) {
        printf("clone: %s\n", strerror(-child));
    } else if (waitpid(child, &status, 0) != child) {
        perror("waitpid");
        status = -1;
    } else if (fcntl(named->descriptor[0], F_GETFD) < 0 || close(named->descriptor[0])) {
        printf("descriptor %d: %s\n", named->descriptor[0], strerror(errno));
        status = -1;
    }
    return status;
}

int main(void) {
    named = mmap(NULL, NR_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(named->path, "/bin/sh");
    strcpy(named->argument, "[ \"$WORD\" = right ] && kill -BUS $$");
    named->arguments[0] = "sh", named->arguments[1] = "-c", named->arguments[2] = named->argument;
    named->environment[0] = "WORD=right";
    named->read_by_child[0] = 'r';
    strcpy(named->missing, "/nowhere");
    static const int numbers[] = { SIGBUS, SIGSYS, SIGUSR1 };
    for (int at = 0; at < 3; at++) signal(numbers[at], handle);
    pthread_t thread;
    pthread_create(&thread, NULL, page_out, NULL);
    int nr_wrong = 0;
    for (int time = 0; time < NR_TIMES && nr_wrong < 5; time++) {
        int is_missing = time % 8 == 7;
        int status = run(is_missing ? named->missing : named->path);
        int wanted = is_missing ? ENOENT << 8 : SIGBUS;
        if ((status & ~0x80) != wanted) { // without the bit of a dump
            printf("time %d: status %x, not %x\n", time, status, wanted);
            nr_wrong++;
        }
        raise(SIGUSR1); // the handlers are as before
        raise(SIGBUS);
        if (nr_handled != 2 * (time + 1)) {
            printf("time %d: %d signals handled\n", time, nr_handled);
            nr_wrong++;
        }
    }
    ended = 1;
    pthread_join(thread, NULL);
    return nr_wrong != 0;
}
