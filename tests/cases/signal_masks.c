// BUDGETS: 24M
// LIMIT_S: 30
// CFLAGS: -Wno-deprecated-declarations
// Every signal can be blocked, and is seen to be so: SIGBUS and SIGSYS too.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t nr_handled[65];

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void on_signal(int number) { nr_handled[number]++; }

static int is_blocked(int number) {
    sigset_t now;
    check(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0, "pthread_sigmask");
    return sigismember(&now, number);
}

static int plain_thread(void *number) {
    check(is_blocked(*(int *)number), "a new thread has its creator's mask");
    return 77;
}

static void block_one(int number) {
    sigset_t set, before;
    struct sigaction action = { .sa_handler = on_signal };
    sigemptyset(&set);
    sigaddset(&set, number);
    check(sigaction(number, &action, NULL) == 0, "sigaction");
    check(sigprocmask(SIG_BLOCK, &set, &before) == 0 && !sigismember(&before, number), "not blocked before");
    check(is_blocked(number), "blocked");

    unsigned long raw = 0;
    check(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &raw, 8) == 0 && raw >> (number - 1) & 1, "blocked, by number");

    thrd_t thread;
    int result = 0;
    check(thrd_create(&thread, plain_thread, &number) == thrd_success, "thrd_create");
    check(thrd_join(thread, &result) == thrd_success && result == 77, "thrd_join");
    check(sigprocmask(SIG_SETMASK, &before, NULL) == 0 && !is_blocked(number), "unblocked");

    check(sighold(number) == 0 && is_blocked(number), "sighold");
    check(sigrelse(number) == 0 && !is_blocked(number), "sigrelse");
    check(sigset(number, SIG_HOLD) == on_signal && is_blocked(number), "sigset blocks");
    check(sigset(number, on_signal) == SIG_HOLD && !is_blocked(number), "sigset unblocks");
    raise(number);
    check(nr_handled[number] == 1, "handled at once");
}

static volatile sig_atomic_t nr_seen;

static void block_all(int number, siginfo_t *about, void *given) {
    ucontext_t *context = given;
    (void)number, (void)about;
    for (int signal = 1; signal < 32; signal++) nr_seen += sigismember(&context->uc_sigmask, signal);
    sigfillset(&context->uc_sigmask);
}

static void block_none(int number, siginfo_t *about, void *given) {
    ucontext_t *context = given;
    (void)number, (void)about;
    for (int signal = 1; signal < 32; signal++) nr_seen += sigismember(&context->uc_sigmask, signal);
    sigemptyset(&context->uc_sigmask);
}

// A handler sees the mask in its context, and changes it there.
static void change_in_handler(int flags) {
    struct sigaction action = { .sa_sigaction = block_all, .sa_flags = SA_SIGINFO | flags }, known;
    sigset_t most, none;
    sigfillset(&most);
    sigdelset(&most, SIGUSR1);
    sigemptyset(&none);
    action.sa_mask = most;
    for (int round = 0; round < 2; round++) {
        action.sa_sigaction = round ? block_none : block_all;
        check(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR1, NULL, &known) == 0, "sigaction");
        for (int number = 1; number < 32; number++)
            check(sigismember(&known.sa_mask, number) == (number != SIGUSR1 && number != SIGKILL && number != SIGSTOP),
                  "the mask of an action");
        sigprocmask(SIG_SETMASK, round ? &most : &none, NULL);
        nr_seen = 0;
        raise(SIGUSR1);
        check(nr_seen >= (round ? 28 : 0) && nr_seen <= (round ? 28 : 1), "the mask in the context");
        for (int number = 1; number < 32; number++)
            check(is_blocked(number) == (!round && number != SIGKILL && number != SIGSTOP), "the mask of the handler");
        long parent;
        asm volatile("syscall" : "=a"(parent) : "0"(SYS_getppid) : "rcx", "r11", "memory");
        check(parent == getppid(), "an inline call");
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int pause_of_bsd(int mask) __asm__("sigpause");
static char *swept;
static size_t swept_len;
static volatile int nr_sweeps;

static void sweep(int number) {
    (void)number;
    for (size_t at = 0; at < swept_len; at += 4096) check(swept[at] == 5, "memory in a handler");
    nr_sweeps++;
}

int main(void) {
    const size_t len = 24 << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 5, len);
    const int numbers[] = { SIGUSR1, SIGBUS, SIGSYS, SIGSEGV };
    for (int at = 0; at < 4; at++) block_one(numbers[at]);
    change_in_handler(0);
    change_in_handler(SA_ONSTACK);
    static char room[12 << 10];
    stack_t stack = { .ss_sp = room, .ss_size = sizeof room };
    check(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    change_in_handler(SA_ONSTACK);
    for (size_t at = 0; at < len; at += 4096) check(memory[at] == 5, "memory after handlers");

    // BSD's sigpause, whose mask names all but one: a handler finds cold memory.
    swept = memory, swept_len = len;
    struct sigaction action = { .sa_handler = sweep };
    sigaction(SIGALRM, &action, NULL);
    sigset_t all;
    sigemptyset(&all);
    sigaddset(&all, SIGALRM);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int round = 1; round < 4; round++) {
        ualarm(20000, 0);
        check(pause_of_bsd(~sigmask(SIGALRM)) == -1 && nr_sweeps == round, "sigpause");
    }

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int number = 1; number < 32; number++)
        check(is_blocked(number) == (number != SIGKILL && number != SIGSTOP), "everything is blocked");
    // Cold memory is there all the same.
    for (size_t at = 0; at < len; at += 4096) check(memory[at] == 5, "memory");
    return 0;
}
