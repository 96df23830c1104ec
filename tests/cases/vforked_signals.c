// BUDGETS: 24M
// LIMIT_S: 30
// A child of vfork shares its parent's memory, but the signal actions, the masks and the signal stack that it sets are
// its own, and the program that it executes gets those.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NR = 8 };
static const int signals[NR] = { SIGBUS, SIGSYS, SIGUSR1, SIGUSR2, SIGSEGV, SIGALRM, SIGFPE, SIGTERM };
static volatile int nr_full[65], nr_plain[65];

static void full(int number, siginfo_t *about, void *context) {
    (void)about, (void)context;
    nr_full[number]++;
}

static void plain(int number) { nr_plain[number]++; }

static void check(int is_right, const char *what, int number) {
    if (is_right) return;
    printf("wrong: %s, signal %d\n", what, number);
    fflush(stdout);
    _exit(1);
}

static int is_blocked(int number) {
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    return sigismember(&now, number);
}

static void set_all(void) {
    for (int at = 0; at < NR; at++) {
        struct sigaction action = { .sa_sigaction = full, .sa_flags = SA_SIGINFO | (at & 1 ? SA_ONSTACK : 0) };
        sigaction(signals[at], &action, NULL);
    }
}

static void (*action_of(int number))(int) {
    struct sigaction now;
    sigaction(number, NULL, &now);
    return now.sa_handler;
}

// What the child sets, and what it then reads.
static void be_child(void (*handler)(int), char **command) {
    sigset_t all;
    sigfillset(&all);
    for (int at = 0; at < NR; at++) {
        check(action_of(signals[at]) == (void (*)(int))full, "the child inherits the action", signals[at]);
        check(!is_blocked(signals[at]), "the child inherits the mask", signals[at]);
        if (at & 1) signal(signals[at], handler);
        else sigaction(signals[at], &(struct sigaction){ .sa_handler = handler }, NULL);
        check(action_of(signals[at]) == handler, "the child reads its own action", signals[at]);
        if (handler != SIG_DFL) raise(signals[at]);
    }
    stack_t none = { .ss_flags = SS_DISABLE };
    check(sigaltstack(&none, NULL) == 0, "sigaltstack", 0);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int at = 0; at < NR; at++) check(is_blocked(signals[at]), "the child reads its own mask", signals[at]);
    if (command) execv(command[0], command);
    _exit(3);
}

static void vforked(void (*handler)(int), char **command, int is_blocking) {
    static volatile char *memory;
    const size_t len = 48 << 20;
    if (!memory) memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < len; at += 4096) memory[at]++;
    memset((void *)nr_full, 0, sizeof nr_full);
    memset((void *)nr_plain, 0, sizeof nr_plain);
    set_all();
    const pid_t child = vfork();
    if (child == 0) be_child(handler, command);
    int status = 0;
    check(waitpid(child, &status, 0) == child && WIFEXITED(status), "waitpid", 0);
    check(WEXITSTATUS(status) == (command ? 0 : 3), "the child's status", 0);
    for (int at = 0; at < NR; at++) {
        const int number = signals[at];
        check(nr_plain[number] == (handler == plain), "the child's handler ran in the child", number);
        check(is_blocked(number) == is_blocking, "the parent's mask is its own", number);
        check(action_of(number) == (void (*)(int))full, "the parent's action is its own", number);
        if (is_blocking) continue;
        raise(number);
        check(nr_full[number] == 1 && nr_plain[number] == (handler == plain), "the parent's handler runs", number);
    }
}

// After exec: what was ignored stays so, and so does the mask.
static int executed(int is_ignored) {
    for (int at = 0; at < NR; at++) {
        check(action_of(signals[at]) == (is_ignored ? SIG_IGN : SIG_DFL), "executed: action", signals[at]);
        check(is_blocked(signals[at]), "executed: mask", signals[at]);
    }
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    if (argc == 2) return executed(strcmp(argv[1], "ignored") == 0);
    static char room[16 << 10];
    stack_t stack = { .ss_sp = room, .ss_size = sizeof room }, now;
    check(sigaltstack(&stack, NULL) == 0, "sigaltstack", 0);
    char *ignored[] = { argv[0], "ignored", NULL }, *reset[] = { argv[0], "reset", NULL };
    for (int round = 0; round < 3; round++) {
        vforked(SIG_DFL, NULL, 0);
        vforked(SIG_IGN, NULL, 0);
        vforked(plain, NULL, 0);
        vforked(SIG_IGN, ignored, 0);
        vforked(SIG_DFL, reset, 0);
        check(sigaltstack(NULL, &now) == 0 && now.ss_sp == room, "the parent's signal stack is its own", 0);
    }
    return 0;
}
