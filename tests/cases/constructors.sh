#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# What a library's constructor has done before main: two threads, one of which has all signals blocked, and makes system
# calls outside the C library; a signal stack with a handler of SIGBUS; a handler that blocks all signals; SIGBUS
# blocked.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > first.c <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <unistd.h>
char *volatile area;
volatile size_t area_bytes;
volatile int nr_done, nr_handled, is_on_stack;
volatile long sums[3];
static char stack[8 << 10];
static void on_fault(int number, siginfo_t *info, void *context) {
    nr_handled++;
    mmap(info->si_addr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    (void)number, (void)context;
}
static void on_signal(int number) {
    is_on_stack = (char *)&number > stack && (char *)&number < stack + sizeof stack;
    for (size_t at = 0; at < area_bytes; at += 4096)
        sums[2] += area[at];
}
static void work(int which) {
    while (!area)
        usleep(1000);
    long sum = 0, number = SYS_madvise, result;
    for (size_t at = 0; at < area_bytes; at += 4096)
        sum += area[at];
    sums[which] = sum;
    __atomic_add_fetch(&nr_done, 1, __ATOMIC_SEQ_CST);
    while (nr_done < 2)
        usleep(1000);
    if (which == 0) {
        __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(area), "S"(1l << 20), "d"(MADV_DONTNEED) : "rcx", "r11", "memory");
        nr_done = 3;
    }
    for (;;)
        pause();
}
static void *blocked(void *unused) {
    work(0);
    return unused;
}
static int plain(void *unused) {
    work(unused != NULL);
    return 0;
}
__attribute__((constructor)) static void first(void) {
    sigset_t all, before, bus;
    pthread_t thread;
    thrd_t other;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&own, NULL);
    sigaction(SIGBUS, &action, NULL);
    struct sigaction other_action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigfillset(&all);
    sigfillset(&other_action.sa_mask);
    sigaction(SIGUSR1, &other_action, NULL);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_create(&thread, NULL, blocked, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    thrd_create(&other, plain, stack);
    sigemptyset(&bus), sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &bus, NULL);
}
C
cat > main.c <<'C'
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
extern char *volatile area;
extern volatile size_t area_bytes;
extern volatile int nr_done, nr_handled, is_on_stack;
extern volatile long sums[3];
int main(void) {
    size_t len = 80ul << 20, rest = 0;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 3; round++)
        memset(memory, 1, len);
    area_bytes = len, area = memory;
    for (int turn = 0; nr_done < 3 && turn < 60000; turn++)
        usleep(1000);
    if (nr_done != 3 || sums[0] != (long)len / 4096 || sums[1] != sums[0])
        return printf("threads: %d, %ld, %ld\n", nr_done, sums[0], sums[1]), 1;
    for (size_t at = 0; at < 1 << 20; at++)
        rest += memory[at];
    raise(SIGUSR1);
    if (sums[2] != (long)(len / 4096 - 256))
        return printf("handler: %ld\n", sums[2]), 1;
    struct sigaction known;
    if (sigaction(SIGUSR1, NULL, &known) || !sigismember(&known.sa_mask, SIGBUS))
        return puts("the handler's mask"), 1;
    if (rest)
        return printf("%zu bytes of what was given back\n", rest), 1;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    if (!sigismember(&mask, SIGBUS))
        return puts("SIGBUS is not blocked"), 1;
    sigdelset(&mask, SIGBUS);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    char *beyond = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_create("empty", 0), 0);
    *(volatile char *)beyond = 1;
    if (nr_handled != 1 || !is_on_stack)
        return printf("handled %d, on the stack: %d\n", nr_handled, is_on_stack), 1;
    return 0;
}
C
gcc -shared -fPIC -O1 -o libfirst.so first.c -pthread
gcc -O1 -o main main.c -L. -lfirst -Wl,-rpath,"$PWD"
./main
echo ok
