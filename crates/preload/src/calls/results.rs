//! Calls that have taken effect when storing their result fails: a child is reaped, a connection or message taken,
//! descriptors created, bytes moved, a timer set. They cannot be repeated, so their results go through copies. Those
//! that are a system call as it is are in [`table`](crate::calls::table).

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{
    clockid_t, cpu_set_t, id_t, idtype_t, mq_attr, mqd_t, off64_t, pid_t, pthread_t, rusage, sched_param, siginfo_t,
    size_t, ssize_t, timespec, timeval,
};

use folioswap::PAGE_SIZE;
use folioswap_sys::clock;

use crate::calls::copied::{self, copied};
use crate::ground::export::{aliases, export, real};
use crate::ground::real::{kernel, own};
use crate::ground::{guard, state};

copied! {
    fn wait, __wait(status: *mut c_int = value) -> pid_t;
    fn waitpid, __waitpid(pid: pid_t, status: *mut c_int = value, options: c_int) -> pid_t;
    fn wait3(status: *mut c_int = value, options: c_int, usage: *mut rusage = value) -> pid_t;
    fn waitid(kind: idtype_t, id: id_t, about: *mut siginfo_t = value, options: c_int) -> c_int;
    fn openpty(
        master: *mut c_int, slave: *mut c_int, name: *mut c_char, state: *const libc::termios,
        size: *const libc::winsize = value
    ) -> c_int;
    fn forkpty(
        master: *mut c_int, name: *mut c_char, state: *const libc::termios, size: *const libc::winsize = value
    ) -> c_int;
}

copied! {
    fn adjtime(by: *const timeval = value, left: *mut timeval = value) -> c_int;
}

// System V and POSIX messages, and semaphores. A System V message begins with its type.
copied! {
    fn msgrcv(
        queue: c_int, message: *mut c_void = bytes(len.saturating_add(size_of::<c_long>())), len: size_t,
        kind: c_long, flags: c_int
    ) -> ssize_t;
    fn msgsnd(
        queue: c_int, message: *const c_void = bytes(len.saturating_add(size_of::<c_long>())), len: size_t,
        flags: c_int
    ) -> c_int;
    fn mq_receive(
        queue: mqd_t, message: *mut c_char = bytes(len), len: size_t, priority: *mut c_uint = value
    ) -> ssize_t;
    fn mq_send(queue: mqd_t, message: *const c_char = bytes(len), len: size_t, priority: c_uint) -> c_int;
    fn mq_getattr(queue: mqd_t, now: *mut mq_attr = value) -> c_int;
    fn __mq_open_2(name: *const c_char = text, flags: c_int) -> mqd_t;
}

// Users, CPU affinity, and information about threads.
copied! {
    fn pthread_getaffinity_np(thread: pthread_t, len: size_t, set: *mut cpu_set_t = bytes(len)) -> c_int;
    fn pthread_setaffinity_np(thread: pthread_t, len: size_t, set: *const cpu_set_t = bytes(len)) -> c_int;
    fn pthread_setschedparam(thread: pthread_t, policy: c_int, about: *const sched_param = value) -> c_int;
    fn pthread_getname_np(thread: pthread_t, name: *mut c_char = bytes(len), len: size_t) -> c_int;
    fn pthread_setname_np(thread: pthread_t, name: *const c_char = text) -> c_int;
    fn ttyname_r(fd: c_int, name: *mut c_char = bytes(len), len: size_t) -> c_int;
    fn ptsname_r(fd: c_int, name: *mut c_char = bytes(len), len: size_t) -> c_int;
    fn mincore(addr: *const c_void, len: size_t, present: *mut u8 = bytes(len.div_ceil(PAGE_SIZE))) -> c_int;
    fn getdirentries, getdirentries64(
        fd: c_int, buffer: *mut c_char = bytes(len), len: size_t, base: *mut off64_t = value
    ) -> ssize_t;
    fn eventfd_read(fd: c_int, count: *mut u64 = value) -> c_int;
    fn pututline(entry: *const libc::utmpx = value) -> *mut libc::utmpx;
    fn pututxline(entry: *const libc::utmpx = value) -> *mut libc::utmpx;
    fn updwtmp(path: *const c_char = text, entry: *const libc::utmpx = value) -> ();
    fn updwtmpx(path: *const c_char = text, entry: *const libc::utmpx = value) -> ();
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
        if guard::inside() && clock::is_stopped() {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { own!(libc::SYS_clock_gettime, clock, now) as c_int };
        }
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
            copy.bring_back(result)
        }
    }

    fn clock() -> libc::clock_t {
        let mut used = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel fills in the local.
        if unsafe { kernel!(libc::SYS_clock_gettime, libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) } < 0 {
            return -1;
        }
        used.tv_sec * 1_000_000 + used.tv_nsec / 1000
    }

    fn gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int {
        // SAFETY: the caller's call, with copies if a page may be missing.
        unsafe {
            let copies = [copied::value(now), copied::bytes(zone, 8)];
            let result = GETTIMEOFDAY.get()(copies[0].at(now), copies[1].at(zone));
            copied::bring_all_back(&copies, result)
        }
    }
}

aliases! {
    fn __gettimeofday = gettimeofday(now: *mut timeval, zone: *mut c_void) -> c_int;
}
