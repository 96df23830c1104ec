//! Calls that have taken effect when storing their result fails: a child is reaped, a connection or message taken,
//! descriptors created, bytes moved, a timer set. They cannot be repeated, so their results go through copies.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    clockid_t, cpu_set_t, dev_t, id_t, idtype_t, itimerspec, itimerval, mode_t, mq_attr, mqd_t, off64_t, pid_t,
    pthread_t, rusage, sched_param, siginfo_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, timex,
};

use crate::calls::copied::{self, copied};
use crate::export::{export, real};
use crate::real::kernel;
use crate::{guard, state};

copied! {
    fn pipe(ends: *mut [c_int; 2]) -> c_int { ends: value }
    fn __pipe(ends: *mut [c_int; 2]) -> c_int { ends: value }
    fn pipe2(ends: *mut [c_int; 2], flags: c_int) -> c_int { ends: value }
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut [c_int; 2]) -> c_int { ends: value }
    fn wait(status: *mut c_int) -> pid_t { status: value }
    fn __wait(status: *mut c_int) -> pid_t { status: value }
    fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t { status: value }
    fn __waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t { status: value }
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t { status: value, usage: value }
    fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t { status: value, usage: value }
    fn waitid(kind: idtype_t, id: id_t, about: *mut siginfo_t, options: c_int) -> c_int { about: value }
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int { addr: named(len), len: value }
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int { addr: named(len), len: value }
    fn getsockopt(fd: c_int, level: c_int, name: c_int, at: *mut c_void, len: *mut socklen_t) -> c_int { at: named(len), len: value }
    fn openpty(master: *mut c_int, slave: *mut c_int, name: *mut c_char, state: *const libc::termios, size: *const libc::winsize) -> c_int { size: value }
    fn forkpty(master: *mut c_int, name: *mut c_char, state: *const libc::termios, size: *const libc::winsize) -> c_int { size: value }
}

// Transfers between descriptors.
copied! {
    fn splice(from: c_int, at: *mut off64_t, to: c_int, there: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t { at: value, there: value }
    fn copy_file_range(from: c_int, at: *mut off64_t, to: c_int, there: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t { at: value, there: value }
    fn sendfile(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t { offset: value }
    fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t { offset: value }
}

// Timers, clocks and limits: the old value is returned once.
copied! {
    fn timer_settime(timer: libc::timer_t, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int { new: value, old: value }
    fn timer_gettime(timer: libc::timer_t, now: *mut itimerspec) -> c_int { now: value }
    fn timerfd_settime(fd: c_int, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int { new: value, old: value }
    fn timerfd_gettime(fd: c_int, now: *mut itimerspec) -> c_int { now: value }
    fn setitimer(which: c_int, new: *const itimerval, old: *mut itimerval) -> c_int { new: value, old: value }
    fn getitimer(which: c_int, now: *mut itimerval) -> c_int { now: value }
    fn clock_getres(clock: clockid_t, unit: *mut timespec) -> c_int { unit: value }
    fn clock_settime(clock: clockid_t, now: *const timespec) -> c_int { now: value }
    fn clock_adjtime(clock: clockid_t, state: *mut timex) -> c_int { state: value }
    fn adjtimex(state: *mut timex) -> c_int { state: value }
    fn __adjtimex(state: *mut timex) -> c_int { state: value }
    fn ntp_adjtime(state: *mut timex) -> c_int { state: value }
    fn adjtime(by: *const timeval, left: *mut timeval) -> c_int { by: value, left: value }
    fn settimeofday(now: *const timeval, zone: *const c_void) -> c_int { now: value, zone: bytes(8) }
    fn times(used: *mut libc::tms) -> libc::clock_t { used: value }
}

// System V and POSIX messages, and semaphores. A System V message begins with its type.
copied! {
    fn msgrcv(queue: c_int, message: *mut c_void, len: size_t, kind: c_long, flags: c_int) -> ssize_t { message: bytes(len.saturating_add(size_of::<c_long>())) }
    fn msgsnd(queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int { message: bytes(len.saturating_add(size_of::<c_long>())) }
    fn msgctl(queue: c_int, what: c_int, about: *mut libc::msqid_ds) -> c_int { about: value }
    fn shmctl(segment: c_int, what: c_int, about: *mut libc::shmid_ds) -> c_int { about: value }
    fn semop(set: c_int, list: *const libc::sembuf, count: size_t) -> c_int { list: values(count) }
    fn semtimedop(set: c_int, list: *const libc::sembuf, count: size_t, limit: *const timespec) -> c_int { list: values(count), limit: value }
    fn mq_receive(queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint) -> ssize_t { message: bytes(len), priority: value }
    fn mq_timedreceive(queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint, end: *const timespec) -> ssize_t { message: bytes(len), priority: value, end: value }
    fn mq_send(queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint) -> c_int { message: bytes(len) }
    fn mq_timedsend(queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint, end: *const timespec) -> c_int { message: bytes(len), end: value }
    fn mq_getattr(queue: mqd_t, now: *mut mq_attr) -> c_int { now: value }
    fn mq_setattr(queue: mqd_t, new: *const mq_attr, old: *mut mq_attr) -> c_int { new: value, old: value }
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, state: *const mq_attr) -> mqd_t { name: text, state: value }
    fn __mq_open_2(name: *const c_char, flags: c_int) -> mqd_t { name: text }
    fn mq_unlink(name: *const c_char) -> c_int { name: text }
}

// Users, CPU affinity, and information about threads.
copied! {
    fn getgroups(count: c_int, list: *mut libc::gid_t) -> c_int { list: values(count.max(0) as usize) }
    fn getresuid(real: *mut libc::uid_t, effective: *mut libc::uid_t, saved: *mut libc::uid_t) -> c_int { real: value, effective: value, saved: value }
    fn getresgid(real: *mut libc::gid_t, effective: *mut libc::gid_t, saved: *mut libc::gid_t) -> c_int { real: value, effective: value, saved: value }
    fn capget(header: *mut [u32; 2], data: *mut [u32; 6]) -> c_int { header: value, data: value }
    fn sched_getparam(pid: pid_t, about: *mut sched_param) -> c_int { about: value }
    fn __sched_getparam(pid: pid_t, about: *mut sched_param) -> c_int { about: value }
    fn sched_setparam(pid: pid_t, about: *const sched_param) -> c_int { about: value }
    fn sched_setscheduler(pid: pid_t, policy: c_int, about: *const sched_param) -> c_int { about: value }
    fn __sched_setscheduler(pid: pid_t, policy: c_int, about: *const sched_param) -> c_int { about: value }
    fn sched_rr_get_interval(pid: pid_t, time: *mut timespec) -> c_int { time: value }
    fn pthread_getaffinity_np(thread: pthread_t, len: size_t, set: *mut cpu_set_t) -> c_int { set: bytes(len) }
    fn pthread_setaffinity_np(thread: pthread_t, len: size_t, set: *const cpu_set_t) -> c_int { set: bytes(len) }
    fn pthread_setschedparam(thread: pthread_t, policy: c_int, about: *const sched_param) -> c_int { about: value }
    fn pthread_getname_np(thread: pthread_t, name: *mut c_char, len: size_t) -> c_int { name: bytes(len) }
    fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int { name: text }
    fn ttyname_r(fd: c_int, name: *mut c_char, len: size_t) -> c_int { name: bytes(len) }
    fn ptsname_r(fd: c_int, name: *mut c_char, len: size_t) -> c_int { name: bytes(len) }
    fn mincore(addr: *const c_void, len: size_t, present: *mut u8) -> c_int { present: bytes(len.div_ceil(4096)) }
    fn getcpu(cpu: *mut c_uint, node: *mut c_uint) -> c_int { cpu: value, node: value }
    fn getdirentries(fd: c_int, buffer: *mut c_char, len: size_t, base: *mut off64_t) -> ssize_t { buffer: bytes(len), base: value }
    fn getdirentries64(fd: c_int, buffer: *mut c_char, len: size_t, base: *mut off64_t) -> ssize_t { buffer: bytes(len), base: value }
    fn eventfd_read(fd: c_int, count: *mut u64) -> c_int { count: value }
    fn pidfd_send_signal(process: c_int, signal: c_int, about: *mut siginfo_t, flags: c_uint) -> c_int { about: value }
    fn pututline(entry: *const libc::utmpx) -> *mut libc::utmpx { entry: value }
    fn pututxline(entry: *const libc::utmpx) -> *mut libc::utmpx { entry: value }
    fn updwtmp(path: *const c_char, entry: *const libc::utmpx) -> () { path: text, entry: value }
    fn updwtmpx(path: *const c_char, entry: *const libc::utmpx) -> () { path: text, entry: value }
    fn klogctl(what: c_int, buffer: *mut c_char, len: c_int) -> c_int { buffer: bytes(len.max(0) as usize) }
    fn modify_ldt(what: c_int, at: *mut c_void, len: c_ulong) -> c_int { at: bytes(len as usize) }
    fn ustat(device: dev_t, about: *mut [u64; 4]) -> c_int { about: value }
}

real!(CLOCK_GETTIME = c"clock_gettime": fn(clockid_t, *mut timespec) -> c_int);
real!(GETTIMEOFDAY = c"gettimeofday": fn(*mut timeval, *mut c_void) -> c_int);

/// Whether the vDSO tells this clock without a system call. For other clocks the vDSO makes one itself, which
/// [`crate::calls::dispatch`] would catch.
fn is_shared(clock: clockid_t) -> bool {
    let cpu_times = [libc::CLOCK_PROCESS_CPUTIME_ID, libc::CLOCK_THREAD_CPUTIME_ID];
    (0..=libc::CLOCK_TAI).contains(&clock) && !cpu_times.contains(&clock)
}

export! {
    fn clock_gettime(clock: clockid_t, now: *mut timespec) -> c_int {
        let real = CLOCK_GETTIME.get();
        if !state::direct() || guard::inside() {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { real(clock, now) };
        }
        // SAFETY: the caller's call, with a copy if the page may be missing.
        unsafe {
            let copy = copied::value(now);
            let at = copy.at(now);
            let result =
                if is_shared(clock) { real(clock, at) } else { kernel!(libc::SYS_clock_gettime, clock, at) as c_int };
            copy.bring_back();
            result
        }
    }
}

export! {
    fn clock() -> libc::clock_t {
        let mut used = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel fills in the local.
        if unsafe { kernel!(libc::SYS_clock_gettime, libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) } < 0 {
            return -1;
        }
        used.tv_sec * 1_000_000 + used.tv_nsec / 1000
    }
}

export! {
    fn gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int {
        // SAFETY: the caller's call, with copies if a page may be missing.
        unsafe {
            let copies = [copied::value(now), copied::bytes(zone, 8)];
            let result = GETTIMEOFDAY.get()(copies[0].at(now), copies[1].at(zone));
            copies.iter().for_each(|copy| copy.bring_back());
            result
        }
    }
}

export! {
    fn __gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int {
        // SAFETY: an alias with the same contract.
        unsafe { gettimeofday(now, zone) }
    }
}
