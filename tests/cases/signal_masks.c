// BUDGETS: 24M
// LIMIT_S: 30
// CFLAGS: -Wno-deprecated-declarations
// Every signal can be blocked, is seen to be so, stays pending, and goes to who waits for it: SIGBUS and SIGSYS too.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t nr_handled[65];

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void on_signal(int number) { nr_handled[number]++; }

static int is_blocked(int number) {
    sigset_t now;
    check(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0, "pthread_sigmask");
    return sigismember(&now, number);
}

static int is_pending(int number) {
    sigset_t set;
    check(sigpending(&set) == 0, "sigpending");
    return sigismember(&set, number);
}

static int plain_thread(void *number) {
    check(is_blocked(*(int *)number), "a new thread has its creator's mask");
    return 77;
}

static void *wait_for(void *number) {
    sigset_t set;
    int got = 0;
    sigemptyset(&set);
    sigaddset(&set, *(int *)number);
    check(sigwait(&set, &got) == 0, "sigwait");
    check(got == *(int *)number, "which signal sigwait returns");
    return NULL;
}

static void block_one(int number) {
    sigset_t set, before;
    struct sigaction action = { .sa_handler = on_signal };
    sigemptyset(&set);
    sigaddset(&set, number);
    check(sigaction(number, &action, NULL) == 0, "sigaction");
    check(sigprocmask(SIG_BLOCK, &set, &before) == 0 && !sigismember(&before, number), "not blocked before");
    check(is_blocked(number), "blocked");

    unsigned long raw = 0;
    check(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &raw, 8) == 0 && raw >> (number - 1) & 1, "blocked, by number");

    raise(number);
    check(nr_handled[number] == 0 && is_pending(number), "pending for the thread");
    struct timespec limit = { 1, 0 };
    siginfo_t about;
    check(sigtimedwait(&set, &about, &limit) == number, "sigtimedwait takes it");
    check(about.si_signo == number && about.si_code <= 0 && about.si_pid == getpid(), "who sent it");
    check(!is_pending(number), "taken");

    kill(getpid(), number);
    check(nr_handled[number] == 0 && is_pending(number), "pending for the process");
    thrd_t thread;
    int result = 0;
    check(thrd_create(&thread, plain_thread, &number) == thrd_success, "thrd_create");
    check(thrd_join(thread, &result) == thrd_success && result == 77, "thrd_join");
    check(sigprocmask(SIG_SETMASK, &before, NULL) == 0 && nr_handled[number] == 1, "handled when it is unblocked");
    check(!is_blocked(number) && !is_pending(number), "nothing is left");

    check(sighold(number) == 0 && is_blocked(number), "sighold");
    pthread_t waiting;
    check(pthread_create(&waiting, NULL, wait_for, &number) == 0, "pthread_create");
    usleep(100000);
    kill(getpid(), number);
    pthread_join(waiting, NULL);
    check(nr_handled[number] == 1, "who waits gets it");
    check(sigrelse(number) == 0 && !is_blocked(number), "sigrelse");
    raise(number);
    check(nr_handled[number] == 2, "handled at once");
}

int main(void) {
    const size_t len = 24 << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 5, len);
    const int numbers[] = { SIGUSR1, SIGBUS, SIGSYS, SIGSEGV };
    for (int at = 0; at < 4; at++) block_one(numbers[at]);

    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int number = 1; number < 32; number++)
        check(is_blocked(number) == (number != SIGKILL && number != SIGSTOP), "everything is blocked");
    // Cold memory is there all the same.
    for (size_t at = 0; at < len; at += 4096) check(memory[at] == 5, "memory");
    return 0;
}
