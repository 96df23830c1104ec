//! System calls that the C library's functions make as they are: one row a call. Both entrances are made from it, the
//! exported functions and the calls by number ([`arguments`]).
//!
//! A row names the functions, the number, the arguments, and for each pointer what it points to (see
//! [`copied`](crate::calls::copied)). The call is made once, with copies, so that it takes effect once: a child is
//! reaped, a connection taken, a timer set. What is of unknown layout is faulted in, and again if the kernel missed a
//! page. Functions that differ from the call of their name, and functions that make several calls, are in the other
//! files; calls without a function, or with code of their own, are in [`numbers`](crate::calls::numbers).

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    clockid_t, dev_t, epoll_event, gid_t, itimerspec, itimerval, mode_t, mq_attr, mqd_t, off_t, off64_t, pid_t, rusage,
    sched_param, siginfo_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, timex, uid_t, utimbuf, utsname,
};

use crate::calls::copied::{Argument, calls};
use crate::memory::cover::UNKNOWN_BYTES;

type Text = *const c_char;

calls! {
    // Files by their paths.
    fn linkat = SYS_linkat(a: c_int, from: Text = text, b: c_int, to: Text = text, flags: c_int) -> c_int;
    fn symlinkat = SYS_symlinkat(from: Text = text, at: c_int, to: Text = text) -> c_int;
    fn renameat2 = SYS_renameat2(a: c_int, from: Text = text, b: c_int, to: Text = text, flags: c_uint) -> c_int;
    fn fchownat = SYS_fchownat(at: c_int, path: Text = text, user: uid_t, group: gid_t, flags: c_int) -> c_int;
    fn lchown = SYS_lchown(path: Text = text, user: uid_t, group: gid_t) -> c_int;
    fn fchmodat = SYS_fchmodat(at: c_int, path: Text = text, mode: mode_t, flags: c_int) -> c_int;
    fn mknod = SYS_mknod(path: Text = text, mode: mode_t, device: dev_t) -> c_int;
    fn mknodat = SYS_mknodat(at: c_int, path: Text = text, mode: mode_t, device: dev_t) -> c_int;
    fn utime = SYS_utime(path: Text = text, times: *const utimbuf = value) -> c_int;
    fn utimes = SYS_utimes(path: Text = text, times: *const [timeval; 2] = value) -> c_int;
    fn futimesat = SYS_futimesat(at: c_int, path: Text = text, times: *const [timeval; 2] = value) -> c_int;
    fn acct = SYS_acct(path: Text = text) -> c_int;
    fn open_by_handle_at = SYS_open_by_handle_at(
        mount: c_int, handle: *const [u32; 34] = value, flags: c_int
    ) -> c_int;
    fn memfd_create = SYS_memfd_create(name: Text = text, flags: c_uint) -> c_int;
    fn inotify_add_watch = SYS_inotify_add_watch(fd: c_int, path: Text = text, mask: u32) -> c_int;
    fn fanotify_mark = SYS_fanotify_mark(fd: c_int, flags: c_uint, mask: u64, at: c_int, path: Text = text) -> c_int;
    fn creat, creat64 = SYS_creat(path: Text = text, mode: mode_t) -> c_int;
    fn access = SYS_access(path: Text = text, mode: c_int) -> c_int;
    fn faccessat = SYS_faccessat(at: c_int, path: Text = text, mode: c_int, flags: c_int) -> c_int;
    fn unlink = SYS_unlink(path: Text = text) -> c_int;
    fn unlinkat = SYS_unlinkat(at: c_int, path: Text = text, flags: c_int) -> c_int;
    fn rename = SYS_rename(from: Text = text, to: Text = text) -> c_int;
    fn renameat = SYS_renameat(a: c_int, from: Text = text, b: c_int, to: Text = text) -> c_int;
    fn link = SYS_link(from: Text = text, to: Text = text) -> c_int;
    fn symlink = SYS_symlink(from: Text = text, to: Text = text) -> c_int;
    fn mkdir = SYS_mkdir(path: Text = text, mode: mode_t) -> c_int;
    fn mkdirat = SYS_mkdirat(at: c_int, path: Text = text, mode: mode_t) -> c_int;
    fn rmdir = SYS_rmdir(path: Text = text) -> c_int;
    fn chdir = SYS_chdir(path: Text = text) -> c_int;
    fn chmod = SYS_chmod(path: Text = text, mode: mode_t) -> c_int;
    fn chown = SYS_chown(path: Text = text, user: uid_t, group: gid_t) -> c_int;
    fn truncate, truncate64 = SYS_truncate(path: Text = text, len: off_t) -> c_int;
    fn readlink = SYS_readlink(path: Text = text, buffer: *mut c_char = bytes(len), len: size_t) -> ssize_t;
    fn readlinkat = SYS_readlinkat(
        at: c_int, path: Text = text, buffer: *mut c_char = bytes(len), len: size_t
    ) -> ssize_t;
    fn name_to_handle_at = SYS_name_to_handle_at(
        at: c_int, path: Text = text, handle: *mut c_void = unknown(136), mount: *mut c_int = unknown(8), flags:
        c_int
    ) -> c_int;

    // What is told about files, file systems, limits and the machine.
    fn stat, stat64 = SYS_stat(path: Text = text, about: *mut libc::stat = value) -> c_int;
    fn lstat, lstat64 = SYS_lstat(path: Text = text, about: *mut libc::stat = value) -> c_int;
    fn fstat, fstat64 = SYS_fstat(fd: c_int, about: *mut libc::stat = value) -> c_int;
    fn fstatat, fstatat64 = SYS_newfstatat(
        at: c_int, path: Text = text, about: *mut libc::stat = value, flags: c_int
    ) -> c_int;
    fn statx = SYS_statx(
        at: c_int, path: Text = text, flags: c_int, mask: c_uint, about: *mut libc::statx = value
    ) -> c_int;
    fn statfs, __statfs = SYS_statfs(path: Text = text, about: *mut libc::statfs = value) -> c_int;
    fn fstatfs = SYS_fstatfs(fd: c_int, about: *mut libc::statfs = value) -> c_int;
    fn utimensat = SYS_utimensat(
        at: c_int, path: Text = text, times: *const [timespec; 2] = value, flags: c_int
    ) -> c_int;
    fn quotactl = SYS_quotactl(
        what: c_int, device: Text = text, id: c_int, at: *mut c_void = unknown(UNKNOWN_BYTES)
    ) -> c_int;
    fn mount = SYS_mount(
        source: Text = text, path: Text = text, kind: Text = text, flags: c_ulong, data: *const c_void =
        unknown(4096)
    ) -> c_int;
    fn fsconfig = SYS_fsconfig(
        fd: c_int, what: c_uint, key: Text = text, data: *const c_void = unknown(4096), more: c_int
    ) -> c_int;
    fn arch_prctl, __arch_prctl = SYS_arch_prctl(what: c_int, at: *mut c_ulong = unknown(8)) -> c_int;
    fn semctl = SYS_semctl(set: c_int, number: c_int, what: c_int, at: *mut c_void = unknown(UNKNOWN_BYTES)) -> c_int;
    fn getrusage = SYS_getrusage(who: c_int, usage: *mut rusage = value) -> c_int;
    fn sysinfo = SYS_sysinfo(about: *mut libc::sysinfo = value) -> c_int;
    fn uname = SYS_uname(about: *mut utsname = value) -> c_int;
    fn getdents64 = SYS_getdents64(fd: c_int, buffer: *mut c_void = bytes(len), len: size_t) -> ssize_t;
    fn sched_getaffinity = SYS_sched_getaffinity(pid: pid_t, len: size_t, set: *mut c_void = bytes(len)) -> c_int;
    fn sched_setaffinity = SYS_sched_setaffinity(pid: pid_t, len: size_t, set: *const c_void = bytes(len)) -> c_int;

    // Extended attributes.
    fn getxattr = SYS_getxattr(
        path: Text = text, name: Text = text, at: *mut c_void = bytes(len), len: size_t
    ) -> ssize_t;
    fn lgetxattr = SYS_lgetxattr(
        path: Text = text, name: Text = text, at: *mut c_void = bytes(len), len: size_t
    ) -> ssize_t;
    fn fgetxattr = SYS_fgetxattr(fd: c_int, name: Text = text, at: *mut c_void = bytes(len), len: size_t) -> ssize_t;
    fn setxattr = SYS_setxattr(
        path: Text = text, name: Text = text, at: *const c_void = bytes(len), len: size_t, flags: c_int
    ) -> c_int;
    fn lsetxattr = SYS_lsetxattr(
        path: Text = text, name: Text = text, at: *const c_void = bytes(len), len: size_t, flags: c_int
    ) -> c_int;
    fn fsetxattr = SYS_fsetxattr(
        fd: c_int, name: Text = text, at: *const c_void = bytes(len), len: size_t, flags: c_int
    ) -> c_int;
    fn listxattr = SYS_listxattr(path: Text = text, list: *mut c_char = bytes(len), len: size_t) -> ssize_t;
    fn llistxattr = SYS_llistxattr(path: Text = text, list: *mut c_char = bytes(len), len: size_t) -> ssize_t;
    fn flistxattr = SYS_flistxattr(fd: c_int, list: *mut c_char = bytes(len), len: size_t) -> ssize_t;
    fn removexattr = SYS_removexattr(path: Text = text, name: Text = text) -> c_int;
    fn lremovexattr = SYS_lremovexattr(path: Text = text, name: Text = text) -> c_int;
    fn fremovexattr = SYS_fremovexattr(fd: c_int, name: Text = text) -> c_int;

    // Mounts, swap, host names, modules.
    fn umount2 = SYS_umount2(path: Text = text, flags: c_int) -> c_int;
    fn swapon = SYS_swapon(path: Text = text, flags: c_int) -> c_int;
    fn swapoff = SYS_swapoff(path: Text = text) -> c_int;
    fn fsopen = SYS_fsopen(kind: Text = text, flags: c_uint) -> c_int;
    fn fspick = SYS_fspick(at: c_int, path: Text = text, flags: c_uint) -> c_int;
    fn move_mount = SYS_move_mount(a: c_int, from: Text = text, b: c_int, to: Text = text, flags: c_uint) -> c_int;
    fn open_tree = SYS_open_tree(at: c_int, path: Text = text, flags: c_uint) -> c_int;
    fn mount_setattr = SYS_mount_setattr(
        at: c_int, path: Text = text, flags: c_uint, what: *mut c_void = bytes(len), len: size_t
    ) -> c_int;
    fn sethostname = SYS_sethostname(name: *const c_char = bytes(len), len: size_t) -> c_int;
    fn setdomainname = SYS_setdomainname(name: *const c_char = bytes(len), len: size_t) -> c_int;
    fn init_module = SYS_init_module(image: *const c_void = bytes(len), len: c_ulong, options: Text = text) -> c_int;
    fn delete_module = SYS_delete_module(name: Text = text, flags: c_uint) -> c_int;

    // Descriptors, connections and children that are new or over.
    fn pipe, __pipe = SYS_pipe(ends: *mut [c_int; 2] = value) -> c_int;
    fn pipe2 = SYS_pipe2(ends: *mut [c_int; 2] = value, flags: c_int) -> c_int;
    fn socketpair = SYS_socketpair(
        domain: c_int, kind: c_int, protocol: c_int, ends: *mut [c_int; 2] = value
    ) -> c_int;
    fn wait4 = SYS_wait4(pid: pid_t, status: *mut c_int = value, options: c_int, usage: *mut rusage = value) -> pid_t;
    fn accept = SYS_accept(fd: c_int, addr: *mut sockaddr = named(len), len: *mut socklen_t = value) -> c_int;
    fn accept4 = SYS_accept4(
        fd: c_int, addr: *mut sockaddr = named(len), len: *mut socklen_t = value, flags: c_int
    ) -> c_int;
    fn getsockopt = SYS_getsockopt(
        fd: c_int, level: c_int, name: c_int, at: *mut c_void = choice((level, name, len)), len: *mut socklen_t = value
    ) -> c_int;
    fn bind = SYS_bind(fd: c_int, addr: *const sockaddr = bytes(len), len: socklen_t) -> c_int;
    fn connect, __connect = SYS_connect(fd: c_int, addr: *const sockaddr = bytes(len), len: socklen_t) -> c_int;
    fn getsockname = SYS_getsockname(
        fd: c_int, addr: *mut sockaddr = named(len), len: *mut socklen_t = value
    ) -> c_int;
    fn getpeername = SYS_getpeername(
        fd: c_int, addr: *mut sockaddr = named(len), len: *mut socklen_t = value
    ) -> c_int;
    fn epoll_ctl = SYS_epoll_ctl(fd: c_int, what: c_int, other: c_int, event: *const epoll_event = value) -> c_int;

    // Transfers between descriptors.
    fn splice = SYS_splice(
        from: c_int, at: *mut off64_t = value, to: c_int, there: *mut off64_t = value, len: size_t, flags: c_uint
    ) -> ssize_t;
    fn copy_file_range = SYS_copy_file_range(
        from: c_int, at: *mut off64_t = value, to: c_int, there: *mut off64_t = value, len: size_t, flags: c_uint
    ) -> ssize_t;
    fn sendfile, sendfile64 = SYS_sendfile(
        to: c_int, from: c_int, offset: *mut off64_t = value, len: size_t
    ) -> ssize_t;

    // Timers and clocks: the old value is told once.
    fn timer_settime = SYS_timer_settime(
        timer: libc::timer_t, flags: c_int, new: *const itimerspec = value, old: *mut itimerspec = value
    ) -> c_int;
    fn timer_gettime = SYS_timer_gettime(timer: libc::timer_t, now: *mut itimerspec = value) -> c_int;
    fn timerfd_settime = SYS_timerfd_settime(
        fd: c_int, flags: c_int, new: *const itimerspec = value, old: *mut itimerspec = value
    ) -> c_int;
    fn timerfd_gettime = SYS_timerfd_gettime(fd: c_int, now: *mut itimerspec = value) -> c_int;
    fn setitimer = SYS_setitimer(which: c_int, new: *const itimerval = value, old: *mut itimerval = value) -> c_int;
    fn getitimer = SYS_getitimer(which: c_int, now: *mut itimerval = value) -> c_int;
    fn clock_getres = SYS_clock_getres(clock: clockid_t, unit: *mut timespec = value) -> c_int;
    fn clock_settime = SYS_clock_settime(clock: clockid_t, now: *const timespec = value) -> c_int;
    fn clock_adjtime = SYS_clock_adjtime(clock: clockid_t, state: *mut timex = value) -> c_int;
    fn adjtimex, __adjtimex, ntp_adjtime = SYS_adjtimex(state: *mut timex = value) -> c_int;
    fn settimeofday = SYS_settimeofday(now: *const timeval = value, zone: *const [u32; 2] = value) -> c_int;
    fn times = SYS_times(used: *mut libc::tms = value) -> libc::clock_t;

    // Messages and semaphores.
    fn msgctl = SYS_msgctl(queue: c_int, what: c_int, about: *mut libc::msqid_ds = of_queue(what)) -> c_int;
    fn shmctl = SYS_shmctl(segment: c_int, what: c_int, about: *mut libc::shmid_ds = of_segment(what)) -> c_int;
    fn semop = SYS_semop(set: c_int, list: *const libc::sembuf = values(count), count: size_t) -> c_int;
    fn semtimedop = SYS_semtimedop(
        set: c_int, list: *const libc::sembuf = values(count), count: size_t, limit: *const timespec = value
    ) -> c_int;
    fn mq_timedreceive = SYS_mq_timedreceive(
        queue: mqd_t, message: *mut c_char = bytes(len), len: size_t, priority: *mut c_uint = value, end: *const
        timespec = value
    ) -> ssize_t;
    fn mq_timedsend = SYS_mq_timedsend(
        queue: mqd_t, message: *const c_char = bytes(len), len: size_t, priority: c_uint, end: *const timespec =
        value
    ) -> c_int;
    fn mq_setattr = SYS_mq_getsetattr(queue: mqd_t, new: *const mq_attr = value, old: *mut mq_attr = value) -> c_int;
    fn mq_open = SYS_mq_open(name: Text = text, flags: c_int, mode: mode_t, state: *const mq_attr = value) -> mqd_t;
    fn mq_unlink = SYS_mq_unlink(name: Text = text) -> c_int;

    // Users, CPU affinity, threads.
    fn getgroups = SYS_getgroups(count: c_int, list: *mut libc::gid_t = values(count)) -> c_int;
    fn getresuid = SYS_getresuid(
        real: *mut libc::uid_t = value, effective: *mut libc::uid_t = value, saved: *mut libc::uid_t = value
    ) -> c_int;
    fn getresgid = SYS_getresgid(
        real: *mut libc::gid_t = value, effective: *mut libc::gid_t = value, saved: *mut libc::gid_t = value
    ) -> c_int;
    fn capget = SYS_capget(header: *mut [u32; 2] = value, data: *mut [u32; 6] = of_rights(header)) -> c_int;
    fn sched_getparam, __sched_getparam = SYS_sched_getparam(pid: pid_t, about: *mut sched_param = value) -> c_int;
    fn sched_setparam = SYS_sched_setparam(pid: pid_t, about: *const sched_param = value) -> c_int;
    fn sched_setscheduler, __sched_setscheduler = SYS_sched_setscheduler(
        pid: pid_t, policy: c_int, about: *const sched_param = value
    ) -> c_int;
    fn sched_rr_get_interval = SYS_sched_rr_get_interval(pid: pid_t, time: *mut timespec = value) -> c_int;
    fn getcpu = SYS_getcpu(cpu: *mut c_uint = value, node: *mut c_uint = value) -> c_int;
    fn pidfd_send_signal = SYS_pidfd_send_signal(
        process: c_int, signal: c_int, about: *const siginfo_t = value, flags: c_uint
    ) -> c_int;
    fn klogctl = SYS_syslog(what: c_int, buffer: *mut c_char = bytes(len), len: c_int) -> c_int;
    fn modify_ldt = SYS_modify_ldt(what: c_int, at: *mut c_void = bytes(len), len: c_ulong) -> c_int;
    fn ustat = SYS_ustat(device: dev_t, about: *mut [u64; 4] = value) -> c_int;

    // Calls that sleep.
    fn epoll_wait = SYS_epoll_wait(
        fd: c_int, list: *mut epoll_event = values(count), count: c_int, limit: c_int
    ) -> c_int;
    fn nanosleep, __nanosleep = SYS_nanosleep(time: *const timespec = value, left: *mut timespec = value) -> c_int;
    fn clock_nanosleep = SYS_clock_nanosleep(
        clock: clockid_t, flags: c_int, time: *const timespec = value, left: *mut timespec = value
    ) -> c_int;
}

/// Beyond the numbers of all calls.
pub const NR_NUMBERS: usize = 512;

/// The arguments of each call that has a row.
static BY_NUMBER: [&[Argument]; NR_NUMBERS] = {
    let mut of: [&'static [Argument]; NR_NUMBERS] = [&[]; NR_NUMBERS];
    let mut index = 0;
    while index < ROWS.len() {
        let (number, arguments) = ROWS[index];
        assert!(of[number as usize].is_empty(), "a call has one row");
        of[number as usize] = arguments;
        index += 1;
    }
    of
};

/// The arguments of a call; empty if it has no row here.
pub fn arguments(number: c_long) -> &'static [Argument] {
    usize::try_from(number).ok().and_then(|number| BY_NUMBER.get(number)).copied().unwrap_or_default()
}
