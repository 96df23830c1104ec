//! Calls that sleep with a timeout. They are made once, with copies of their arguments: a repeated call would restart
//! the timeout and lose what the first one took. Signal masks for the time of the call never block the signals that
//! this library needs.

use std::ffi::{c_int, c_uint, c_void};

use libc::{clockid_t, epoll_event, fd_set, nfds_t, pollfd, pthread_t, siginfo_t, sigset_t, timespec, timeval};

use crate::calls::copied::{self, Copied, copied};
use crate::calls::descriptors;
use crate::calls::table::nanosleep;
use crate::faults::ours;
use crate::ground::export::{aliases, export, real};
use crate::ground::state;
use crate::memory::cover::{self, Outcome};

/// Bytes of an `fd_set` for this many descriptors.
pub fn set_bytes(count: c_int) -> usize {
    (count.max(0) as usize).div_ceil(64) * 8
}

copied! {
    fn thrd_sleep(time: *const timespec = value, left: *mut timespec = value) -> c_int;
    fn sigtimedwait(
        set: *const sigset_t = value, about: *mut siginfo_t = value, limit: *const timespec = value
    ) -> c_int;
    fn sigwaitinfo(set: *const sigset_t = value, about: *mut siginfo_t = value) -> c_int;
    fn sigpending(set: *mut sigset_t = value) -> c_int;
    fn signalfd(fd: c_int, set: *const sigset_t = value, flags: c_int) -> c_int;
}

// The kernel reads only the end time of these. The word of a thread is held (`faults::cleared`).
copied! {
    fn pthread_timedjoin_np(thread: pthread_t, result: *mut *mut c_void, end: *const timespec = value) -> c_int;
    fn pthread_clockjoin_np(
        thread: pthread_t, result: *mut *mut c_void, clock: clockid_t, end: *const timespec = value
    ) -> c_int;
}

/// Makes a call with copies of the ranges, and copies back what was written.
///
/// # Safety
/// Each range is null or the program's.
unsafe fn with_copies<const N: usize, R: Outcome>(
    ranges: [(usize, usize); N],
    call: impl FnOnce([usize; N]) -> R,
) -> R {
    // SAFETY: the caller upholds this function's own contract.
    let copies = ranges.map(|(addr, len)| unsafe { Copied::new(addr, len, true) });
    let result = call(std::array::from_fn(|index| copies[index].addr()));
    // SAFETY: the caller upholds this function's own contract.
    unsafe { copied::bring_all_back(&copies, result) }
}

/// What a program is told that polls: the engine's descriptors are not open.
///
/// # Safety
/// The list that has just been polled, with the call's result.
unsafe fn told(list: *mut pollfd, count: nfds_t, result: c_int) -> c_int {
    let mut result = result;
    for index in 0..if result < 0 { 0 } else { count as u32 as usize } {
        // SAFETY: an entry, to which the kernel has just written. It need not be aligned.
        let mut entry = unsafe { list.add(index).read_unaligned() };
        if descriptors::is_engines(entry.fd) {
            result += c_int::from(entry.revents == 0);
            entry.revents = libc::POLLNVAL;
            // SAFETY: as above.
            unsafe { list.add(index).write_unaligned(entry) };
        }
    }
    result
}

export! {
    fn poll(list: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
        real!(REAL = c"poll": fn(*mut pollfd, nfds_t, c_int) -> c_int);
        // SAFETY: the caller's call, with a valid copy of its list.
        unsafe {
            let polled = copied::polled(list, count);
            let result = REAL.get()(polled.at(list), count, limit);
            told(list, count, polled.bring_back(result))
        }
    }
}

export! {
    fn __poll_chk(list: *mut pollfd, count: nfds_t, limit: c_int, room: usize) -> c_int {
        super::io::check((count as usize).saturating_mul(size_of::<pollfd>()), room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { poll(list, count, limit) }
    }
}

aliases! {
    fn __poll = poll(list: *mut pollfd, count: nfds_t, limit: c_int) -> c_int;
}

export! {
    fn ppoll(list: *mut pollfd, count: nfds_t, limit: *const timespec, set: *const sigset_t) -> c_int {
        real!(REAL = c"ppoll": fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int);
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let (time, copy) = (copied::value(limit), ours::present_without_ours(set));
            let polled = copied::polled(list, count);
            let _stack = cover::stack(); // for a variable of the C library's to which the kernel writes what is left
            let result = REAL.get()(polled.at(list), count, time.at(limit), ours::pointer(&copy, set));
            told(list, count, polled.bring_back(result))
        }
    }
}

export! {
    fn __ppoll_chk(
        list: *mut pollfd, count: nfds_t, limit: *const timespec, set: *const sigset_t, room: usize,
    ) -> c_int {
        super::io::check((count as usize).saturating_mul(size_of::<pollfd>()), room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { ppoll(list, count, limit, set) }
    }
}

export! {
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, limit: *mut timeval,
    ) -> c_int {
        real!(REAL = c"select": fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int);
        let count = descriptors::looked_at(count, [read, write, other].map(|set| set as usize));
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let time = copied::value(limit);
            let sets = [read, write, other].map(|each| (each as usize, set_bytes(count)));
            let result = with_copies(sets, |[read, write, other]| {
                let sets = [read, write, other].map(|each| each as *mut fd_set);
                let _stack = cover::stack(); // as in ppoll
                REAL.get()(count, sets[0], sets[1], sets[2], time.at(limit))
            });
            time.bring_back(result)
        }
    }
}

aliases! {
    fn __select = select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, limit: *mut timeval
    ) -> c_int;
}

export! {
    fn sleep(seconds: c_uint) -> c_uint {
        let kept = state::errno();
        let mut left = timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        // SAFETY: a local, of which the kernel gets copies if it may leave RAM.
        match unsafe { nanosleep(&raw const left, &raw mut left) } {
            0 => {
                state::fail(kept);
                0
            }
            _ => left.tv_sec as c_uint,
        }
    }
}

export! {
    fn usleep(time: c_uint) -> c_int {
        real!(REAL = c"usleep": fn(c_uint) -> c_int);
        let _stack = cover::stack(); // for a variable of the C library's that the kernel reads
        // SAFETY: passes the caller's argument on.
        unsafe { REAL.get()(time) }
    }
}

export! {
    fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int {
        real!(REAL = c"sigwait": fn(*const sigset_t, *mut c_int) -> c_int);
        let _stack = cover::stack(); // when the signal has come, the kernel writes to a variable of the C library's
        // SAFETY: the caller's call, with a valid copy of its set.
        unsafe {
            let copy = copied::value(set);
            REAL.get()(copy.at(set), signal)
        }
    }
}

export! {
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, limit: *const timespec,
        set: *const sigset_t,
    ) -> c_int {
        real!(REAL = c"pselect": fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int);
        let count = descriptors::looked_at(count, [read, write, other].map(|set| set as usize));
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let (time, copy) = (copied::value(limit), ours::present_without_ours(set));
            let sets = [read, write, other].map(|each| (each as usize, set_bytes(count)));
            with_copies(sets, |[read, write, other]| {
                let sets = [read, write, other].map(|each| each as *mut fd_set);
                let _stack = cover::stack(); // as in ppoll
                REAL.get()(count, sets[0], sets[1], sets[2], time.at(limit), ours::pointer(&copy, set))
            })
        }
    }
}

export! {
    fn epoll_pwait(fd: c_int, list: *mut epoll_event, count: c_int, limit: c_int, set: *const sigset_t) -> c_int {
        real!(REAL = c"epoll_pwait": fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int);
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let copy = ours::present_without_ours(set);
            let told = copied::values(list, count);
            let result = REAL.get()(fd, told.at(list), count, limit, ours::pointer(&copy, set));
            told.bring_back(result)
        }
    }
}

export! {
    fn epoll_pwait2(
        fd: c_int, list: *mut epoll_event, count: c_int, limit: *const timespec, set: *const sigset_t,
    ) -> c_int {
        real!(REAL = c"epoll_pwait2": fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int);
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let (time, copy) = (copied::value(limit), ours::present_without_ours(set));
            let told = copied::values(list, count);
            let result = REAL.get()(fd, told.at(list), count, time.at(limit), ours::pointer(&copy, set));
            told.bring_back(result)
        }
    }
}
