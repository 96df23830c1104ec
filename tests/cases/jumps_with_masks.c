// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Jumps back to buffers in memory that leaves RAM all the time, by sigsetjmp and setjmp: each sets the mask again that
// was set before. What comes after it finds the registers as they were.
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
        long registers[4] = {i, i + 1, i + 2, i + 3};
        int result = sigsetjmp(cold->buffer, 1);
        if (result == 0) raise(SIGUSR1);
        CHECK(result == SIGUSR1, "%d by sigsetjmp", result);
        check("sigsetjmp");
        result = setjmp(cold->other);
        if (result == 0) raise(SIGUSR2);
        CHECK(result == SIGUSR2, "%d by setjmp", result);
        check("setjmp");
        for (int k = 0; k < 4; k++) CHECK(registers[k] == i + k, "a register");
    }
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
