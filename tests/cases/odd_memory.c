// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Arguments of calls in memory that the kernel reads and writes, but does not populate: memory of memfd_secret, and
// memory that may be written but not read. And in memory that may only be read.
#include "cold.h"
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
static void nothing(int signal) { (void)signal; }
static void check(char *at, int is_writable, const char *what) {
    struct kernel_action {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    };
    int failed = is_writable ? 0 : -1;
    struct timespec none = {0, 0};
    signal(SIGUSR1, nothing);
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, at, 8) == failed, "an action to %s", what);
    CHECK(syscall(SYS_rt_sigaction, SIGBUS, NULL, at, 8) == failed, "an action of SIGBUS to %s", what);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, at, 8) == failed, "a mask to %s", what);
    CHECK(syscall(SYS_sigaltstack, NULL, at) == failed, "a stack to %s", what);
    CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, at) == failed, "a limit to %s", what);
    if (is_writable) memset(at, 0, sizeof(struct kernel_action));
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, at, NULL, 8) == 0, "an action in %s", what);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, at, NULL, 8) == 0, "a mask in %s", what);
    CHECK(syscall(SYS_sigaltstack, at, NULL) == 0 || errno == ENOMEM, "a stack in %s", what);
    CHECK(syscall(SYS_ppoll, NULL, 0, &none, at, 8) == 0, "a mask of ppoll in %s", what);
    CHECK(syscall(SYS_rt_sigtimedwait, at, NULL, at, 8) == -1 && errno == EAGAIN, "a time in %s", what);
    // A list of buffers that are not in RAM.
    char *cold = beside + 70 * MIB;
    int zero = open("/dev/zero", O_RDONLY);
    if (is_writable) {
        *(struct iovec *)at = (struct iovec){cold, 100};
        send_out(cold, 100);
        CHECK(readv(zero, (struct iovec *)at, 1) == 100, "a list in %s", what);
    }
    close(zero);
}
int main(void) {
    start_engine();
    int secret = syscall(SYS_memfd_secret, 0);
    if (secret >= 0 && ftruncate(secret, 2 * PAGE) == 0) {
        char *both = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0);
        check(both, 1, "secret memory");
        memset(both + PAGE, 0, PAGE);
        check(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, secret, PAGE), 0, "secret memory that is read");
    }
    check(mmap(NULL, PAGE, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, "memory that is written");
    check(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 0, "memory that is read");
    DONE;
}
