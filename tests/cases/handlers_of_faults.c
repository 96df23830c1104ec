// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 160M
// The program's own handlers of SIGBUS and SIGSYS: one that needs half a MiB of stack, one that goes on on another,
// touches memory there that is out, and comes back, one on a signal stack of the program's, and one that blocks all
// signals in its context.
#include "check.h"
#include <ucontext.h>
enum { DEEP, SWITCHES, ON_STACK, BLOCKS, NR_KINDS };
static char *volatile cut, *memory;
static volatile int kind, nr_handled, is_on_stack;
static char own_stack[64 << 10], other_stack[64 << 10];
static ucontext_t here, there;
static long nr_wrong_pages;
static void look(void) {
    nr_wrong_pages = wrong_pages(memory, 96 * MIB);
    swapcontext(&there, &here);
}
static __attribute__((noinline)) int deep(void) {
    volatile char large[512 << 10];
    for (size_t at = 0; at < sizeof large; at += PAGE) large[at] = 1;
    return large[PAGE];
}
static void on_signal(int number, siginfo_t *info, void *context) {
    volatile long kept[2] = {1, 2};
    nr_handled++;
    if (number == SIGBUS) mmap(info->si_addr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (kind == DEEP) deep();
    if (kind == SWITCHES) {
        getcontext(&there);
        there.uc_stack.ss_sp = other_stack, there.uc_stack.ss_size = sizeof other_stack, there.uc_link = NULL;
        makecontext(&there, look, 0);
        swapcontext(&here, &there);
    }
    is_on_stack = (char *)kept >= own_stack && (char *)kept < own_stack + sizeof own_stack;
    if (kind == BLOCKS) sigfillset(&((ucontext_t *)context)->uc_sigmask);
    CHECK(kept[0] == 1 && kept[1] == 2, "what was on the stack");
}
int main(void) {
    memory = anonymous(96 * MIB);
    fill(memory, 96 * MIB);
    stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
    sigaltstack(&stack, NULL);
    FILE *file = tmpfile();
    for (int i = 0; i < 2 * NR_KINDS; i++) {
        int number = i % 2 ? SIGSYS : SIGBUS;
        sigset_t blocked;
        kind = i / 2, nr_handled = 0;
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | (kind == ON_STACK ? SA_ONSTACK : 0)};
        sigaction(number, &action, NULL);
        cut = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        volatile long before = i;
        if (number == SIGBUS) *cut = 7;
        else raise(SIGSYS);
        CHECK(nr_handled == 1 && before == i && (number == SIGSYS || *cut == 7), "signal %d, kind %d", number, kind);
        CHECK(is_on_stack == (kind == ON_STACK), "the stack of signal %d", number);
        sigprocmask(SIG_SETMASK, NULL, &blocked);
        CHECK(sigismember(&blocked, SIGUSR1) == (kind == BLOCKS) && sigismember(&blocked, number) == (kind == BLOCKS),
              "signal %d, kind %d: what is blocked", number, kind);
        sigemptyset(&blocked);
        sigprocmask(SIG_SETMASK, &blocked, NULL);
        CHECK(nr_wrong_pages == 0 && wrong_pages(memory, 96 * MIB) == 0, "signal %d, kind %d: the memory", number, kind);
        long result, call = SYS_getpid;
        __asm__ volatile("syscall" : "=a"(result) : "a"(call) : "rcx", "r11", "memory");
        CHECK(result == getpid(), "a call outside the C library: %ld", result);
        munmap(cut, PAGE);
    }
    DONE;
}
