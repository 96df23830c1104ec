// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 40
// A handler that was set with a return of the program's own, past libc, interrupts reads past libc again and again.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
static long call(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}
extern char own_restorer[];
__asm__(".globl own_restorer\nown_restorer: mov $15, %rax\nsyscall\n");
static volatile long ticks;
static void count(int signal) {
    ticks += signal == SIGALRM;
}
int main(void) {
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = {
        count, 0x04000000, own_restorer, 0}; // SA_RESTORER
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    size_t len = 48 << 20;
    int ends[2];
    char byte, *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < len; at += 4096)
        memory[at] = 5;
    if (pipe(ends) || call(SYS_rt_sigaction, SIGALRM, (long)&action, 0, 8) || setitimer(ITIMER_REAL, &often, NULL))
        return 2;
    for (int round = 0; round < 20000; round++) {
        long before = ticks, result = call(SYS_read, ends[0], (long)&byte, 1, 0);
        if (result != -EINTR || ticks <= before) {
            printf("FAIL round %d: %ld, ticks %ld %ld\n", round, result, before, ticks);
            return 1;
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    puts("ok");
    return 0;
}
