// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Calls that set something and tell what was set before: they have set it, too, where they cannot tell. An argument
// that cannot be read, or whose length is wrong, changes nothing. By number, past libc too.
#include "cold.h"
#include <stddef.h>
#include <sys/resource.h>
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};
static long past_libc(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}
static long by_number(long number, long a, long b, long c, long d) {
    errno = 0;
    return syscall(number, a, b, c, d) < 0 ? -errno : 0;
}
static long (*call)(long, long, long, long, long);
#define CALL(number, ...) call(number, __VA_ARGS__)
static char *end;
static void first(int signal) { (void)signal; }
static void second(int signal) { (void)signal; }
static void check_actions(int signal, long bad) {
    struct kernel_action one = {first, 0x04000000, (void *)first, 0}, two = {second, 0x04000000, (void *)first, 0}, now;
    CHECK(CALL(SYS_rt_sigaction, signal, (long)&one, 0, 8) == 0, "an action of %d", signal);
    CHECK(CALL(SYS_rt_sigaction, signal, (long)&two, bad, 4) == -EINVAL, "a length of 4 for %d", signal);
    CHECK(CALL(SYS_rt_sigaction, signal, bad, 0, 8) == -EFAULT, "an action of %d that cannot be read", signal);
    CHECK(CALL(SYS_rt_sigaction, signal, 0, (long)&now, 8) == 0 && now.handler == first, "%d has another handler", signal);
    CHECK(CALL(SYS_rt_sigaction, signal, (long)&two, bad, 8) == -EFAULT, "the old action of %d was told", signal);
    CHECK(CALL(SYS_rt_sigaction, signal, 0, (long)&now, 8) == 0 && now.handler == second, "%d has the old handler", signal);
    CHECK(CALL(SYS_rt_sigaction, 65, (long)&two, bad, 8) == -EINVAL, "there is no signal 65");
    CHECK(CALL(SYS_rt_sigaction, SIGKILL, (long)&two, bad, 8) == -EINVAL, "SIGKILL has no action");
}
static void check_stack(long bad) {
    static char room[1 << 16];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room}, none = {.ss_flags = SS_DISABLE}, now;
    CHECK(CALL(SYS_sigaltstack, (long)&stack, bad, 0, 0) == -EFAULT, "the old signal stack was told");
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == room, "the signal stack is the old one");
    CHECK(CALL(SYS_sigaltstack, bad, 0, 0, 0) == -EFAULT, "a signal stack that cannot be read");
    CHECK(CALL(SYS_sigaltstack, (long)&none, 0, 0, 0) == 0, "no signal stack");
    stack.ss_size = 10;
    CHECK(CALL(SYS_sigaltstack, (long)&stack, bad, 0, 0) == -ENOMEM, "a small signal stack");
}
static void check_mask(long bad) {
    long set = 1 << (SIGUSR1 - 1), now, none = 0;
    CHECK(CALL(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, bad, 8) == -EFAULT, "the old mask was told");
    CHECK(CALL(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, (long)&now, 8) == 0 && now == set, "the mask is %lx", now);
    CHECK(CALL(SYS_rt_sigprocmask, 99, (long)&set, bad, 8) == -EINVAL, "99 is no way to change a mask");
}
static void check_limits(long bad) {
    for (int i = 0; i < 2; i++) {
        int what = i ? RLIMIT_DATA : RLIMIT_AS;
        struct rlimit most = {RLIM_INFINITY, RLIM_INFINITY}, limit = {1ul << 42, RLIM_INFINITY}, wrong = {2, 1}, now;
        CHECK(CALL(SYS_prlimit64, 0, what, (long)&limit, bad) == -EFAULT, "the old limit was told");
        CHECK(getrlimit(what, &now) == 0 && now.rlim_cur == 1ul << 42, "the limit is %lx", now.rlim_cur);
        CHECK(CALL(SYS_prlimit64, 0, what, (long)&wrong, bad) == -EINVAL, "a soft limit above the hard one");
        CHECK(CALL(SYS_setrlimit, what, 0, 0, 0) == -EFAULT, "setrlimit of nothing");
        CHECK(CALL(SYS_getrlimit, what, 0, 0, 0) == -EFAULT, "getrlimit to nothing");
        CHECK(setrlimit(what, &most) == 0, "no limit");
    }
}
int main(void) {
    start_engine();
    char *memory = anonymous(4 * MIB);
    memset(memory, 1, 4 * MIB);
    end = memory + MIB;
    munmap(end, PAGE);
    for (int past = 0; past < 2; past++)
        for (int i = 0; i < 4; i++) {
            long bad[] = {(long)end, (long)end - 4, 1, -1};
            call = past ? past_libc : by_number;
            check_actions(SIGUSR1, bad[i]), check_actions(SIGBUS, bad[i]), check_actions(SIGSYS, bad[i]);
            check_stack(bad[i]);
            check_mask(bad[i]);
            check_limits(bad[i]);
        }
    // The C library does not read the restorer.
    struct sigaction *cut = (struct sigaction *)(end - offsetof(struct sigaction, sa_restorer)), now;
    for (int i = 0; i < 2; i++) {
        int signal = i ? SIGBUS : SIGUSR1;
        cut->sa_handler = first, cut->sa_flags = 0;
        sigemptyset(&cut->sa_mask);
        CHECK(sigaction(signal, cut, NULL) == 0, "an action that is cut");
        CHECK(sigaction(signal, NULL, &now) == 0 && now.sa_handler == first, "an action that is cut was not set");
    }
    DONE;
}
