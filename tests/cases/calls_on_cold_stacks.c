// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Functions of the C library that block all signals, or have the kernel fill in a variable of theirs, are called by
// coroutines of which the next page of the stack is not in RAM, from each depth on.
#include "check.h"
#include <termios.h>
#include <ucontext.h>

enum { STEP = 16, NR = 4352 / STEP, APART = 128 << 10, NEEDED = 64 << 10, OTHERS = 48 << 20 };
static ucontext_t back, own;
static char *others;
static int terminal, result;
static pthread_t other;
static volatile int has_come;

static void on_signal(int number) { has_come = number; }

static void *wait_for_ever(void *argument) {
    for (;;) pause();
    return argument;
}

static int make_shell(void) { return system("exit 3") != 3 << 8; }

static int read_shell(void) {
    FILE *pipe = popen("exit 4", "r");
    return !pipe || pclose(pipe) != 4 << 8;
}

static int signal_thread(void) { return pthread_kill(other, SIGUSR1); }

static int read_action(void) {
    static struct sigaction action;
    return sigaction(SIGUSR1, NULL, &action) || action.sa_handler != on_signal;
}

static int change_action(void) {
    static struct sigaction before, action = { .sa_handler = on_signal };
    return sigaction(SIGUSR1, &action, &before) || before.sa_handler != on_signal;
}

static int set_handler(void) { return signal(SIGUSR1, on_signal) != on_signal; }
static int set_interrupts(void) { return siginterrupt(SIGUSR1, 0); }
static int is_terminal(void) { return !isatty(terminal); }

static int name_terminal(void) {
    char *name = ttyname(terminal);
    return !name && errno != ENODEV && errno != ENOENT;
}

static int read_terminal(void) {
    static struct termios state;
    return tcgetattr(terminal, &state);
}

static const struct {
    const char *name;
    int (*make)(void);
    int every;
} calls[] = {
    { "system", make_shell, 8 },     { "popen", read_shell, 8 },          { "pthread_kill", signal_thread, 1 },
    { "sigaction", read_action, 1 }, { "sigaction", change_action, 1 },   { "signal", set_handler, 1 },
    { "isatty", is_terminal, 1 },    { "siginterrupt", set_interrupts, 1 }, { "ttyname", name_terminal, 1 },
    { "tcgetattr", read_terminal, 1 },
};
static size_t now;

static void run(void) {
    result = calls[now].make();
    setcontext(&back);
}

int main(void) {
    others = anonymous(OTHERS);
    char *stacks = anonymous(NR * APART);
    stacks = (char *)(((uintptr_t)stacks + NEEDED - 1) / NEEDED * NEEDED);
    madvise(stacks, (NR - 1) * APART, MADV_NOHUGEPAGE);
    signal(SIGUSR1, on_signal);
    terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || pthread_create(&other, NULL, wait_for_ever, NULL)) return 2;
    for (now = 0; now < sizeof calls / sizeof *calls; now++) {
        calls[now].make();
        for (int i = 0; i < NR - 1; i++) stacks[i * (size_t)APART] = 1;
        for (int round = 0; round < 2; round++) {
            for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
            for (int i = round; i < NR - 1; i += calls[now].every) {
                getcontext(&own);
                own.uc_stack.ss_sp = stacks + i * (size_t)APART;
                own.uc_stack.ss_size = NEEDED + (size_t)i * STEP + 512;
                own.uc_link = NULL;
                makecontext(&own, run, 0);
                result = -1;
                swapcontext(&back, &own);
                CHECK(result == 0, "%s at depth %d: %d", calls[now].name, i, result);
            }
        }
    }
    DONE;
}
