/* System calls whose arguments and results are in memory that is not in RAM, or that is evicted while the call
   sleeps. */
#include "check.h"
#include <aio.h>
#include <mqueue.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/msg.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <sys/xattr.h>
#include <time.h>

static char *region;
static size_t len = 16 * MIB;

/* Evicts the whole region before the next call. */
#define OUT send_out(region, len)

/* Each object has a folio of its own. */
#define AT(index) ((void *)(region + (index)*FOLIO + 4000))

static volatile pid_t sleeper;

/* Waits until a thread sleeps in the system call of this number. */
static void asleep(long number) {
    char path[64], text[32];
    for (;;) {
        if (sleeper) {
            snprintf(path, sizeof path, "/proc/self/task/%d/syscall", sleeper);
            int fd = open(path, O_RDONLY);
            CHECK(fd >= 0);
            ssize_t n = read(fd, text, sizeof text - 1);
            close(fd);
            text[n > 0 ? n : 0] = 0;
            if (n > 0 && strtol(text, NULL, 10) == number && text[0] != 'r')
                return;
        }
        sched_yield();
    }
}

static pthread_t start(void *(*body)(void *)) {
    pthread_t thread;
    sleeper = 0;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    return thread;
}

static void nothing(int signal) { (void)signal; }

/* Calls that sleep while their memory is evicted. */
static int ends[2];

static void *in_recvfrom(void *argument) {
    struct sockaddr_storage *from = AT(1);
    socklen_t *size = AT(2);
    *size = sizeof *from;
    sleeper = gettid();
    CHECK(recvfrom(ends[0], AT(0), 100, 0, AT(1), size) == 5);
    CHECK(!memcmp(AT(0), "hello", 5) && *size > sizeof(sa_family_t) && from->ss_family == AF_UNIX);
    return argument;
}

static void *in_recvmsg(void *argument) {
    struct msghdr *message = AT(0);
    struct iovec *list = AT(1);
    *list = (struct iovec){AT(2), 100};
    *message = (struct msghdr){.msg_iov = list, .msg_iovlen = 1, .msg_control = AT(3), .msg_controllen = 100};
    sleeper = gettid();
    CHECK(recvmsg(ends[0], message, 0) == 5);
    struct cmsghdr *control = CMSG_FIRSTHDR(message);
    CHECK(control && control->cmsg_type == SCM_RIGHTS && !(message->msg_flags & MSG_CTRUNC));
    int got;
    memcpy(&got, CMSG_DATA(control), sizeof got);
    CHECK(fcntl(got, F_GETFD) >= 0 && close(got) == 0);
    return argument;
}

static void *in_recvmmsg(void *argument) {
    struct mmsghdr *messages = AT(0);
    struct iovec *list = AT(1);
    list[0] = (struct iovec){AT(2), 100};
    list[1] = (struct iovec){AT(3), 100};
    for (int i = 0; i < 2; i++)
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = list + i, .msg_iovlen = 1}};
    sleeper = gettid();
    CHECK(recvmmsg(ends[0], messages, 2, MSG_WAITFORONE, NULL) >= 1);
    CHECK(messages[0].msg_len == 5 && !memcmp(AT(2), "hello", 5));
    return argument;
}

static void *in_poll(void *argument) {
    struct pollfd *list = AT(0);
    *list = (struct pollfd){.fd = ends[0], .events = POLLIN};
    sleeper = gettid();
    CHECK(poll(list, 1, -1) == -1 && errno == EINTR);
    return argument;
}

static void *in_ppoll(void *argument) {
    struct pollfd *list = AT(0);
    struct timespec *limit = AT(1);
    *list = (struct pollfd){.fd = ends[0], .events = POLLIN};
    *limit = (struct timespec){1000, 0};
    sleeper = gettid();
    CHECK(ppoll(list, 1, limit, NULL) == -1 && errno == EINTR);
    return argument;
}

static void *in_nanosleep(void *argument) {
    struct timespec *time = AT(0), *left = AT(1);
    *time = (struct timespec){1000, 0};
    sleeper = gettid();
    CHECK(nanosleep(time, left) == -1 && errno == EINTR && left->tv_sec > 0 && left->tv_sec <= 1000);
    return argument;
}

static void *in_clock_nanosleep(void *argument) {
    struct timespec *time = AT(0), *left = AT(1);
    *time = (struct timespec){1000, 0};
    sleeper = gettid();
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) == EINTR && left->tv_sec > 0 && left->tv_sec <= 1000);
    return argument;
}

static void *in_sigtimedwait(void *argument) {
    sigset_t *set = AT(0);
    siginfo_t *about = AT(1);
    struct timespec *limit = AT(2);
    sigemptyset(set);
    sigaddset(set, SIGUSR2);
    *limit = (struct timespec){1000, 0};
    CHECK(pthread_sigmask(SIG_BLOCK, set, NULL) == 0);
    sleeper = gettid();
    CHECK(sigtimedwait(set, about, limit) == SIGUSR2 && about->si_signo == SIGUSR2);
    return argument;
}

static void *in_msgrcv(void *argument) {
    struct {
        long kind;
        char text[8];
    } *message = AT(0);
    sleeper = gettid();
    CHECK(msgrcv(*(int *)argument, message, 8, 0, 0) == 5 && message->kind == 7 && !memcmp(message->text, "hello", 5));
    return NULL;
}

static void *in_waitid(void *argument) {
    siginfo_t *about = AT(0);
    sleeper = gettid();
    CHECK(waitid(P_ALL, 0, about, WEXITED) == 0 && about->si_status == 9);
    return argument;
}

static void sleeping(void) {
    struct sigaction action = {.sa_handler = nothing};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    struct sockaddr name = {.sa_family = AF_UNIX};
    CHECK(bind(ends[1], &name, sizeof(sa_family_t)) == 0); /* the kernel chooses the name */
    struct {
        void *(*body)(void *);
        long number;
        int what; /* 0: a datagram; 1: one with a descriptor; else a signal */
    } each[] = {
        {in_recvfrom, SYS_recvfrom, 0},   {in_recvmsg, SYS_recvmsg, 1},
        {in_recvmmsg, SYS_recvmmsg, 0},   {in_poll, SYS_poll, SIGUSR1},
        {in_ppoll, SYS_ppoll, SIGUSR1},   {in_nanosleep, SYS_clock_nanosleep, SIGUSR1},
        {in_clock_nanosleep, SYS_clock_nanosleep, SIGUSR1}, {in_sigtimedwait, SYS_rt_sigtimedwait, SIGUSR2},
    };
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        pthread_t thread = start(each[i].body);
        asleep(each[i].number);
        OUT;
        if (each[i].what == 1) {
            char room[CMSG_SPACE(sizeof(int))] = {0};
            struct iovec list = {"hello", 5};
            struct msghdr message = {.msg_iov = &list, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
            struct cmsghdr *control = CMSG_FIRSTHDR(&message);
            *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
            CHECK(sendmsg(ends[1], &message, 0) == 5);
        } else if (each[i].what == 0)
            CHECK(send(ends[1], "hello", 5, 0) == 5);
        else
            CHECK(pthread_kill(thread, each[i].what) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    close(ends[0]);
    close(ends[1]);

    int queue = msgget(IPC_PRIVATE, 0600);
    if (queue >= 0) {
        pthread_t thread;
        sleeper = 0;
        CHECK(pthread_create(&thread, NULL, in_msgrcv, &queue) == 0);
        asleep(SYS_msgrcv);
        OUT;
        struct {
            long kind;
            char text[5];
        } message = {7, "hello"};
        CHECK(msgsnd(queue, &message, 5, 0) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(msgctl(queue, IPC_RMID, NULL) == 0);
    }

    int gate[2];
    CHECK(pipe(gate) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(gate[1]);
        CHECK(read(gate[0], &byte, 1) == 0);
        _exit(9);
    }
    pthread_t thread = start(in_waitid);
    asleep(SYS_waitid);
    OUT;
    close(gate[0]);
    close(gate[1]);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Threads that are cancelled while they sleep. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void *in_read(void *argument) {
    sleeper = gettid();
    CHECK(read(ends[0], AT(0), 100) == -1);
    return argument;
}

static void *in_long_poll(void *argument) {
    struct pollfd *list = AT(0);
    *list = (struct pollfd){.fd = ends[0], .events = POLLIN};
    sleeper = gettid();
    poll(list, 1, -1);
    return argument;
}

static void unlock(void *argument) { CHECK(pthread_mutex_unlock(argument) == 0); }

static void *in_timed_wait(void *argument) {
    struct timespec *end = AT(0);
    CHECK(clock_gettime(CLOCK_REALTIME, end) == 0);
    end->tv_sec += 1000;
    CHECK(pthread_mutex_lock(&mutex) == 0);
    pthread_cleanup_push(unlock, &mutex);
    sleeper = gettid();
    pthread_cond_timedwait(&never, &mutex, end);
    pthread_cleanup_pop(1);
    return argument;
}

static void cancelled(void) {
    CHECK(pipe(ends) == 0);
    struct {
        void *(*body)(void *);
        long number;
    } each[] = {{in_read, SYS_read}, {in_long_poll, SYS_poll}, {in_timed_wait, SYS_futex}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        pthread_t thread = start(each[i].body);
        asleep(each[i].number);
        OUT;
        void *result;
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(pthread_mutex_trylock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    close(ends[0]);
    close(ends[1]);
}

/* Transfers that are one call without a budget are one call here, too. */
static void long_ones(void) {
    int zero = open("/dev/zero", O_RDWR);
    OUT;
    CHECK(zero >= 0 && read(zero, region, MIB) == (ssize_t)MIB);
    OUT;
    CHECK(pread(zero, region, MIB, 0) == (ssize_t)MIB && is_zero(region, MIB));
    close(zero);
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    int room = 1 << 20;
    CHECK(setsockopt(sockets[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    fill(region, 300000, 5);
    OUT;
    ssize_t sent = send(sockets[1], region, 300000, 0);
    if (sent < 0 && errno == EMSGSIZE) {
        CHECK(recv(sockets[0], region, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN); /* nothing is left of it */
    } else {
        CHECK(sent == 300000);
        OUT;
        CHECK(recv(sockets[0], region + 4 * MIB, 400000, 0) == 300000 && holds(region + 4 * MIB, 300000, 5));
        CHECK(recv(sockets[0], region, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    close(sockets[0]);
    close(sockets[1]);
}

static void paths(void) {
    const char *folder = getenv("TEST_FOLDER");
    char *name = AT(0), *other = AT(1), *key = AT(2), *value = AT(3);
    sprintf(name, "%s/calls-XXXXXX", folder ? folder : "/var/tmp");
    OUT;
    int fd = mkostemp(name, O_CLOEXEC);
    CHECK(fd >= 0 && !strstr(name, "XXXXXX"));
    strcpy(other, name);
    strcat(other, "-other");
    strcpy(key, "user.key");
    strcpy(value, "value");
    OUT;
    if (setxattr(name, key, value, 5, 0) == 0) {
        OUT;
        CHECK(getxattr(name, key, AT(4), 100) == 5 && !memcmp(AT(4), "value", 5));
        OUT;
        CHECK(fgetxattr(fd, key, AT(4), 100) == 5);
        OUT;
        CHECK(listxattr(name, AT(5), 100) >= 9);
        OUT;
        CHECK(removexattr(name, key) == 0);
    } else
        CHECK(errno == ENOTSUP);
    OUT;
    CHECK(linkat(AT_FDCWD, name, AT_FDCWD, other, 0) == 0);
    OUT;
    CHECK(renameat2(AT_FDCWD, name, AT_FDCWD, other, 1) == -1 && errno == EEXIST);
    OUT;
    CHECK(unlink(other) == 0);
    OUT;
    CHECK(symlinkat(name, AT_FDCWD, other) == 0);
    OUT;
    CHECK(fchmodat(AT_FDCWD, name, 0640, 0) == 0);
    OUT;
    CHECK(fchownat(AT_FDCWD, name, -1, -1, 0) == 0);
    struct timeval *times = AT(4);
    times[0] = times[1] = (struct timeval){1000, 0};
    OUT;
    CHECK(utimes(name, times) == 0);
    OUT;
    CHECK(euidaccess(name, R_OK) == 0);
    struct statvfs64 *about = AT(5);
    OUT;
    CHECK(statvfs64(name, about) == 0 && about->f_bsize > 0);
    struct statfs64 *more = AT(6);
    OUT;
    CHECK(fstatfs64(fd, more) == 0 && more->f_bsize > 0);
    int watch = inotify_init1(IN_CLOEXEC);
    OUT;
    CHECK(inotify_add_watch(watch, name, IN_MODIFY) >= 0);
    CHECK(close(watch) == 0);
    OUT;
    int memory = memfd_create(key, 0);
    CHECK(memory >= 0 && ftruncate(memory, 8192) == 0);
    off64_t *at = AT(4), *there = AT(5);
    *at = 4096, *there = 100;
    CHECK(ftruncate(fd, 8192) == 0);
    OUT;
    CHECK(copy_file_range(memory, at, fd, there, 1000, 0) == 1000 ? *at == 5096 && *there == 1100 : errno == EXDEV);
    *at = 0;
    OUT;
    CHECK(sendfile(fd, memory, at, 500) == 500 && *at == 500);
    CHECK(pipe(ends) == 0);
    *at = 4096;
    OUT;
    CHECK(splice(memory, at, ends[1], NULL, 300, 0) == 300 && *at == 4396);
    struct iovec *list = AT(6);
    list[0] = (struct iovec){AT(0), 7};
    OUT;
    CHECK(vmsplice(ends[1], list, 1, 0) == 7);
    OUT;
    list[0] = (struct iovec){AT(4), 300};
    OUT;
    CHECK(preadv2(memory, list, 1, 0, 0) == 300);
    struct iovec *here = AT(5), *there_too = AT(3);
    here[0] = (struct iovec){region + 100, 1000};
    there_too[0] = (struct iovec){region + 7 * FOLIO, 1000};
    fill(region + 7 * FOLIO, 1000, 3);
    OUT;
    CHECK(process_vm_readv(getpid(), here, 1, there_too, 1, 0) == 1000);
    CHECK(!memcmp(region + 100, region + 7 * FOLIO, 1000));
    OUT;
    CHECK(pwritev2(memory, list, 1, 0, 0) == 300);
    close(ends[0]);
    close(ends[1]);
    close(memory);
    close(fd);
    OUT;
    FILE *stream = freopen(name, "r", fopen("/dev/null", "r"));
    CHECK(stream && fclose(stream) == 0);
    CHECK(unlink(name) == 0 && unlink(other) == 0);
}

static void finish(struct aiocb *request, ssize_t expected) {
    const struct aiocb **list = AT(5);
    list[0] = request;
    while (aio_error(request) == EINPROGRESS) {
        CHECK(aio_suspend(list, 1, NULL) == 0 || errno == EINTR);
    }
    CHECK(aio_error(request) == 0 && aio_return(request) == expected);
}

static void asynchronous(void) {
    const char *folder = getenv("TEST_FOLDER");
    int fd = open(folder ? folder : "/var/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(fd >= 0);
    struct aiocb *one = AT(0), *two = AT(1);
    fill(region + 2 * FOLIO, MIB, 9);
    *one = (struct aiocb){.aio_fildes = fd, .aio_buf = region + 2 * FOLIO, .aio_nbytes = MIB};
    OUT;
    CHECK(aio_write(one) == 0);
    finish(one, MIB);
    *two = (struct aiocb){.aio_fildes = fd, .aio_buf = region + 4 * FOLIO, .aio_nbytes = MIB, .aio_lio_opcode = LIO_READ};
    OUT;
    CHECK(aio_read(two) == 0);
    finish(two, MIB);
    CHECK(holds(region + 4 * FOLIO, MIB, 9));
    struct aiocb **list = AT(6);
    list[0] = two;
    memset(region + 4 * FOLIO, 0, MIB);
    OUT;
    CHECK(lio_listio(LIO_WAIT, list, 1, NULL) == 0);
    finish(two, MIB);
    CHECK(holds(region + 4 * FOLIO, MIB, 9));
    OUT; /* nothing is held any more */
    close(fd);
}

static void times_and_waits(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(3);
    int *told = AT(0);
    OUT;
    CHECK(wait(told) == child && WEXITSTATUS(*told) == 3);
    struct itimerspec *new = AT(1), *old = AT(2);
    *new = (struct itimerspec){.it_value = {1000, 0}};
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    OUT;
    CHECK(timerfd_settime(fd, 0, new, old) == 0 && old->it_value.tv_sec == 0);
    OUT;
    CHECK(timerfd_settime(fd, 0, new, old) == 0 && old->it_value.tv_sec > 0);
    OUT;
    CHECK(timerfd_gettime(fd, old) == 0 && old->it_value.tv_sec > 0);
    close(fd);
    struct sigevent *event = AT(3);
    timer_t *timer = AT(4);
    *event = (struct sigevent){.sigev_notify = SIGEV_NONE};
    OUT;
    CHECK(timer_create(CLOCK_MONOTONIC, event, timer) == 0);
    timer_t made = *timer;
    OUT;
    CHECK(timer_settime(made, 0, new, old) == 0);
    OUT;
    CHECK(timer_gettime(made, old) == 0 && old->it_value.tv_sec > 0 && timer_delete(made) == 0);
    struct timespec *time = AT(5);
    OUT;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, time) == 0);
    OUT;
    CHECK(clock_getres(CLOCK_MONOTONIC, time) == 0 && time->tv_nsec > 0);
    struct timex *clock = AT(6);
    memset(clock, 0, sizeof *clock);
    OUT;
    CHECK(adjtimex(clock) >= 0 && clock->tick > 0);
    sigset_t *set = AT(1);
    sigemptyset(set);
    sigaddset(set, SIGUSR2);
    OUT;
    CHECK((fd = signalfd(-1, set, 0)) >= 0);
    close(fd);
    OUT;
    CHECK(sigpending(AT(2)) == 0 && sigismember(AT(2), SIGUSR2) == 0);
    cpu_set_t *cpus = AT(1);
    OUT;
    CHECK(pthread_getaffinity_np(pthread_self(), sizeof *cpus, cpus) == 0 && CPU_COUNT(cpus) > 0);
    OUT;
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof *cpus, cpus) == 0);
    strcpy(AT(1), "named");
    OUT;
    CHECK(pthread_setname_np(pthread_self(), AT(1)) == 0);
    OUT;
    CHECK(pthread_getname_np(pthread_self(), AT(2), 16) == 0 && !strcmp(AT(2), "named"));
    int epoll = epoll_create1(0), ready = eventfd(0, 0);
    struct epoll_event *one = AT(1);
    *one = (struct epoll_event){.events = EPOLLOUT, .data.u64 = 42};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ready, one) == 0);
    *time = (struct timespec){0, 0};
    one->data.u64 = 0;
    OUT;
    CHECK(epoll_pwait2(epoll, one, 1, time, NULL) == 1 && one->data.u64 == 42);
    close(epoll);
    close(ready);
    mqd_t queue;
    struct mq_attr *state = AT(1);
    *state = (struct mq_attr){.mq_maxmsg = 2, .mq_msgsize = 100};
    sprintf(AT(2), "/calls-%d", getpid());
    OUT;
    if ((queue = mq_open(AT(2), O_CREAT | O_RDWR | O_EXCL, 0600, state)) != (mqd_t)-1) {
        OUT;
        CHECK(mq_unlink(AT(2)) == 0);
        strcpy(AT(3), "hello");
        OUT;
        CHECK(mq_send(queue, AT(3), 5, 4) == 0);
        OUT;
        CHECK(mq_receive(queue, AT(4), 100, AT(5)) == 5 && *(unsigned *)AT(5) == 4);
        mq_close(queue);
    }
}

int main(void) {
    region = map(len);
    memset(region, 0, len);
    sleeping();
    cancelled();
    long_ones();
    paths();
    asynchronous();
    times_and_waits();
    return 0;
}
