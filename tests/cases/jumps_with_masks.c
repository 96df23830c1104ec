// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Jumps back to buffers in memory that leaves RAM all the time, by sigsetjmp and setjmp: each sets the mask again that
// was set before, also of the signals that the engine needs. What comes after it finds the registers as they were.
#include "cold.h"
#include <setjmp.h>
#undef setjmp
extern int setjmp(jmp_buf) __attribute__((returns_twice)); // saves the mask, unlike the macro
#define NR_JUMPS 40000
static struct buffers {
    sigjmp_buf buffer;
    jmp_buf other;
} *cold;
static volatile int is_over;
static void *page_out(void *none) {
    while (!is_over) madvise(cold, PAGE, MADV_PAGEOUT);
    return none;
}
static void jump(int signal) { siglongjmp(cold->buffer, signal); }
static void jump_as_bsd(int signal) { longjmp(cold->other, signal); }
static sigset_t now(void) {
    sigset_t set;
    sigprocmask(SIG_BLOCK, 0, &set);
    return set;
}
static void check(const char *what) {
    sigset_t set = now();
    CHECK(!sigismember(&set, SIGUSR1) && !sigismember(&set, SIGUSR2), "%s: blocked after it", what);
    CHECK(sigismember(&set, SIGWINCH), "%s: open after it", what);
}
static void jump_back(void *buffer) { siglongjmp(buffer, 1); }
// Whether a jump back to a buffer, from where all registers that calls keep hold something else, restores these.
int keeps_registers(void *buffer, void (*jump)(void *));
__asm__(".text\nkeeps_registers:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\nsub $24, %rsp\n"
        "mov %rdi, (%rsp)\nmov %rsi, 8(%rsp)\n"
        "mov $1, %ebx\nmov $2, %ebp\nmov $3, %r12d\nmov $4, %r13d\nmov $5, %r14d\nmov $6, %r15d\n"
        "mov $1, %esi\ncall __sigsetjmp@PLT\ntest %eax, %eax\njnz 1f\n"
        "mov $7, %ebx\nmov $7, %ebp\nmov $7, %r12d\nmov $7, %r13d\nmov $7, %r14d\nmov $7, %r15d\n"
        "mov (%rsp), %rdi\ncall *8(%rsp)\n"
        "1: xor %eax, %eax\n"
        "cmp $1, %rbx\njne 2f\ncmp $2, %rbp\njne 2f\ncmp $3, %r12\njne 2f\n"
        "cmp $4, %r13\njne 2f\ncmp $5, %r14\njne 2f\ncmp $6, %r15\njne 2f\nmov $1, %eax\n"
        "2: add $24, %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n");
// The mask after a jump is that of the buffer, for signals that this library never really blocks, too.
static void check_engines(void) {
    sigset_t both, set;
    sigemptyset(&both), sigaddset(&both, SIGBUS), sigaddset(&both, SIGSYS);
    for (int is_blocked = 0; is_blocked < 2; is_blocked++) {
        sigprocmask(is_blocked ? SIG_BLOCK : SIG_UNBLOCK, &both, 0);
        if (sigsetjmp(cold->buffer, 1) == 0) {
            sigprocmask(is_blocked ? SIG_UNBLOCK : SIG_BLOCK, &both, 0);
            siglongjmp(cold->buffer, 1);
        }
        set = now();
        CHECK(sigismember(&set, SIGBUS) == is_blocked, "SIGBUS is not as it was, %d", is_blocked);
        CHECK(sigismember(&set, SIGSYS) == is_blocked, "SIGSYS is not as it was, %d", is_blocked);
    }
    sigprocmask(SIG_UNBLOCK, &both, 0);
}
int main(void) {
    start_engine();
    cold = (struct buffers *)anonymous(4 * MIB);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGWINCH);
    sigprocmask(SIG_SETMASK, &set, 0);
    signal(SIGUSR1, jump), signal(SIGUSR2, jump_as_bsd);
    pthread_t thread;
    pthread_create(&thread, 0, page_out, 0);
    for (volatile int i = 0; i < NR_JUMPS && nr_wrong < 12; i++) {
        int result = sigsetjmp(cold->buffer, 1);
        if (result == 0) raise(SIGUSR1);
        CHECK(result == SIGUSR1, "%d by sigsetjmp", result);
        check("sigsetjmp");
        result = setjmp(cold->other);
        if (result == 0) raise(SIGUSR2);
        CHECK(result == SIGUSR2, "%d by setjmp", result);
        check("setjmp");
        CHECK(keeps_registers(cold->buffer, jump_back), "a register");
    }
    check_engines();
    // Without the mask, what is blocked stays so. Zero becomes one.
    int result = sigsetjmp(cold->buffer, 0);
    if (result == 0) {
        sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_SETMASK, &set, 0);
        siglongjmp(cold->buffer, 0);
    }
    set = now();
    CHECK(result == 1 && sigismember(&set, SIGUSR1), "%d, without a mask", result);
    is_over = 1;
    pthread_join(thread, 0);
    DONE;
}
