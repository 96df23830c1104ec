// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
/* A program that has calls of its own threads raise SIGSYS (PR_SET_SYSCALL_USER_DISPATCH): its selector, its range and
 * its handler work, on memory that has left RAM too. A child has none of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { DISPATCH = 59, MINE = 4242, OTHERS = 64 << 20 };

static char *selector, *others;
static int nr_caught, nr_wrong;

#define IS(what) \
    do { \
        if (!(what)) printf("line %d: %s, errno %d\n", __LINE__, #what, errno), nr_wrong++; \
    } while (0)

static void on_call(int signal, siginfo_t *about, void *context) {
    *selector = 0;
    nr_caught++;
    IS(about->si_code == 2 && about->si_syscall == SYS_getppid);
    IS((long)about->si_call_addr == ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP]);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = MINE;
}

static __attribute__((noinline, section("calls"))) long call(long number) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number) : "rcx", "r11", "memory");
    return result;
}

static __attribute__((noinline)) long call_elsewhere(long number) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number) : "rcx", "r11", "memory");
    return result;
}

static long caught(long (*make)(long)) {
    *selector = 1;
    long result = make(SYS_getppid);
    *selector = 0;
    return result;
}

static int set(long how, long start, long len, char *selector) { return prctl(DISPATCH, how, start, len, selector); }

static void use_other_memory(void) {
    for (size_t at = 0; at < OTHERS; at += 4096) others[at]++;
}

int main(void) {
    extern char __start_calls[], __stop_calls[];
    long start = (long)__start_calls, len = __stop_calls - __start_calls;
    others = mmap(NULL, OTHERS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    selector = calloc(1, 8192);
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    use_other_memory();
    if (set(1, 0, 0, selector)) return puts("there is no dispatch here\nok"), 0;
    for (int i = 0; i < 100; i++) {
        if (i % 25 == 0) use_other_memory();
        IS(caught(call) == MINE && nr_caught == i + 1);
        IS(call(SYS_getppid) == getppid());
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(caught(call) != getppid());
    int status = -1;
    IS(waitpid(child, &status, 0) == child && status == 0);
    IS(set(1, start, len, selector) == 0);
    IS(caught(call) == getppid());
    IS(caught(call_elsewhere) == MINE);
    IS(set(1, -1L, 2, selector) == -1 && errno == EINVAL);
    IS(set(1, 4096, 0, selector) == -1 && errno == EINVAL);
    IS(set(0, 1, 0, NULL) == -1 && errno == EINVAL);
    IS(set(7, 0, 0, NULL) == -1 && errno == EINVAL);
    IS(set(1, 0, 0, (char *)-4096L) == -1 && errno == EFAULT);
    IS(caught(call_elsewhere) == MINE);
    IS(set(0, 0, 0, NULL) == 0);
    IS(caught(call_elsewhere) == getppid());
    use_other_memory();
    puts(nr_wrong ? "wrong" : "ok");
    return nr_wrong != 0;
}
