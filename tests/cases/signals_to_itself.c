// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* A thread sends itself each signal by a system call of its own: the handler finds it behind that call. */
#include "cold.h"
#include <ucontext.h>
static volatile unsigned long rip, rsp, rax;
extern char behind[];

static void handle(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)about;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    rip = registers[REG_RIP], rsp = registers[REG_RSP], rax = registers[REG_RAX];
}

int main(void) {
    start_engine();
    stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&own, NULL);
    for (int signal = 1; signal < 65; signal++) {
        // SIGBUS may be swap's, as a fault: its handler runs at once.
        if (signal == SIGKILL || signal == SIGSTOP || signal == 32 || signal == 33 || signal == SIGSYS || signal == SIGBUS) continue;
        struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigaction(signal, &action, NULL);
        rip = rsp = 0, rax = 1;
        unsigned long here;
        long result, process = getpid(), thread = syscall(SYS_gettid), number = signal;
        __asm__ volatile("mov %%rsp, %1\nsyscall\n.globl behind\nbehind:"
                         : "=a"(result), "=&r"(here)
                         : "a"(SYS_tgkill), "D"(process), "S"(thread), "d"(number)
                         : "rcx", "r11", "memory");
        CHECK(result == 0 && rip == (unsigned long)behind && rsp == here && rax == 0, "signal %d", signal);
    }
    DONE;
}
