/* System calls by number: through syscall(), and by instructions of the program's own, outside the C library.
   Arguments and results are not in RAM. */
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

static char *region;
static size_t len = 16 * MIB;

#define OUT send_out(region, len)
#define AT(index) ((void *)(region + (index)*FOLIO + 4000))

/* Returns the kernel's result unchanged. */
static long inline_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long by_library(long number, long a, long b, long c, long d, long e, long f) {
    long result = syscall(number, a, b, c, d, e, f);
    return result == -1 ? -errno : result;
}

typedef long call_t(long, long, long, long, long, long, long);
#define CALL(number, ...) CALL_(number, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_(number, a, b, c, d, e, f, ...) call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static void files(call_t *call) {
    const char *folder = getenv("TEST_FOLDER");
    char *name = AT(0);
    sprintf(name, "%s/numbers-%d", folder ? folder : "/var/tmp", getpid());
    OUT;
    int fd = CALL(SYS_openat, AT_FDCWD, name, O_CREAT | O_RDWR | O_EXCL, 0600);
    CHECK(fd >= 0);
    fill(region + FOLIO, 3 * MIB, 7);
    OUT;
    CHECK(CALL(SYS_write, fd, region + FOLIO, 3 * MIB) == (long)(3 * MIB));
    memset(region + FOLIO, 0, 3 * MIB);
    OUT;
    CHECK(CALL(SYS_pread64, fd, region + FOLIO, 3 * MIB, 0) == (long)(3 * MIB) && holds(region + FOLIO, 3 * MIB, 7));
    struct iovec *list = AT(4);
    list[0] = (struct iovec){region + 5 * FOLIO, 8192};
    list[1] = (struct iovec){region + 6 * FOLIO, 8192};
    OUT;
    CHECK(CALL(SYS_preadv, fd, list, 2, 0, 0) == 16384 && holds(region + 5 * FOLIO, 8192, 7));
    struct stat *about = AT(1);
    OUT;
    CHECK(CALL(SYS_stat, name, about) == 0 && about->st_size == (off_t)(3 * MIB));
    OUT;
    CHECK(CALL(SYS_readlink, name, AT(2), 100) == -EINVAL);
    CHECK(CALL(SYS_stat, 4096, about) == -EFAULT);
    OUT;
    CHECK(CALL(SYS_unlink, name) == 0);
    CHECK(CALL(SYS_close, fd) == 0 && CALL(SYS_close, fd) == -EBADF);
}

static void sockets(call_t *call) {
    int *ends = AT(0);
    OUT;
    CHECK(CALL(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    int a = ends[0], b = ends[1];
    strcpy(AT(1), "hello");
    OUT;
    CHECK(CALL(SYS_sendto, b, AT(1), 5, 0, 0, 0) == 5);
    OUT;
    CHECK(CALL(SYS_recvfrom, a, AT(2), 100, 0, 0, 0) == 5 && !memcmp(AT(2), "hello", 5));
    struct iovec *list = AT(3);
    struct msghdr *message = AT(4);
    *list = (struct iovec){AT(1), 5};
    *message = (struct msghdr){.msg_iov = list, .msg_iovlen = 1};
    OUT;
    CHECK(CALL(SYS_sendmsg, b, message, 0) == 5);
    list->iov_base = AT(5);
    OUT;
    CHECK(CALL(SYS_recvmsg, a, message, 0) == 5 && !memcmp(AT(5), "hello", 5));
    struct pollfd *one = AT(6);
    *one = (struct pollfd){.fd = b, .events = POLLOUT};
    struct timespec *time = AT(7);
    *time = (struct timespec){0, 0};
    OUT;
    CHECK(CALL(SYS_ppoll, one, 1, time, 0, 8) == 1 && one->revents == POLLOUT);
    OUT;
    CHECK(CALL(SYS_poll, one, 1, 0) == 1);
    CHECK(CALL(SYS_close, a) == 0 && CALL(SYS_close, b) == 0);
}

static void others(call_t *call) {
    struct timespec *time = AT(0);
    OUT;
    CHECK(CALL(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, time) == 0);
    uint32_t *word = AT(1);
    *word = 5;
    *time = (struct timespec){0, 1};
    OUT;
    CHECK(CALL(SYS_futex, word, FUTEX_WAIT_PRIVATE, 6, time) == -EAGAIN);
    OUT;
    CHECK(CALL(SYS_futex, word, FUTEX_WAIT_PRIVATE, 5, time) == -ETIMEDOUT);
    int *status = AT(2);
    pid_t child = CALL(SYS_fork, 0);
    if (child == 0)
        _exit(6);
    CHECK(child > 0);
    OUT;
    CHECK(CALL(SYS_wait4, child, status, 0, AT(3)) == child && WEXITSTATUS(*status) == 6);
    uint64_t *set = AT(4), *before = AT(5);
    *set = ~0ull;
    OUT;
    CHECK(CALL(SYS_rt_sigprocmask, SIG_SETMASK, set, before, 8) == 0 && !(*before >> (SIGUSR1 - 1) & 1));
    OUT; /* faults are still resolved, and calls still made */
    CHECK(CALL(SYS_clock_gettime, CLOCK_MONOTONIC, time) == 0);
    sigset_t now;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGUSR1) == 1);
    OUT;
    CHECK(CALL(SYS_rt_sigprocmask, SIG_SETMASK, before, set, 8) == 0 && (*set >> (SIGUSR1 - 1) & 1));
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGUSR1) == 0);
    char *extra = (char *)CALL(SYS_mmap, 0, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(extra != MAP_FAILED && is_zero(extra, 4 * MIB));
    memset(extra, 1, 4 * MIB);
    CHECK(CALL(SYS_madvise, extra, 4 * MIB, MADV_DONTNEED) == 0 && is_zero(extra, 4 * MIB));
    CHECK(CALL(SYS_munmap, extra, 4 * MIB) == 0);
    CHECK(CALL(SYS_getppid, 0) == getppid());
}

static void *both(void *argument) {
    call_t *calls[] = {by_library, inline_call};
    for (int i = 0; i < 2; i++) {
        files(calls[i]);
        sockets(calls[i]);
        others(calls[i]);
    }
    return argument;
}

/* Raw clone: a thread on a stack of its own, and a child that shares memory. */
static volatile int cloned;
static char stack[65536] __attribute__((aligned(16)));

static void clones(void) {
    long result;
    int tid = 1;
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    register long r10 __asm__("r10") = (long)&tid;
    __asm__ volatile("syscall\n"
                     "test %%rax, %%rax\n"
                     "jnz 1f\n"
                     "movl $1, %[cloned]\n"
                     "xor %%edi, %%edi\n"
                     "mov %[exit], %%eax\n"
                     "syscall\n"
                     "1:\n"
                     : "=a"(result), [cloned] "=m"(cloned)
                     : "a"(SYS_clone), "D"(flags), "S"(stack + sizeof stack), "d"(0), "r"(r10), [exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    CHECK(result > 0);
    while (__atomic_load_n(&tid, __ATOMIC_ACQUIRE))
        sched_yield();
    CHECK(cloned == 1);
    /* The parent is still covered. */
    struct timespec *time = AT(0);
    OUT;
    CHECK(inline_call(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, (long)time, 0, 0, 0, 0) == 0);

    cloned = 0;
    __asm__ volatile("mov %[vfork], %%eax\n"
                     "syscall\n"
                     "test %%rax, %%rax\n"
                     "jnz 1f\n"
                     "movl $2, %[cloned]\n"
                     "mov $7, %%edi\n"
                     "mov %[exit], %%eax\n"
                     "syscall\n"
                     "1:\n"
                     : "=&a"(result), [cloned] "=m"(cloned)
                     : [vfork] "i"(SYS_vfork), [exit] "i"(SYS_exit)
                     : "rcx", "r11", "rdi", "memory");
    int status;
    CHECK(result > 0 && waitpid(result, &status, 0) == result && WEXITSTATUS(status) == 7 && cloned == 2);
    OUT;
    CHECK(inline_call(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, (long)time, 0, 0, 0, 0) == 0);
}

/* A handler set without the C library, which returns by its own instruction. */
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static volatile sig_atomic_t handled;
static void on_signal(int signal) {
    handled = signal;
    region[0]++;
}

void restore(void);
__asm__(".text\nrestore:\nmov $15, %eax\nsyscall\n");

static void own_handler(void) {
    struct kernel_action *action = AT(1), *before = AT(2);
    *action = (struct kernel_action){on_signal, 0x04000000, restore, ~0ull};
    OUT;
    CHECK(inline_call(SYS_rt_sigaction, SIGUSR1, (long)action, (long)before, 8, 0, 0) == 0);
    OUT;
    CHECK(raise(SIGUSR1) == 0 && handled == SIGUSR1);
    CHECK(inline_call(SYS_tgkill, getpid(), gettid(), SIGUSR1, 0, 0, 0) == 0);
    struct sigaction known;
    CHECK(sigaction(SIGUSR1, NULL, &known) == 0 && known.sa_handler == on_signal);
}

/* The program's own SIGSYS handler. */
static volatile sig_atomic_t code = -100;
static void on_sigsys(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)context;
    code = about->si_code;
    region[5 * FOLIO]++;
    CHECK(inline_call(SYS_getppid, 0, 0, 0, 0, 0, 0) == getppid());
}

static void own_sigsys(void) {
    struct sigaction before, action = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGSYS, NULL, &before) == 0 && before.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    CHECK(sigaction(SIGSYS, NULL, &before) == 0 && before.sa_sigaction == on_sigsys);
    OUT;
    CHECK(raise(SIGSYS) == 0 && code == SI_TKILL);
    CHECK(inline_call(SYS_getppid, 0, 0, 0, 0, 0, 0) == getppid() && code == SI_TKILL);
    /* If the program uses the net's mechanism itself, its use takes precedence. */
    static char selector = 1;
    code = -100;
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) == 0) {
        selector = 1;
        __asm__ volatile("" ::: "memory");
        selector = 0;
        CHECK(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0) == 0);
    }
}

static ucontext_t *contexts[2];
static volatile int visits;
static void visited(void) {
    visits++;
    CHECK(swapcontext(contexts[1], contexts[0]) == 0);
    visits++;
    CHECK(swapcontext(contexts[1], contexts[0]) == 0);
}

static void switches(void) {
    contexts[0] = AT(0);
    contexts[1] = AT(2);
    OUT;
    CHECK(getcontext(contexts[1]) == 0);
    static char own[65536];
    contexts[1]->uc_stack = (stack_t){.ss_sp = own, .ss_size = sizeof own};
    sigfillset(&contexts[1]->uc_sigmask);
    makecontext(contexts[1], visited, 0);
    for (int round = 1; round < 3; round++) {
        OUT;
        CHECK(swapcontext(contexts[0], contexts[1]) == 0 && visits == round);
    }
}

static void listed(void) {
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "test \"$1$2$3$4$5$6$7\" = abcdefg", "sh", "a", "b", "c", "d", "e", "f", "g", NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if ((child = fork()) == 0) {
        char *only[] = {"HERE=there", NULL};
        execle("/bin/sh", "sh", "-c", "test $HERE = there", NULL, only);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if ((child = vfork()) == 0) {
        execlp("sh", "sh", "-c", "exit 0", NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* On a small alternate stack calls are still caught, and faults still resolved. */
static void small_stack(void) {
    stack_t small = {.ss_sp = malloc(8192), .ss_size = 8192}, now, *wanted = AT(0), *told = AT(1);
    CHECK(sigaltstack(&small, NULL) == 0);
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == small.ss_sp && now.ss_size == 8192);
    files(inline_call);
    *wanted = small;
    OUT;
    CHECK(inline_call(SYS_sigaltstack, (long)wanted, (long)told, 0, 0, 0, 0) == 0);
    CHECK(told->ss_sp == small.ss_sp && told->ss_size == 8192);
    files(inline_call);
    /* A large stack of the program's is used as it is. */
    *wanted = (stack_t){.ss_sp = malloc(65536), .ss_size = 65536};
    OUT;
    CHECK(inline_call(SYS_sigaltstack, (long)wanted, 0, 0, 0, 0, 0) == 0);
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == wanted->ss_sp && now.ss_size == 65536);
    files(inline_call);
    CHECK(inline_call(SYS_sigaltstack, (long)&small, (long)told, 0, 0, 0, 0) == 0 && told->ss_size == 65536);
    *wanted = (stack_t){.ss_flags = SS_DISABLE};
    CHECK(inline_call(SYS_sigaltstack, (long)wanted, (long)told, 0, 0, 0, 0) == 0);
    CHECK(told->ss_sp == small.ss_sp && sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_DISABLE);
    files(inline_call);
}

int main(void) {
    region = map(len);
    memset(region, 0, len);
    both(NULL);
    small_stack();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, both, NULL) == 0 && pthread_join(thread, NULL) == 0);
    clones();
    own_handler();
    switches();
    listed();
    own_sigsys();
    return 0;
}
