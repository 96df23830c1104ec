// BUDGETS: 24M
// LIMIT_S: 30
// A handler that interrupts a system call made by an inline `syscall` instruction runs where the kernel would have it
// run, with the program's own registers, and the call ends as in the kernel.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static long call(long number, long a, long b, long c, long d) {
    register long r10 asm("r10") = d;
    long result;
    asm volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static volatile int nr_handled, on_stack;
static char *stack_start;
static const size_t stack_len = 1 << 20;
static size_t locals_len;
static int ends[2];

static void set_handler(int number, void *handler, int flags) {
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = flags };
    check(sigaction(number, &action, NULL) == 0, "sigaction");
}

static void send(int number) { check(call(SYS_tgkill, getpid(), gettid(), number, 0) == 0, "tgkill"); }

// Waits until a process is in read(2). Its number is 0.
static void wait_for_read(pid_t process) {
    char path[64], text[8] = "";
    snprintf(path, sizeof path, "/proc/%d/syscall", process);
    for (int turn = 0; turn < 20000 && strncmp(text, "0 0x", 4); turn++) {
        const int about = open(path, O_RDONLY);
        if (about < 0 || read(about, text, sizeof text - 1) < 0) _exit(2);
        close(about);
        usleep(1000);
    }
}

// Sends a signal from another process, which also writes a byte.
static pid_t send_soon(int number, int writes) {
    const pid_t parent = getpid(), child = fork();
    if (child) return child;
    wait_for_read(parent);
    kill(parent, number);
    usleep(30000);
    if (writes && write(ends[1], "x", 1) != 1) _exit(1);
    _exit(0);
}

static void on_large(int number) {
    (void)number;
    volatile char *locals = __builtin_alloca(locals_len);
    for (size_t at = 0; at < locals_len; at += 1000) locals[at] = (char)at;
    on_stack = (char *)locals >= stack_start && (char *)locals < stack_start + stack_len;
    nr_handled++;
}

static void *in_thread(void *unused) {
    (void)unused;
    send(SIGUSR1);
    return NULL;
}

// Handlers with and without a signal stack, small and large, and their room.
static void test_stacks(void) {
    pthread_t thread;
    char byte;
    stack_start = mmap(NULL, stack_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
        const size_t sizes[] = { 0, 16 << 10, 1 << 20 };
        for (int at = 0; at < 3; at++) {
            stack_t stack = { .ss_sp = stack_start, .ss_size = sizes[at], .ss_flags = at ? 0 : SS_DISABLE };
            check(sigaltstack(&stack, NULL) == 0, "sigaltstack");
            const int is_on = flags && at;
            locals_len = is_on ? sizes[at] / 2 : 500 << 10;
            set_handler(SIGUSR1, on_large, flags);
            nr_handled = 0;
            send(SIGUSR1);
            check(nr_handled == 1 && on_stack == is_on, "a handler in a call that does not sleep");
            const pid_t child = send_soon(SIGUSR1, 0);
            check(call(SYS_read, ends[0], (long)&byte, 1, 0) == -EINTR, "a read is interrupted");
            check(nr_handled == 2 && on_stack == is_on, "a handler in a read");
            check(waitpid(child, NULL, 0) == child, "waitpid");
        }
        pthread_create(&thread, NULL, in_thread, NULL);
        pthread_join(thread, NULL);
        check(nr_handled == 3, "a handler in a thread");
    }
}

extern char behind_call[];
static volatile long seen_at, seen_result, seen_value;

static void on_context(int number, siginfo_t *about, void *given) {
    ucontext_t *context = given;
    (void)number;
    seen_at = context->uc_mcontext.gregs[REG_RIP];
    seen_result = context->uc_mcontext.gregs[REG_RAX];
    seen_value = about->si_code == SI_QUEUE ? about->si_value.sival_int : -1;
    context->uc_mcontext.gregs[REG_R12] = 1234;
    sigaddset(&context->uc_sigmask, SIGUSR2);
    nr_handled++;
}

// The context is the program's: what it says, and what the handler changes in it.
static void test_context(void) {
    sigset_t mask;
    siginfo_t about = { .si_signo = SIGUSR1, .si_code = SI_QUEUE, .si_value.sival_int = 77 };
    set_handler(SIGUSR1, on_context, SA_SIGINFO);
    const long process = getpid(), thread = gettid();
    register long r10 asm("r10") = (long)&about;
    register long r12 asm("r12") = 1;
    long result;
    asm volatile("syscall\n.globl behind_call\nbehind_call:"
                 : "=a"(result), "+r"(r12)
                 : "0"(SYS_rt_tgsigqueueinfo), "D"(process), "S"(thread), "d"((long)SIGUSR1), "r"(r10)
                 : "rcx", "r11", "memory");
    check(result == 0 && seen_at == (long)behind_call && seen_result == 0, "the handler sees the end of the call");
    check(seen_value == 77, "what was queued");
    check(r12 == 1234, "a register that the handler has set");
    sigprocmask(SIG_BLOCK, NULL, &mask);
    check(sigismember(&mask, SIGUSR2), "a signal that the handler has blocked");
    sigemptyset(&mask);
    sigprocmask(SIG_SETMASK, &mask, NULL);
}

// A read that goes on after the handler; a handler that is used once; one whose signal arrives again in it.
static void on_again(int number) {
    if (++nr_handled < 4) send(number);
}

static void test_flags(void) {
    char byte = 0;
    locals_len = 100 << 10;
    set_handler(SIGUSR1, on_large, SA_RESTART);
    nr_handled = 0;
    pid_t child = send_soon(SIGUSR1, 1);
    check(call(SYS_read, ends[0], (long)&byte, 1, 0) == 1 && byte == 'x' && nr_handled == 1, "a read that goes on");
    check(waitpid(child, NULL, 0) == child, "waitpid");

    set_handler(SIGUSR1, on_large, SA_RESETHAND);
    send(SIGUSR1);
    struct sigaction now;
    sigaction(SIGUSR1, NULL, &now);
    check(nr_handled == 2 && now.sa_handler == SIG_DFL, "a handler that is used once");

    set_handler(SIGUSR1, on_again, SA_NODEFER);
    nr_handled = 0;
    send(SIGUSR1);
    check(nr_handled == 4, "a handler in itself");

    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    set_handler(SIGUSR1, on_large, 0);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    nr_handled = 0;
    send(SIGUSR1);
    check(nr_handled == 0, "blocked");
    locals_len = 1000;
    check(call(SYS_rt_sigsuspend, (long)&none, 8, 0, 0) == -EINTR && nr_handled == 1, "sigsuspend");
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static ucontext_t first, second;
static volatile int is_second, nr_ended, nr_second;
static volatile long wrong;

static void on_switch(int number) {
    (void)number;
    is_second = !is_second;
    swapcontext(is_second ? &first : &second, is_second ? &second : &first);
}

static long sleep_in_read(void) {
    char byte;
    return call(SYS_read, ends[0], (long)&byte, 1, 0);
}

static void be_second(void) {
    for (;;) {
        const long result = sleep_in_read();
        if (result != -EINTR) wrong = result;
        nr_second++;
    }
}

// Two coroutines that a timer switches, each in a read.
static void test_coroutines(void) {
    static char stack[64 << 10];
    struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { 0 };
    set_handler(SIGALRM, on_switch, 0);
    getcontext(&second);
    second.uc_stack.ss_sp = stack;
    second.uc_stack.ss_size = sizeof stack;
    makecontext(&second, be_second, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 100; round++) {
        const long result = sleep_in_read();
        if (result != -EINTR) wrong = result;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    check(wrong == 0 && nr_second > 50, "coroutines");
}

static volatile long nr_ticks;
static void on_tick(int number) {
    (void)number;
    nr_ticks++;
}

// No tick is lost, and no call that does not sleep fails, wherever in it the tick comes.
static void test_often(void) {
    struct itimerval often = { { 0, 50 }, { 0, 50 } }, never = { 0 };
    const long parent = getppid();
    int pair[2];
    char byte = 0;
    check(pipe(pair) == 0, "pipe");
    set_handler(SIGALRM, on_tick, SA_RESTART);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 100000; round++) {
        check(call(SYS_getppid, 0, 0, 0, 0) == parent, "getppid");
        check(call(SYS_write, pair[1], (long)"y", 1, 0) == 1, "write");
        check(call(SYS_read, pair[0], (long)&byte, 1, 0) == 1 && byte == 'y', "read");
    }
    // Each of these sleeps until a tick comes: none may come just before, and be missed.
    set_handler(SIGALRM, on_tick, 0);
    for (int round = 0; round < 2000; round++) {
        const long before = nr_ticks, result = call(SYS_read, ends[0], (long)&byte, 1, 0);
        check(result == -EINTR && nr_ticks > before, "a read ends with its tick");
    }
    setitimer(ITIMER_REAL, &never, NULL);
}

int main(void) {
    const size_t len = 48 << 20;
    volatile char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < len; at += 4096) memory[at] = 5;
    check(pipe(ends) == 0, "pipe");
    test_context();
    test_stacks();
    test_flags();
    test_coroutines();
    test_often();
    for (size_t at = 0; at < len; at += 4096) check(memory[at] == 5, "memory");
    return 0;
}
