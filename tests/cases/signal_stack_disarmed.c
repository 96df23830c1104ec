// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// ARGS: large
// ARGS: call
// Handlers on a signal stack with SS_AUTODISARM switch to a coroutine whose stack is not in RAM. Meanwhile no stack is
// set; the handler's return sets it again. Handlers of other signals, and one that sets a stack itself.
#include "check.h"
#include <ucontext.h>
#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

enum { STACK = 1 << 20, BYTES = 64 << 20, DEEP = 50 };
static ucontext_t back, own;
static char *others, *wanted, *again;
static size_t len = 16 << 10;
static int past_libc;
static volatile int nr_run, nr_nested, nr_afterwards;

static int set(const stack_t *stack, stack_t *before) {
#if defined(__x86_64__)
    if (past_libc) {
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_sigaltstack), "D"(stack), "S"(before) : "rcx", "r11", "memory");
        errno = result < 0 ? -result : errno;
        return result < 0 ? -1 : 0;
    }
#endif
    return sigaltstack(stack, before);
}

static int is_on(const char *stack, const void *at) { return (size_t)((const char *)at - stack) < len; }

static void use_other_memory(void) {
    for (size_t at = 0; at < BYTES; at += PAGE) others[at]++;
}

static int deep(int depth) {
    volatile char room[3000];
    memset((char *)room, depth, sizeof room);
    return depth ? deep(depth - 1) + room[5] : 0;
}

static void nested(int number, siginfo_t *about, void *context) {
    (void)about;
    CHECK(number == SIGUSR2 && !is_on(wanted, &number), "a nested handler begins on the stack that was set");
    stack_t *told = &((ucontext_t *)context)->uc_stack;
    CHECK(told->ss_flags == SS_DISABLE, "the nested one finds %p %x", told->ss_sp, told->ss_flags);
    nr_nested++;
}

static void afterwards(int number) {
    CHECK(is_on(again, &number), "it is not on the stack that the other handler has set");
    nr_afterwards++;
}

static void run(void) {
    deep(DEEP);
    raise(SIGUSR2);
    nr_run++;
    setcontext(&back);
}

static void on_signal(int number, siginfo_t *about, void *context) {
    (void)about;
    CHECK(is_on(wanted, &number), "the handler is not on the program's stack");
    stack_t now, *told = &((ucontext_t *)context)->uc_stack;
    CHECK(told->ss_sp == wanted && told->ss_size == len && told->ss_flags == (int)SS_AUTODISARM, "the context has %p %x",
          told->ss_sp, told->ss_flags);
    CHECK(set(NULL, &now) == 0 && now.ss_flags == SS_DISABLE, "in the handler: %p %x", now.ss_sp, now.ss_flags);
    use_other_memory();
    swapcontext(&back, &own);
    stack_t other = { .ss_sp = again, .ss_size = len };
    CHECK(set(&other, NULL) == 0, "another stack in the handler");
    raise(SIGURG);
}

int main(int argc, char **argv) {
    if (argc > 1) len = strcmp(argv[1], "large") ? len : 128 << 10, past_libc = !strcmp(argv[1], "call");
    others = anonymous(BYTES);
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_ONSTACK | SA_SIGINFO };
    sigaction(SIGUSR1, &action, NULL);
    action.sa_sigaction = nested;
    sigaction(SIGUSR2, &action, NULL);
    action.sa_handler = afterwards, action.sa_flags = SA_ONSTACK;
    sigaction(SIGURG, &action, NULL);
    for (int round = 0; round < 4; round++) {
        stack_t now;
        char *stack = anonymous(STACK);
        wanted = anonymous(len), again = anonymous(len);
        memset(stack, 1, STACK);
        CHECK(set(&(stack_t){ .ss_sp = wanted, .ss_size = len, .ss_flags = (int)SS_AUTODISARM }, NULL) == 0, "set");
        CHECK(set(NULL, &now) == 0 && now.ss_sp == wanted && now.ss_size == len && now.ss_flags == (int)SS_AUTODISARM,
              "before: %p %x", now.ss_sp, now.ss_flags);
        getcontext(&own);
        own.uc_stack.ss_sp = stack, own.uc_stack.ss_size = STACK, own.uc_link = NULL;
        makecontext(&own, run, 0);
        use_other_memory();
        raise(SIGUSR1);
        CHECK(set(NULL, &now) == 0 && now.ss_sp == wanted && now.ss_size == len && now.ss_flags == (int)SS_AUTODISARM,
              "afterwards: %p %x", now.ss_sp, now.ss_flags);
    }
    CHECK(nr_run == 4 && nr_nested == 4 && nr_afterwards == 4, "%d %d %d ran", nr_run, nr_nested, nr_afterwards);
    DONE;
}
