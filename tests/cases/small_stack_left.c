// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// ARGS: 9000
// ARGS: 13504
// ARGS: 30000
// A handler on a small signal stack uses more memory than the budget, so that its own stack leaves RAM before it
// returns. What it has interrupted goes on as it was, registers of the FPU included.
#include "cold.h"
static volatile int nr_handled;
static void use_much(void) {
    char *memory = anonymous(44 * MIB);
    fill(memory, 44 * MIB);
    munmap(memory, 44 * MIB);
}
static void handle(int signal) {
    volatile char local[256];
    (void)signal;
    for (int i = 0; i < 256; i++) local[i] = i;
    use_much();
    for (int i = 0; i < 256; i++) CHECK(local[i] == (char)i, "local %d", i);
    nr_handled++;
}
int main(int count, char **words) {
    size_t len = count > 1 ? atol(words[1]) : 8192;
    start_engine();
    stack_t set = {.ss_sp = malloc(len), .ss_size = len};
    memset(set.ss_sp, 1, len);
    use_much();
    CHECK(sigaltstack(&set, 0) == 0, "sigaltstack");
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < 8; i++) {
        long result = SYS_tkill, process = getpid();
        register double x __asm__("xmm7") = 1.5 + i;
        __asm__ volatile("syscall" : "+a"(result), "+x"(x) : "D"(process), "S"((long)SIGUSR1)
                         : "rcx", "r11", "memory");
        CHECK(x == 1.5 + i, "xmm7 is %f", x);
    }
    CHECK(nr_handled == 8, "%d handled", nr_handled);
    DONE;
}
