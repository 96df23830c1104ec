// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// LIMIT_S: 60
// CFLAGS: -Wno-deprecated-declarations
// Handlers without SA_ONSTACK run on the stack of what they interrupt: a coroutine's, most of which is not in RAM. They
// nest, they fault, they leave by siglongjmp, and what the program has set reads back as it was set.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define NR_ROUTINES 32
#define SIZE (64 * MIB)

static ucontext_t origin, routines[NR_ROUTINES];
static char *stacks, *memory;
static volatile long nr_ticks, nr_left, nr_second, is_second_first;
static sigjmp_buf back;
static volatile int may_leave;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static int is_on_routine(const void *at) { return (char *)at >= stacks && (char *)at < stacks + NR_ROUTINES * MIB; }

static void on_tick(int number, siginfo_t *about, void *context) {
    volatile char local[3000];
    ucontext_t *interrupted = context;
    uintptr_t pointer = interrupted->uc_mcontext.gregs[REG_RSP];
    check(about->si_signo == number, "the description");
    check(pointer - (uintptr_t)local < 20000, "the handler runs below what it interrupts");
    memset((void *)local, number, sizeof local);
    check(*(volatile char *)&memory[(nr_ticks * 7919 * 4096) % SIZE] <= 5, "memory, in a handler");
    nr_ticks += local[77] == number;
    if (may_leave && number == SIGALRM && is_on_routine((void *)local)) {
        may_leave = 0;
        nr_left++;
        siglongjmp(back, 1);
    }
}

static long descend(int depth) {
    volatile char local[1500];
    memset((void *)local, depth, sizeof local);
    if (depth > 0) return descend(depth - 1) + (local[5] != depth);
    volatile uint64_t sum = 1;
    for (int i = 0; i < 100000; i++) sum = sum * 6364136223846793005ull + 1;
    return sum == 0;
}

static void work(int number) {
    for (int round = 0; round < 5; round++) {
        check(descend(20 * (round + 1)) == 0, "what is on the stack");
        for (size_t at = 0; at < 2 * MIB; at += 4096) memory[number * 2 * MIB + at]++;
        if (round == 2 && sigsetjmp(back, 1) == 0) {
            may_leave = 1;
            while (may_leave) descend(10);
        }
        swapcontext(&routines[number], &origin);
    }
}

static void on_first(int number) { check(number == SIGUSR1, "the first"); }

static void on_second(int number) {
    volatile char local[100000]; // more than a signal stack
    memset((void *)local, number, sizeof local);
    nr_second++;
}

// Two signals that come at once: the frame of one is made on that of the other. Then one that sigsuspend lets through.
static void *send_at_once(void *nothing) {
    sigset_t both, none, before;
    sigemptyset(&none);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    for (int round = 0; round < 200; round++) {
        pthread_sigmask(SIG_BLOCK, &both, &before);
        pthread_kill(pthread_self(), SIGUSR1);
        pthread_kill(pthread_self(), SIGUSR2);
        long so_far = nr_second;
        if (round & 1) sigsuspend(&none);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        check(nr_second == so_far + 1, "both were handled");
    }
    return nothing;
}

static void read_back(void) {
    struct sigaction action = { .sa_handler = on_first, .sa_flags = SA_RESTART | SA_NODEFER }, known;
    sigaddset(&action.sa_mask, SIGTERM);
    check(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGUSR1, NULL, &known) == 0, "sigaction");
    check(known.sa_handler == on_first && (known.sa_flags & ~0x04000000) == action.sa_flags, "handler and flags");
    check(sigismember(&known.sa_mask, SIGTERM) && !sigismember(&known.sa_mask, SIGHUP), "mask");
    check(signal(SIGUSR1, on_second) == on_first && signal(SIGUSR1, on_first) == on_second, "signal");
    check(sigaction(SIGUSR1, NULL, &known) == 0 && !(known.sa_flags & SA_ONSTACK), "flags of signal");
    check(siginterrupt(SIGUSR1, 1) == 0 && signal(SIGUSR1, on_first) == on_first, "siginterrupt");
    check(sigset(SIGUSR1, SIG_HOLD) == on_first && sigset(SIGUSR1, on_first) == SIG_HOLD, "sigset");
    action.sa_flags |= SA_ONSTACK;
    check(sigaction(SIGUSR2, &action, NULL) == 0 && sigaction(SIGUSR2, NULL, &known) == 0, "sigaction");
    check(known.sa_flags & SA_ONSTACK, "the flag");
    check(signal(SIGUSR2, on_second) == on_first && signal(SIGUSR2, SIG_IGN) == on_second, "signal");
    check(signal(SIGUSR2, on_second) == SIG_IGN, "signal");
    raise(SIGUSR1);
}

int main(void) {
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stacks = mmap(NULL, NR_ROUTINES * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = { .sa_sigaction = on_tick, .sa_flags = SA_RESTART | SA_SIGINFO };
    sigaction(SIGALRM, &action, NULL);
    action.sa_flags |= SA_NODEFER;
    sigaction(SIGVTALRM, &action, NULL);
    for (int number = 0; number < NR_ROUTINES; number++) {
        getcontext(&routines[number]);
        routines[number].uc_stack.ss_sp = stacks + number * MIB;
        routines[number].uc_stack.ss_size = MIB;
        routines[number].uc_link = &origin;
        makecontext(&routines[number], (void (*)(void))work, 1, number);
    }
    struct itimerval often = { { 0, 700 }, { 0, 700 } }, oftener = { { 0, 900 }, { 0, 900 } }, never = { 0 };
    setitimer(ITIMER_REAL, &often, NULL);
    setitimer(ITIMER_VIRTUAL, &oftener, NULL);
    for (int round = 0; round < 6; round++)
        for (int number = 0; number < NR_ROUTINES; number++) swapcontext(&origin, &routines[number]);
    setitimer(ITIMER_REAL, &never, NULL);
    setitimer(ITIMER_VIRTUAL, &never, NULL);
    for (size_t at = 0; at < SIZE; at += 4096) check(memory[at] == 5, "memory");
    check(nr_ticks > 10 && nr_left == NR_ROUTINES, "ticks");
    read_back();
    pthread_t thread;
    pthread_create(&thread, NULL, send_at_once, NULL);
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
