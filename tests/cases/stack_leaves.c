// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
// LIMIT_S: 120
/* A coroutine makes calls while another thread sends its stack out of RAM all the time: what is on that stack is found
 * by the kernel, and the masks of signals stay as they are. */
#include "check.h"
#include <poll.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

enum { STACK = 1 << 20, BUFFERS = 1 << 20, NR_ROUNDS = 60, NR_EACH = 40 };
static char *stack, *buffers;
static ucontext_t *contexts; // of the main stack, the coroutine, and an inner one
static atomic_int is_done, nr_sent;
static int zero, ends[2], pair[2];
extern char **environ;

static void *send_out(void *none) {
    while (!is_done) {
        madvise(stack, STACK, MADV_PAGEOUT);
        madvise(contexts, 4 * PAGE, MADV_PAGEOUT);
        madvise(buffers, BUFFERS, MADV_PAGEOUT);
    }
    return none;
}

/* Sends a message when the reader sleeps, and its stack is out. */
static void *send_late(void *none) {
    while (!is_done) {
        while (!is_done && nr_sent == 0) usleep(200);
        usleep(2000);
        if (is_done) break;
        CHECK(send(pair[1], "late", 4, 0) == 4, "send");
        nr_sent--;
    }
    return none;
}

static void check_mask(const char *after) {
    static unsigned long mask; // not on the stack
    CHECK(syscall(SYS_rt_sigprocmask, 0, NULL, &mask, 8) == 0, "mask");
    CHECK(mask == 0, after);
}

static void calls_with_buffers(int round) {
    for (int i = 0; i < NR_EACH; i++) {
        char *at = buffers + (size_t)(round * NR_EACH + i) % 200 * PAGE;
        memset(at, 7, 100);
        CHECK(write(ends[1], at, 100) == 100, "write");
        CHECK(read(ends[0], at + 100, 100) == 100 && at[150] == 7, "read");
        CHECK(read(zero, at, PAGE) == PAGE && at[5] == 0, "read zeros");
        check_mask("mask after reads");
    }
}

static void calls_with_mappings(void) {
    for (int i = 0; i < NR_EACH; i++) {
        char *new = anonymous(4 << 20);
        new[1] = 1;
        CHECK(mprotect(new, PAGE, PROT_READ) == 0, "mprotect");
        CHECK(mprotect(new, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back");
        CHECK(madvise(new + (2 << 20), PAGE, MADV_DONTNEED) == 0, "madvise");
        new = mremap(new, 4 << 20, 6 << 20, MREMAP_MAYMOVE);
        CHECK(new != MAP_FAILED && new[1] == 1, "mremap");
        CHECK(munmap(new, 6 << 20) == 0, "munmap");
        check_mask("mask after mappings");
    }
}

static void on_signal(int signal) { (void)signal; }

static void calls_with_signals(void) {
    for (int i = 0; i < NR_EACH; i++) {
        sigset_t set, before;
        sigemptyset(&set), sigaddset(&set, SIGUSR1);
        struct sigaction action = {.sa_handler = on_signal}, known;
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
        CHECK(sigaction(SIGUSR1, NULL, &known) == 0 && known.sa_handler == on_signal, "sigaction that asks");
        CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0, "pthread_sigmask");
        CHECK(!sigismember(&before, SIGUSR1), "the mask before");
        raise(SIGUSR1);
        sigemptyset(&before);
        CHECK(sigsuspend(&before) == -1 && errno == EINTR, "sigsuspend");
        CHECK(sigprocmask(SIG_UNBLOCK, &set, &before) == 0 && sigismember(&before, SIGUSR1), "sigprocmask");
        int number = 0;
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        raise(SIGUSR1);
        CHECK(sigwait(&set, &number) == 0 && number == SIGUSR1, "sigwait");
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        check_mask("mask after signals");
    }
}

static void calls_with_times(void) {
    for (int i = 0; i < NR_EACH; i++) {
        struct timespec soon = {0, 1000}, at = soon;
        struct timeval soon_too = {0, 1};
        sigset_t set;
        sigemptyset(&set);
        fd_set ready;
        FD_ZERO(&ready);
        FD_SET(zero, &ready);
        struct pollfd one = {.fd = zero, .events = POLLIN};
        CHECK(nanosleep(&soon, &at) == 0, "nanosleep");
        CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &soon, NULL) == 0, "clock_nanosleep");
        CHECK(select(zero + 1, &ready, NULL, NULL, &soon_too) == 1, "select");
        CHECK(pselect(zero + 1, &ready, NULL, NULL, &soon, &set) == 1, "pselect");
        CHECK(poll(&one, 1, 10) == 1 && one.revents & POLLIN, "poll");
        CHECK(ppoll(&one, 1, &soon, &set) == 1, "ppoll");
        int set_of = epoll_create1(0);
        struct epoll_event about = {.events = EPOLLIN}, told;
        CHECK(epoll_ctl(set_of, EPOLL_CTL_ADD, ends[1], &about) == 0, "epoll_ctl");
        CHECK(epoll_pwait(set_of, &told, 1, 0, &set) == 0, "epoll_pwait");
        close(set_of);
        CHECK(usleep(1) == 0, "usleep");
        check_mask("mask after times");
    }
}

static void calls_with_descriptors(void) {
    for (int i = 0; i < NR_EACH; i++) {
        struct stat about;
        int kind = 0;
        socklen_t len = sizeof kind;
        CHECK(fstat(zero, &about) == 0 && S_ISCHR(about.st_mode), "fstat");
        CHECK(stat("/dev/zero", &about) == 0 && S_ISCHR(about.st_mode), "stat");
        CHECK(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, &kind, &len) == 0 && kind == SOCK_DGRAM, "getsockopt");
        CHECK(!isatty(zero), "isatty");
        FILE *stream = fopen("/dev/zero", "r");
        char text[64];
        CHECK(stream && fread(text, 1, sizeof text, stream) == sizeof text, "fread");
        fclose(stream);
        CHECK(clock() != (clock_t)-1, "clock");
        check_mask("mask after descriptors");
    }
}

static void calls_that_receive(void) {
    char text[16] = "", name[64];
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = name, .msg_namelen = sizeof name};
    nr_sent++;
    CHECK(recvmsg(pair[0], &message, 0) == 4 && !memcmp(text, "late", 4), "recvmsg");
    nr_sent++;
    struct mmsghdr several = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    CHECK(recvmmsg(pair[0], &several, 1, 0, NULL) == 1 && several.msg_len == 4, "recvmmsg");
    nr_sent++;
    socklen_t len = sizeof name;
    CHECK(recvfrom(pair[0], text, sizeof text, 0, (void *)name, &len) == 4, "recvfrom");
    CHECK(sendmsg(pair[1], &(struct msghdr){.msg_iov = &(struct iovec){"now", 3}, .msg_iovlen = 1}, 0) == 3, "sendmsg");
    CHECK(read(pair[0], text, sizeof text) == 3, "read of a message");
    check_mask("mask after messages");
}

static void *nothing(void *same) { return same; }

static void calls_that_start(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0, "pthread_create");
        int status = 1;
        pid_t child = fork();
        if (child == 0) {
            check_mask("mask in a child");
            _exit(7);
        }
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "fork");
        char *arguments[] = {"true", NULL};
        CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0, "posix_spawnp");
        CHECK(waitpid(child, &status, 0) == child && status == 0, "its status");
        CHECK(system("true") == 0, "system");
        FILE *stream = popen("echo text", "r");
        char text[16] = "";
        CHECK(stream && fgets(text, sizeof text, stream) && !strcmp(text, "text\n"), "popen");
        CHECK(pclose(stream) == 0, "pclose");
        check_mask("mask after children");
    }
}

static void inner(void) {
    for (;;) swapcontext(&contexts[2], &contexts[1]);
}

static void switches(void) {
    for (int i = 0; i < 20 * NR_EACH; i++) {
        CHECK(swapcontext(&contexts[1], &contexts[2]) == 0, "swapcontext");
        CHECK(getcontext(&contexts[3]) == 0, "getcontext");
    }
    check_mask("mask after contexts");
}

static void run(void) {
    for (int round = 0; round < NR_ROUNDS; round++) {
        calls_with_buffers(round);
        calls_with_mappings();
        calls_with_signals();
        calls_with_times();
        calls_with_descriptors();
        calls_that_receive();
        if (round % 10 == 0) calls_that_start();
        switches();
    }
}

static void make(ucontext_t *context, char *on, size_t len, void (*function)(void)) {
    CHECK(getcontext(context) == 0, "getcontext");
    context->uc_stack.ss_sp = on, context->uc_stack.ss_size = len, context->uc_link = &contexts[0];
    makecontext(context, function, 0);
}

int main(void) {
    char *others = anonymous(60 * MIB);
    for (size_t at = 0; at < 60 * MIB; at += PAGE) others[at] = 1;
    char *at = anonymous(4 * MIB + BUFFERS);
    stack = (char *)(((uintptr_t)at + 2 * MIB - 1) & -(2 * MIB)), buffers = stack + STACK;
    contexts = (ucontext_t *)anonymous(4 * PAGE);
    memset(buffers, 1, BUFFERS);
    zero = open("/dev/zero", O_RDONLY);
    CHECK(zero >= 0 && pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "descriptors");
    pthread_t sender, receiver;
    pthread_create(&sender, NULL, send_out, NULL);
    pthread_create(&receiver, NULL, send_late, NULL);
    make(&contexts[2], stack, STACK / 4, inner);
    make(&contexts[1], stack + STACK / 4, STACK - STACK / 4, run);
    CHECK(swapcontext(&contexts[0], &contexts[1]) == 0, "swapcontext");
    is_done = 1;
    pthread_join(sender, NULL), pthread_join(receiver, NULL);
    DONE;
}
