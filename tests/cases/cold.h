// Memory that is not in RAM: for cases about calls that get pointers to it.
#include "check.h"
#include <ucontext.h>
static char *beside;
// More memory than the budget, so that the engine runs.
__attribute__((unused)) static void start_engine(void) {
    beside = malloc(150 * MIB);
    for (size_t at = 0; at < 150 * MIB; at += PAGE) beside[at] = 1;
}
// Uses it again, so that the rest leaves RAM.
__attribute__((unused)) static void use_others(void) {
    for (size_t at = 0; at < 60 * MIB; at += PAGE) beside[at]++;
}
// Sends the blocks of a range out of RAM.
__attribute__((unused)) static void send_out(void *range, size_t len) {
    uintptr_t block = 2 * MIB, start = (uintptr_t)range & -block;
    uintptr_t end = ((uintptr_t)range + len + block - 1) & -block;
    for (int i = 0; i < 2; i++) madvise((void *)start, end - start, MADV_PAGEOUT);
}
// Runs a function as a coroutine on this stack.
__attribute__((unused)) static void on_coroutine(void *stack, size_t len, void (*run)(void)) {
    static ucontext_t here, coroutine;
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack, coroutine.uc_stack.ss_size = len, coroutine.uc_link = &here;
    makecontext(&coroutine, run, 0);
    swapcontext(&here, &coroutine);
}
