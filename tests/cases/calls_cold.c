// EXPECT: exit 0, last line "ok"
// LIMIT_S: 240
// System calls on memory that is out of RAM, and on memory without access, do what they do with small mappings, which
// are not managed: result, error and every byte. Each is made through syscall() and by an instruction of the program's.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define PAGE 4096ul
#define WINDOW (64 * PAGE)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
/* Objects lie at the end of a page, so most reach into the next. */
#define AT(index) ((void *)(m + (index) * 4 * PAGE + PAGE - 8))
#define NR_OBJECTS 6
static int is_inline, is_out, bad_object, bad_access, bad_page;
static long make(long number, long a, long b, long c, long d, long e, long f) {
    if (!is_inline) {
        long result = syscall(number, a, b, c, d, e, f);
        return result == -1 ? -errno : result;
    }
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
/* Called when the arguments are there: then they leave RAM, and one becomes inaccessible. */
static void ready(char *m) {
    if (is_out)
        madvise(m, WINDOW, MADV_PAGEOUT);
    if (bad_object >= 0)
        CHECK(mprotect(m + (bad_object * 4 + bad_page) * PAGE, PAGE, bad_access) == 0);
}
#define CALL(number, ...) CALL_(number, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_(number, a, b, c, d, e, f, ...) (ready(m), make(SYS_##number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)))
#define TEXT(index, text) strcpy(AT(index), text)
#define SET(index, type, ...) (*(type *)AT(index) = (type)__VA_ARGS__)
static long closed(long fd) {
    if (fd >= 0)
        close(fd);
    return fd >= 0 ? 0 : fd;
}
static int file, directory, pair[2], stream[2], queue, semaphores, segment, watch, event, timer, polled, signals;
static const char *folder;
#define TEST(name) static long name(char *m)
TEST(t_openat) { TEXT(0, "/etc/passwd"); return closed(CALL(openat, AT_FDCWD, AT(0), O_RDONLY)); }
TEST(t_stat) { TEXT(0, "/"); return CALL(stat, AT(0), AT(1)); }
TEST(t_newfstatat) { TEXT(0, "etc/../."); return CALL(newfstatat, directory, AT(0), AT(1), 0); }
TEST(t_fstat) { return CALL(fstat, directory, AT(1)); }
TEST(t_statx) { TEXT(0, "/"); return CALL(statx, AT_FDCWD, AT(0), 0, STATX_BASIC_STATS, AT(1)); }
TEST(t_statfs) { TEXT(0, "/proc"); return CALL(statfs, AT(0), AT(1)); }
TEST(t_readlink) { TEXT(0, "/proc/self/exe"); return CALL(readlink, AT(0), AT(1), 100); }
TEST(t_readlinkat) { TEXT(0, "/proc/self/exe"); return CALL(readlinkat, AT_FDCWD, AT(0), AT(1), 5000); }
TEST(t_getcwd) { return CALL(getcwd, AT(0), 4000); }
TEST(t_access) { TEXT(0, "/nowhere/at/all"); return CALL(access, AT(0), R_OK); }
TEST(t_getdents) { lseek(directory, 0, SEEK_SET); return CALL(getdents64, directory, AT(0), 6000); }
TEST(t_rename) { sprintf(AT(0), "%s/cold-a", folder), sprintf(AT(1), "%s/cold-b", folder); return CALL(rename, AT(0), AT(1)); }
TEST(t_utimensat) { TEXT(0, "/nowhere"); SET(1, struct timespec, {1, 2}); return CALL(utimensat, AT_FDCWD, AT(0), AT(1), 0); }
TEST(t_futimens) { SET(1, struct timespec, {1, 2}); return CALL(utimensat, file, 0, AT(1), 0); }
TEST(t_getxattr) { TEXT(0, "/etc/passwd"); TEXT(1, "user.none"); return CALL(getxattr, AT(0), AT(1), AT(2), 50); }
TEST(t_fsetxattr) { TEXT(1, "user.none"); TEXT(2, "value"); return CALL(fsetxattr, file, AT(1), AT(2), 5, 0); }
TEST(t_memfd) { TEXT(0, "name"); return closed(CALL(memfd_create, AT(0), 0)); }
TEST(t_handle) { TEXT(0, "/etc/passwd"); SET(1, unsigned, 0); long r = CALL(name_to_handle_at, AT_FDCWD, AT(0), AT(1), AT(2), 0); return r; }
TEST(t_inotify) { TEXT(0, "/etc/passwd"); long r = CALL(inotify_add_watch, watch, AT(0), IN_MODIFY); return r > 0 ? 0 : r; }
TEST(t_pread) { return CALL(pread64, file, AT(0), 20000, 100); }
TEST(t_pread_end) { return CALL(pread64, file, AT(0), 5000, 1 << 20); }
TEST(t_preadv) { SET(0, struct iovec, {AT(1), 3000}); ((struct iovec *)AT(0))[1] = (struct iovec){AT(2), 9000}; return CALL(preadv, file, AT(0), 2, 7); }
TEST(t_pwrite) { memset(AT(0), 7, 9000); return CALL(pwrite64, file, AT(0), 9000, 30000); }
TEST(t_pwritev) { SET(0, struct iovec, {AT(1), 3000}); ((struct iovec *)AT(0))[1] = (struct iovec){AT(2), 4000}; return CALL(pwritev, file, AT(0), 2, 50000); }
TEST(t_preadv2) { SET(0, struct iovec, {AT(1), 3000}); return CALL(preadv2, file, AT(0), 1, 5, 0, 0); }
static long emptied(long result) { char b[65536]; while (read(pair[0], b, sizeof b) > 0); return result; }
TEST(t_pipe_write) { memset(AT(0), 5, 9000); return emptied(CALL(write, pair[1], AT(0), 9000)); }
TEST(t_pipe_read) { char b[9000] = {1}; CHECK(write(pair[1], b, 9000) == 9000); return emptied(CALL(read, pair[0], AT(0), 9000)); }
TEST(t_vmsplice) { if (bad_object == 1 && bad_page == 1) return 0; /* the kernel takes a part */ SET(0, struct iovec, {AT(1), 3000}); return emptied(CALL(vmsplice, pair[1], AT(0), 1, 0)); }
TEST(t_copy_range) { SET(0, long, 0); SET(1, long, 60000); return CALL(copy_file_range, file, AT(0), file, AT(1), 1000, 0); }
TEST(t_sendfile) { SET(0, long, 5); return emptied(CALL(sendfile, pair[1], file, AT(0), 100)); }
TEST(t_splice) { SET(0, long, 5); return emptied(CALL(splice, file, AT(0), pair[1], 0, 100, 0)); }
TEST(t_fcntl_lock) { SET(0, struct flock, {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5}); return CALL(fcntl, file, F_OFD_GETLK, AT(0)); }
TEST(t_owner) { return CALL(fcntl, stream[0], F_GETOWN_EX, AT(0)); }
TEST(t_fionread) { return CALL(ioctl, stream[0], FIONREAD, AT(0)); }
TEST(t_fionbio) { SET(0, int, 0); return CALL(ioctl, stream[0], FIONBIO, AT(0)); }
TEST(t_pipe2) { long r = CALL(pipe2, AT(0), 0); if (r == 0) { int *p = AT(0); CHECK(mprotect(m, WINDOW, 3) == 0); close(p[0]), close(p[1]), memset(p, 0, 8); } return r; }
TEST(t_socketpair) { long r = CALL(socketpair, AF_UNIX, SOCK_STREAM, 0, AT(0)); if (r == 0) { int *p = AT(0); CHECK(mprotect(m, WINDOW, 3) == 0); close(p[0]), close(p[1]), memset(p, 0, 8); } return r; }
TEST(t_getsockname) { SET(1, socklen_t, 100); return CALL(getsockname, stream[0], AT(0), AT(1)); }
TEST(t_getpeername) { SET(1, socklen_t, 1); return CALL(getpeername, stream[0], AT(0), AT(1)); }
TEST(t_getsockopt) { SET(1, socklen_t, 4); return CALL(getsockopt, stream[0], SOL_SOCKET, SO_TYPE, AT(0), AT(1)); }
TEST(t_setsockopt) { SET(0, struct timeval, {1, 0}); return CALL(setsockopt, stream[0], SOL_SOCKET, SO_RCVTIMEO, AT(0), 16); }
TEST(t_bind) { SET(0, struct sockaddr_un, {AF_UNIX, "/nowhere/at/all"}); int s = socket(AF_UNIX, SOCK_DGRAM, 0); long r = CALL(bind, s, AT(0), sizeof(struct sockaddr_un)); close(s); return r; }
TEST(t_connect) { SET(0, struct sockaddr_un, {AF_UNIX, "/nowhere/at/all"}); int s = socket(AF_UNIX, SOCK_STREAM, 0); long r = CALL(connect, s, AT(0), sizeof(struct sockaddr_un)); close(s); return r; }
static long received(long result) { char b[65536]; while (recv(stream[0], b, sizeof b, MSG_DONTWAIT) >= 0); return result; }
TEST(t_sendto) { memset(AT(0), 3, 5000); return received(CALL(sendto, stream[1], AT(0), 5000, 0, 0, 0)); }
TEST(t_recvfrom) { CHECK(send(stream[1], "hello", 5, 0) == 5); SET(2, socklen_t, 100); return received(CALL(recvfrom, stream[0], AT(0), 5000, MSG_DONTWAIT, AT(1), AT(2))); }
static void message(char *m, int index) {
    SET(0 + index, struct iovec, {AT(1 + index), 100});
    SET(2 + index, struct mmsghdr, {{.msg_iov = AT(0 + index), .msg_iovlen = 1, .msg_control = 0}, 0});
}
TEST(t_sendmsg) { message(m, 0); return received(CALL(sendmsg, stream[1], AT(2), 0)); }
TEST(t_recvmsg) { CHECK(send(stream[1], "hello", 5, 0) == 5); message(m, 0); return received(CALL(recvmsg, stream[0], AT(2), MSG_DONTWAIT)); }
TEST(t_sendmmsg) { message(m, 0); return received(CALL(sendmmsg, stream[1], AT(2), 1, 0)); }
TEST(t_recvmmsg) { CHECK(send(stream[1], "hello", 5, 0) == 5); message(m, 0); SET(3, struct timespec, {1, 0}); long r = received(CALL(recvmmsg, stream[0], AT(2), 1, MSG_DONTWAIT, AT(3))); CHECK(mprotect(m, WINDOW, 3) == 0); memset(AT(3), 0, 16); return r; }
TEST(t_poll) { SET(0, struct pollfd, {stream[1], POLLOUT, 0}); return CALL(poll, AT(0), 1, 0); }
TEST(t_poll_two) { SET(0, struct pollfd, {stream[1], POLLOUT, 0}); ((struct pollfd *)AT(0))[1] = (struct pollfd){file, POLLIN, 0}; return CALL(poll, AT(0), 2, 0); }
TEST(t_ppoll) { SET(0, struct pollfd, {stream[1], POLLOUT, 0}); SET(1, struct timespec, {0, 0}); SET(2, long, 0); return CALL(ppoll, AT(0), 1, AT(1), AT(2), 8); }
TEST(t_select) { FD_ZERO((fd_set *)AT(0)); FD_SET(stream[1], (fd_set *)AT(0)); SET(1, struct timeval, {0, 0}); return CALL(select, stream[1] + 1, 0, AT(0), 0, AT(1)); }
TEST(t_pselect) { FD_ZERO((fd_set *)AT(0)); FD_SET(stream[1], (fd_set *)AT(0)); SET(1, struct timespec, {0, 0}); ((long *)AT(2))[0] = (long)AT(3), ((long *)AT(2))[1] = 8; SET(3, long, 0); return CALL(pselect6, stream[1] + 1, 0, AT(0), 0, AT(1), AT(2)) ; }
TEST(t_epoll_ctl) { SET(0, struct epoll_event, {EPOLLOUT, {.u64 = 5}}); long r = CALL(epoll_ctl, polled, EPOLL_CTL_MOD, stream[1], AT(0)); return r; }
TEST(t_epoll_wait) { return CALL(epoll_wait, polled, AT(0), 3, 0); }
TEST(t_epoll_pwait2) { SET(1, struct timespec, {0, 0}); SET(2, long, 0); return CALL(epoll_pwait2, polled, AT(0), 3, AT(1), AT(2), 8); }
TEST(t_nanosleep) { SET(0, struct timespec, {0, 1000}); return CALL(nanosleep, AT(0), AT(1)); }
TEST(t_clock_nanosleep) { SET(0, struct timespec, {0, 1000}); return CALL(clock_nanosleep, CLOCK_MONOTONIC, 0, AT(0), AT(1)); }
TEST(t_clock_gettime) { return CALL(clock_gettime, CLOCK_MONOTONIC, AT(0)); }
TEST(t_clock_getres) { return CALL(clock_getres, CLOCK_MONOTONIC, AT(0)); }
TEST(t_gettimeofday) { return CALL(gettimeofday, AT(0), AT(1)); }
TEST(t_time) { long r = CALL(time, AT(0)); return r > 0 ? 0 : r; }
TEST(t_times) { long r = CALL(times, AT(0)); return r > 0 ? 0 : r; }
TEST(t_adjtimex) { SET(0, struct timex, {0}); long r = CALL(adjtimex, AT(0)); return r < 0 ? r : 0; }
TEST(t_timer_create) { SET(0, struct sigevent, {.sigev_notify = SIGEV_NONE}); long r = CALL(timer_create, CLOCK_MONOTONIC, AT(0), AT(1)); if (r == 0) { CHECK(mprotect(m, WINDOW, 3) == 0); make(SYS_timer_delete, *(int *)AT(1), 0, 0, 0, 0, 0); *(int *)AT(1) = 0; } return r; }
TEST(t_timerfd_settime) { SET(0, struct itimerspec, {{0, 0}, {1000, 0}}); return CALL(timerfd_settime, timer, 0, AT(0), 0); }
TEST(t_timerfd_gettime) { return CALL(timerfd_gettime, timer, AT(0)); }
TEST(t_setitimer) { SET(0, struct itimerval, {{0, 0}, {0, 0}}); return CALL(setitimer, ITIMER_REAL, AT(0), AT(1)); }
TEST(t_getitimer) { return CALL(getitimer, ITIMER_REAL, AT(0)); }
static pid_t child(void) { pid_t pid = vfork(); if (pid == 0) _exit(6); return pid; }
TEST(t_wait4) { pid_t pid = child(); long r = CALL(wait4, pid, AT(0), 0, 0); CHECK(mprotect(m, WINDOW, 3) == 0); waitpid(pid, 0, WNOHANG); return r == pid ? 0 : r; }
TEST(t_wait4_usage) { pid_t pid = child(); long r = CALL(wait4, pid, 0, 0, AT(1)); waitpid(pid, 0, WNOHANG); return r == pid ? 0 : r; }
TEST(t_waitid) { pid_t pid = child(); long r = CALL(waitid, P_PID, pid, AT(0), WEXITED, AT(1)); waitpid(pid, 0, WNOHANG); return r; }
TEST(t_getrusage) { return CALL(getrusage, RUSAGE_SELF, AT(0)); }
TEST(t_prlimit) { SET(0, struct rlimit, {RLIM_INFINITY, RLIM_INFINITY}); return CALL(prlimit64, 0, RLIMIT_CORE + 100, AT(0), AT(1)); }
TEST(t_prlimit_get) { return CALL(prlimit64, 0, RLIMIT_STACK, 0, AT(1)); }
TEST(t_getrlimit) { return CALL(getrlimit, RLIMIT_STACK, AT(1)); }
TEST(t_uname) { return CALL(uname, AT(0)); }
TEST(t_sysinfo) { return CALL(sysinfo, AT(0)); }
TEST(t_getaffinity) { return CALL(sched_getaffinity, 0, 128, AT(0)); }
TEST(t_setaffinity) { memset(AT(0), 255, 128); return CALL(sched_setaffinity, 0, 128, AT(0)); }
TEST(t_getparam) { return CALL(sched_getparam, 0, AT(0)); }
TEST(t_setscheduler) { SET(0, int, 0); return CALL(sched_setscheduler, 0, SCHED_OTHER, AT(0)); }
TEST(t_getattr) { return CALL(sched_getattr, 0, AT(0), 48, 0); }
TEST(t_setattr) { memset(AT(0), 0, 48); SET(0, unsigned, 48); return CALL(sched_setattr, 0, AT(0), 0); }
TEST(t_interval) { return CALL(sched_rr_get_interval, 0, AT(0)); }
TEST(t_getcpu) { return CALL(getcpu, AT(0), AT(1)); }
TEST(t_getgroups) { return CALL(getgroups, 1000, AT(0)); }
TEST(t_getresuid) { return CALL(getresuid, AT(0), AT(1), AT(2)); }
TEST(t_capget) { ((int *)AT(0))[0] = _LINUX_CAPABILITY_VERSION_3, ((int *)AT(0))[1] = 0; return CALL(capget, AT(0), AT(1)); }
TEST(t_get_name) { return CALL(prctl, PR_GET_NAME, AT(0)); }
TEST(t_set_name) { TEXT(0, "calls_cold"); return CALL(prctl, PR_SET_NAME, AT(0)); }
TEST(t_death_signal) { return CALL(prctl, PR_GET_PDEATHSIG, AT(0)); }
TEST(t_get_fs) { return CALL(arch_prctl, 0x1003, AT(0)); }
TEST(t_robust_list) { return CALL(get_robust_list, 0, AT(0), AT(1)); }
TEST(t_futex_wait) { SET(0, int, 5); SET(1, struct timespec, {0, 1000}); return CALL(futex, AT(0), FUTEX_WAIT, 5, AT(1)); }
TEST(t_futex_other) { SET(0, int, 5); SET(1, struct timespec, {0, 1000}); return CALL(futex, AT(0), FUTEX_WAIT_PRIVATE, 6, AT(1)); }
TEST(t_futex_wake) { return CALL(futex, AT(0), FUTEX_WAKE_PRIVATE, 1); }
TEST(t_futex_requeue) { SET(0, int, 5); return CALL(futex, AT(0), FUTEX_CMP_REQUEUE_PRIVATE, 1, 1, AT(1), 5); }
TEST(t_futex_op) { SET(1, int, 5); return CALL(futex, AT(0), FUTEX_WAKE_OP_PRIVATE, 1, 1, AT(1), FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 5)); }
TEST(t_futex_waitv) { uint64_t *v = AT(0); v[0] = 6, v[1] = (long)AT(1), v[2] = 2 | 128; SET(1, int, 5); return CALL(futex_waitv, AT(0), 1, 0, 0, 0); }
TEST(t_sigaction) { memset(AT(0), 0, 32); return CALL(rt_sigaction, SIGUSR2, AT(0), AT(1), 8); }
TEST(t_sigprocmask) { SET(0, long, 0); return CALL(rt_sigprocmask, SIG_BLOCK, AT(0), AT(1), 8); }
TEST(t_sigpending) { return CALL(rt_sigpending, AT(0), 8); }
TEST(t_sigtimedwait) { SET(0, long, 1l << (SIGRTMIN + 1)); SET(1, struct timespec, {0, 0}); return CALL(rt_sigtimedwait, AT(0), AT(2), AT(1), 8); }
TEST(t_sigqueue) { SET(0, siginfo_t, {.si_signo = SIGURG, .si_code = SI_QUEUE}); return CALL(rt_sigqueueinfo, getpid(), SIGURG, AT(0)); }
TEST(t_sigaltstack) { return CALL(sigaltstack, 0, AT(1)); }
TEST(t_signalfd) { SET(0, long, 1l << (SIGRTMIN + 1)); return closed(CALL(signalfd4, -1, AT(0), 8, 0)); }
TEST(t_signalfd_read) { CHECK(kill(getpid(), SIGRTMIN + 3) == 0); long r = CALL(read, signals, AT(0), 128); struct signalfd_siginfo_ { char b[128]; } s; (void)!read(signals, &s, 128); return r; }
TEST(t_eventfd) { SET(0, long, 7); long r = CALL(write, event, AT(0), 8); uint64_t v; (void)!read(event, &v, 8); return r; }
TEST(t_eventfd_read) { uint64_t v = 3; CHECK(write(event, &v, 8) == 8); long r = CALL(read, event, AT(0), 8); (void)!read(event, &v, 8); return r; }
static struct { long kind; char text[100]; } mail;
TEST(t_msgsnd) { SET(0, long, 5); long r = CALL(msgsnd, queue, AT(0), 50, IPC_NOWAIT); msgrcv(queue, &mail, 100, 0, IPC_NOWAIT); return r; }
TEST(t_msgrcv) { mail.kind = 3; msgsnd(queue, &mail, 50, 0); long r = CALL(msgrcv, queue, AT(0), 100, 0, IPC_NOWAIT); msgrcv(queue, &mail, 100, 0, IPC_NOWAIT); return r; }
TEST(t_msgctl) { return CALL(msgctl, queue, IPC_STAT, AT(0)); }
TEST(t_semop) { SET(0, struct sembuf, {0, 1, IPC_NOWAIT}); long r = CALL(semop, semaphores, AT(0), 1); semctl(semaphores, 0, SETVAL, 0); return r; }
TEST(t_semtimedop) { SET(0, struct sembuf, {0, -1, 0}); SET(1, struct timespec, {0, 1000}); return CALL(semtimedop, semaphores, AT(0), 1, AT(1)); }
TEST(t_semctl) { return CALL(semctl, semaphores, 0, GETALL, AT(0)); }
TEST(t_shmctl) { return CALL(shmctl, segment, IPC_STAT, AT(0)); }
TEST(t_mq_open) { TEXT(0, "calls-cold"); SET(1, struct mq_attr, {.mq_maxmsg = 3, .mq_msgsize = 100}); long r = closed(CALL(mq_open, AT(0), O_CREAT | O_RDWR, 0600, AT(1))); mq_unlink("/calls-cold"); return r; }
TEST(t_mempolicy) { return CALL(get_mempolicy, AT(0), AT(1), 64 * 1024, 0, 0); }
TEST(t_mincore) { return CALL(mincore, m, PAGE, AT(0)); }
TEST(t_vm_read) { SET(0, struct iovec, {AT(1), 50}); SET(2, struct iovec, {AT(3), 50}); memset(AT(3), 4, 50); return CALL(process_vm_readv, getpid(), AT(0), 1, AT(2), 1, 0); }
TEST(t_vm_write) { SET(0, struct iovec, {AT(1), 50}); SET(2, struct iovec, {AT(3), 50}); memset(AT(1), 4, 50); return CALL(process_vm_writev, getpid(), AT(0), 1, AT(2), 1, 0); }
TEST(t_getrandom) { return CALL(getrandom, AT(0), 300, 0); }
TEST(t_add_key) { TEXT(0, "nothing"); TEXT(1, "name"); TEXT(2, "value"); return CALL(add_key, AT(0), AT(1), AT(2), 5, -4); }
TEST(t_mount) { TEXT(0, "none"); TEXT(1, "/nowhere/at/all"); TEXT(2, "tmpfs"); return CALL(mount, AT(0), AT(1), AT(2), 0, 0); }
TEST(t_execve) { TEXT(0, "/nowhere/at/all"); ((void **)AT(1))[0] = AT(2), ((void **)AT(1))[1] = 0; TEXT(2, "a"); return CALL(execve, AT(0), AT(1), AT(1)); }
/* `is_volatile`: the bytes that it gives may differ from call to call. */
static struct { const char *name; long (*run)(char *); int is_volatile; } tests[] = {
#define ONE(name) {#name, name, 0}
#define VOLATILE(name) {#name, name, 1}
    ONE(t_openat), VOLATILE(t_stat), VOLATILE(t_newfstatat), VOLATILE(t_fstat), VOLATILE(t_statx), ONE(t_statfs), ONE(t_readlink), ONE(t_readlinkat), ONE(t_getcwd),
    ONE(t_access), ONE(t_getdents), ONE(t_rename), ONE(t_utimensat), ONE(t_futimens), ONE(t_getxattr), ONE(t_fsetxattr), ONE(t_memfd), ONE(t_handle),
    ONE(t_inotify), ONE(t_pread), ONE(t_pread_end), ONE(t_preadv), ONE(t_pwrite), ONE(t_pwritev), ONE(t_preadv2), ONE(t_pipe_write), ONE(t_pipe_read),
    ONE(t_vmsplice), ONE(t_copy_range), ONE(t_sendfile), ONE(t_splice), ONE(t_fcntl_lock), ONE(t_owner), ONE(t_fionread), ONE(t_fionbio), ONE(t_pipe2),
    ONE(t_socketpair), ONE(t_getsockname), ONE(t_getpeername), ONE(t_getsockopt), ONE(t_setsockopt), ONE(t_bind), ONE(t_connect), ONE(t_sendto),
    ONE(t_recvfrom), ONE(t_sendmsg), ONE(t_recvmsg), ONE(t_sendmmsg), ONE(t_recvmmsg), ONE(t_poll), ONE(t_poll_two), ONE(t_ppoll), ONE(t_select),
    ONE(t_pselect), ONE(t_epoll_ctl), ONE(t_epoll_wait), ONE(t_epoll_pwait2), ONE(t_nanosleep), ONE(t_clock_nanosleep), VOLATILE(t_clock_gettime),
    ONE(t_clock_getres), VOLATILE(t_gettimeofday), VOLATILE(t_time), VOLATILE(t_times), VOLATILE(t_adjtimex), ONE(t_timer_create), ONE(t_timerfd_settime),
    VOLATILE(t_timerfd_gettime), ONE(t_setitimer), ONE(t_getitimer), ONE(t_wait4), VOLATILE(t_wait4_usage), VOLATILE(t_waitid), VOLATILE(t_getrusage),
    ONE(t_prlimit), ONE(t_prlimit_get), ONE(t_getrlimit), ONE(t_uname), VOLATILE(t_sysinfo), ONE(t_getaffinity), ONE(t_setaffinity), ONE(t_getparam),
    ONE(t_setscheduler), ONE(t_getattr), ONE(t_setattr), ONE(t_interval), VOLATILE(t_getcpu), ONE(t_getgroups), ONE(t_getresuid), ONE(t_capget),
    ONE(t_get_name), ONE(t_set_name), ONE(t_death_signal), ONE(t_get_fs), ONE(t_robust_list), ONE(t_futex_wait), ONE(t_futex_other), ONE(t_futex_wake),
    ONE(t_futex_requeue), ONE(t_futex_op), ONE(t_futex_waitv), ONE(t_sigaction), ONE(t_sigprocmask), ONE(t_sigpending), ONE(t_sigtimedwait), ONE(t_sigqueue),
    ONE(t_sigaltstack), ONE(t_signalfd), VOLATILE(t_signalfd_read), ONE(t_eventfd), ONE(t_eventfd_read), ONE(t_msgsnd), ONE(t_msgrcv), VOLATILE(t_msgctl),
    ONE(t_semop), ONE(t_semtimedop), ONE(t_semctl), VOLATILE(t_shmctl), ONE(t_mq_open), ONE(t_mempolicy), VOLATILE(t_mincore), ONE(t_vm_read), ONE(t_vm_write),
    VOLATILE(t_getrandom), ONE(t_add_key), ONE(t_mount), ONE(t_execve),
};
static int failures;
static void both(char *small, char *large, int index, int is_bad) {
    char *each[2] = {small, large};
    long results[2];
    for (int i = 0; i < 2; i++) {
        memset(each[i], 0, WINDOW);
        is_out = 1;
        results[i] = tests[index].run(each[i]);
        CHECK(mprotect(each[i], WINDOW, PROT_READ | PROT_WRITE) == 0);
    }
    size_t at = WINDOW;
    if (!tests[index].is_volatile && results[0] != -EFAULT) /* what was written before the error is not specified */
        for (at = 0; at < WINDOW && small[at] == large[at]; at++)
            /* Addresses of the window itself differ. */
            if (at % 8 == 0 && *(long *)(small + at) - (long)small == *(long *)(large + at) - (long)large)
                at += 7;
    if (results[0] != results[1] || at < WINDOW) {
        printf("%s %s, object %d page %d access %d: %ld, and %ld with memory that is out; byte %zu\n", tests[index].name,
               is_inline ? "inline" : "syscall", is_bad ? bad_object : -1, bad_page, bad_access, results[0], results[1], at);
        failures++;
    }
}
int main(int count, char **arguments) {
    folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
    char name[4096];
    snprintf(name, sizeof name, "%s/coldXXXXXX", folder);
    file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, 100000) == 0);
    for (int i = 0; i < 100000; i++)
        CHECK(i % 10000 || pwrite(file, &i, 4, i) == 4);
    CHECK((directory = open("/", O_RDONLY | O_DIRECTORY)) >= 0 && pipe2(pair, O_NONBLOCK) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, stream) == 0 && fcntl(stream[1], F_SETFL, O_NONBLOCK) == 0);
    queue = msgget(IPC_PRIVATE, 0600), semaphores = semget(IPC_PRIVATE, 2, 0600), segment = shmget(IPC_PRIVATE, 4096, 0600);
    watch = inotify_init(), event = eventfd(0, EFD_NONBLOCK), timer = timerfd_create(CLOCK_MONOTONIC, 0), polled = epoll_create1(0);
    struct epoll_event out = {EPOLLOUT, {.u64 = 5}};
    CHECK(epoll_ctl(polled, EPOLL_CTL_ADD, stream[1], &out) == 0);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 3);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    signals = syscall(SYS_signalfd4, -1, &set, 8, O_NONBLOCK);
    char *small = mmap(0, WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *large = mmap(0, 6l << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(small != MAP_FAILED && large != MAP_FAILED);
    large += 3l << 20;
    int only = count > 1;
    for (is_inline = 0; is_inline < 2; is_inline++)
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
            if (only && strcmp(arguments[1], tests[i].name))
                continue;
            bad_object = -1;
            both(small, large, i, 0);
            for (bad_object = 0; bad_object < NR_OBJECTS - 2; bad_object++)
                for (bad_page = 0; bad_page < 2; bad_page++)
                    for (bad_access = 0; bad_access < 2; bad_access++)
                        both(small, large, i, 1);
            bad_object = -1;
        }
    msgctl(queue, IPC_RMID, 0), semctl(semaphores, 0, IPC_RMID), shmctl(segment, IPC_RMID, 0);
    if (failures == 0)
        puts("ok");
    return failures != 0;
}
