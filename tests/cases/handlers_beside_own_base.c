// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 160M
/* A thread sets another FS base. Its handlers find that base, and it is still set once they have returned. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { LEN = 64 << 20, PAGE = 4096, HAS_INSTRUCTIONS = 1 << 1, SMALL = 8192 };

#define PLAIN __attribute__((target("fsgsbase"), optimize("no-stack-protector"), noinline))

static char other[2 * PAGE] __attribute__((aligned(4096)));
static volatile unsigned long own, foreign;
static volatile int nr_wrong, nr_calls[65];
static int file;

/* With the thread's own base, handlers mend what raised the signal. The timer's may come before the other one is set. */
PLAIN static void on_signal(int signal, siginfo_t *about, void *context) {
    (void)context;
    unsigned long found = _readfsbase_u64();
    nr_wrong += found != foreign && !(signal == SIGALRM && found == own);
    nr_calls[signal] += found == foreign;
    _writefsbase_u64(own);
    char *page = (char *)((unsigned long)about->si_addr & -(long)PAGE);
    if (signal == SIGSEGV && mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) _exit(2);
    if (signal == SIGBUS && ftruncate(file, 2 * PAGE) != 0) _exit(3);
    _writefsbase_u64(found);
}

PLAIN static long read_all(volatile char *bytes, volatile char *closed, volatile char *behind) {
    long sum = 0;
    _writefsbase_u64(foreign);
    for (size_t at = 0; at < LEN; at += PAGE) sum += bytes[at];
    *closed = 1;
    sum += *behind;
    while (nr_calls[SIGALRM] == 0) sum += 0 * bytes[(size_t)nr_calls[0] * PAGE];
    for (size_t at = 0; at < LEN; at += PAGE) sum += bytes[at];
    int is_kept = _readfsbase_u64() == foreign;
    _writefsbase_u64(own);
    return is_kept ? sum : -1;
}

PLAIN int main(void) {
    if (!(getauxval(AT_HWCAP2) & HAS_INSTRUCTIONS)) return puts("no instruction sets it here\nok"), 0;
    char name[] = "/tmp/folioswap-case-XXXXXX";
    file = mkstemp(name);
    unlink(name);
    char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 1, LEN);
    own = _readfsbase_u64(), foreign = (unsigned long)other + PAGE;
    stack_t stack = {.ss_sp = malloc(SMALL), .ss_size = SMALL};
    sigaltstack(&stack, NULL);
    for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};
        sigaddset(&action.sa_mask, SIGALRM); /* not while another handler has set the thread's own base */
        int signals[] = {SIGSEGV, SIGBUS, SIGALRM};
        for (int at = 0; at < 3; at++) sigaction(signals[at], &action, NULL);
        memset((void *)nr_calls, 0, sizeof nr_calls);
        if (ftruncate(file, PAGE) != 0) return puts("no file"), 1;
        char *closed = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *behind = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        struct itimerval often = {.it_value = {.tv_usec = 2000}, .it_interval = {.tv_usec = 2000}}, never = {0};
        setitimer(ITIMER_REAL, &often, NULL);
        long sum = read_all(bytes, closed, behind + PAGE);
        setitimer(ITIMER_REAL, &never, NULL);
        if (sum != 2 * LEN / PAGE) return printf("wrong: %ld\n", sum), 1;
        if (nr_calls[SIGSEGV] != 1 || nr_calls[SIGBUS] != 1) return puts("handlers not called once"), 1;
        if (nr_wrong) return printf("%d handlers with another base\n", nr_wrong), 1;
    }
    puts("ok");
    return 0;
}
