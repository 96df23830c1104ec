// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Handlers run on the signal stack that the program has set, a small one too: their frames are there, they can be
// nested, page memory in, be left by siglongjmp, and return.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define BYTES (64ul << 20)
#define STACK_BYTES 8192

static unsigned char *memory;
static __thread char *stack;
static __thread int nr_handled, nr_nested;
static __thread sigjmp_buf back;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static int is_on_stack(const void *at) { return (const char *)at >= stack && (const char *)at < stack + STACK_BYTES; }

static void on_nested(int number) {
    int here = number;
    check(is_on_stack(&here), "the nested handler's frame is on the stack");
    nr_nested++;
}

static void on_signal(int number, siginfo_t *about, void *context) {
    int here = number;
    ucontext_t *interrupted = context;
    check(is_on_stack(&here) && is_on_stack(about) && is_on_stack(context), "the frame is on the stack");
    check(about->si_signo == number, "which signal");
    check(!is_on_stack((void *)interrupted->uc_mcontext.gregs[REG_RSP]), "what was interrupted");
    stack_t now, other = {.ss_sp = memory, .ss_size = 65536};
    check(sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_ONSTACK, "on the stack");
    check(now.ss_sp == stack && now.ss_size == STACK_BYTES, "which stack");
    check(sigaltstack(&other, NULL) == -1 && errno == EPERM, "the stack in use cannot be changed");
    if (about->si_code <= 0) raise(SIGUSR2);
    for (size_t at = (size_t)nr_handled % 128 * 4096; at < BYTES; at += 128 * 4096) memory[at]++;
    nr_handled++;
    if (number == SIGSEGV) siglongjmp(back, 1);
}

static int overflow(int depth) {
    volatile char room[4096];
    memset((char *)room, depth, sizeof room);
    return overflow(depth + 1) + room[depth % 4096];
}

static void *use(void *memory_of_stack) {
    stack = memory_of_stack;
    stack_t wanted = {.ss_sp = stack, .ss_size = STACK_BYTES}, before, now;
    check(sigaltstack(&wanted, &before) == 0 && before.ss_flags == SS_DISABLE, "no stack before");
    check(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack && now.ss_size == STACK_BYTES && now.ss_flags == 0, "set");
    double sum = 1;
    for (int round = 0; round < 64; round++) {
        double part = sum / 3;
        raise(SIGUSR1);
        sum = part * 3 + 1;
    }
    check(nr_handled == 64 && nr_nested == 64 && sum == 65, "handled, and went on");
    if (sigsetjmp(back, 1) == 0) *(volatile char *)8 = 1;
    if (sigsetjmp(back, 1) == 0) overflow(1);
    check(nr_handled == 66, "left by siglongjmp, and a full stack");
    raise(SIGUSR1);
    wanted.ss_flags = SS_DISABLE | 4096;
    check(sigaltstack(&wanted, NULL) == -1 && errno == EINVAL, "a flag that there is not");
    wanted.ss_flags = SS_DISABLE;
    check(sigaltstack(&wanted, &before) == 0 && before.ss_sp == stack && before.ss_flags == 0, "taken away");
    return NULL;
}

int main(void) {
    memory = malloc(BYTES + 2 * STACK_BYTES);
    memset(memory, 1, BYTES);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK}, known;
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    check(sigaction(SIGUSR1, &action, &known) == 0 && known.sa_sigaction == on_signal, "which handler");
    struct sigaction nested = {.sa_handler = on_nested, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &nested, NULL);
    check(signal(SIGUSR2, SIG_IGN) == on_nested, "which handler, by signal");
    sigaction(SIGUSR2, &nested, NULL);
    use(memory + BYTES); /* a stack in managed memory */
    static char plain[STACK_BYTES];
    pthread_t thread;
    pthread_create(&thread, NULL, use, plain);
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
