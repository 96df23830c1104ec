// EXPECT: exit 0, last line "ok"
// A program with the flag that forbids unaligned access (EFLAGS.AC): as it touches memory that is not in RAM, makes a
// system call of its own, and is interrupted by a signal. The library's code, which runs then, may access unaligned.
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/time.h>

#define NR_BYTES (200ul << 20)
#define FORBID "pushfq; orl $0x40000, (%%rsp); popfq;"
#define PERMIT "pushfq; andl $0xfffbffff, (%%rsp); popfq"

static volatile int nr_signals;

static void handle(int signal) {
    nr_signals += signal == SIGALRM;
}

int main(void) {
    char *memory = mmap(NULL, NR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < NR_BYTES; at += 4096)
        *(size_t *)(memory + at) = at;
    for (size_t at = 0; at < NR_BYTES; at += 4096) {
        size_t got;
        __asm__ volatile("sub $128, %%rsp;" FORBID "movq (%1), %0;" PERMIT "; add $128, %%rsp"
                         : "=&r"(got) : "r"(memory + at) : "memory", "cc");
        if (got != at)
            return printf("%zu at %zu\n", got, at), 1;
    }
    long end[2] = {0}, result = 96; // gettimeofday
    __asm__ volatile("sub $128, %%rsp;" FORBID "syscall;" PERMIT "; add $128, %%rsp"
                     : "+a"(result) : "D"(end), "S"(0L) : "rcx", "r11", "memory", "cc");
    if (result || !end[0])
        return printf("gettimeofday: %ld\n", result), 1;
    signal(SIGALRM, handle);
    struct itimerval soon = {.it_value = {.tv_usec = 10000}};
    setitimer(ITIMER_REAL, &soon, NULL);
    __asm__ volatile("sub $128, %%rsp;" FORBID "1: cmpl $0, %0; je 1b;" PERMIT "; add $128, %%rsp"
                     : : "m"(nr_signals) : "memory", "cc");
    printf("ok\n");
    return 0;
}
