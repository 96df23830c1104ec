//! Hides the engine's descriptors from the program: calls that close, copy or replace one, or ask about it, fail with
//! EBADF.
//!
//! The engine's descriptors have high numbers that programs do not get by themselves (`folioswap_sys::descriptor`).
//! This file is for programs that walk over all numbers: daemons, shells and launchers. An engine's number is no valid
//! target of dup2 either, like a number above the limit. /proc/self/fd still lists these descriptors.

use std::ffi::{c_int, c_long, c_uint, c_void};

use folioswap::PAGE_SIZE;
use folioswap_sys::hidden_numbers::{is_hidden, next_hidden};
use folioswap_sys::own_table;
use folioswap_sys::signals::thread_id;

use crate::calls::rings;
use crate::calls::sleeping::set_bytes;
use crate::ground::export::{aliases, export, real};
use crate::ground::real::{By, kernel};
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::cover::{self, Before, Outcome};

real!(FCNTL = c"fcntl": fn(c_int, c_int, *mut c_void) -> c_int);

/// Whether the program names one of the engine's descriptors, so that its call must fail.
pub fn is_engines(fd: c_int) -> bool {
    is_hidden(fd) && !guard::inside()
}

/// What a call returns that names a descriptor which is not open.
pub fn not_open<R: Outcome>() -> R {
    state::fail(libc::EBADF);
    R::failure()
}

/// Answers a descriptor call made by number if it names one of the engine's descriptors, as the kernel would if it were
/// not open. `None`: the call may be made.
pub fn by_number(number: c_long, arguments: &[usize; 6]) -> Option<isize> {
    let named = |at: usize| is_engines(arguments[at] as c_int);
    match number {
        libc::SYS_close => rings::forget(|ring| ring == arguments[0] as c_int),
        libc::SYS_dup2 | libc::SYS_dup3 => {
            rings::forget(|ring| ring == arguments[1] as c_int && arguments[0] != arguments[1])
        }
        _ => {}
    }
    let concerned = match number {
        libc::SYS_close | libc::SYS_dup | libc::SYS_fcntl | libc::SYS_ioctl | libc::SYS_lseek => named(0),
        libc::SYS_fstat | libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_fstatfs => named(0),
        libc::SYS_dup2 | libc::SYS_dup3 => named(0) || named(1),
        libc::SYS_close_range => {
            let [first, last, flags] = [0, 1, 2].map(|at| arguments[at] as c_uint);
            return Some(close_others(first, last, flags) as isize);
        }
        _ => false,
    };
    concerned.then_some(-(libc::EBADF as isize))
}

/// Notes the copy of a descriptor that a call made by number has returned.
pub fn note_copy(number: c_long, arguments: &[usize; 6], copy: isize) {
    let copies = match number {
        libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 => true,
        libc::SYS_fcntl => is_for_copy(arguments[1] as c_int),
        _ => false,
    };
    if copies {
        rings::note_copy(arguments[0] as c_int, copy as c_int);
    }
}

fn is_for_copy(request: c_int) -> bool {
    matches!(request, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// The result of a call that copies a descriptor.
fn copied(fd: c_int, copy: c_int) -> c_int {
    rings::note_copy(fd, copy);
    copy
}

/// Closes a range of descriptors except the engine's. Returns 0 or a negative error number.
fn close_others(first: c_uint, last: c_uint, flags: c_uint) -> c_long {
    let close = |first: c_uint, last: c_uint| {
        // SAFETY: takes no pointers. The range holds none of the engine's descriptors.
        match unsafe { kernel!(libc::SYS_close_range, first, last, flags) } {
            -1 => c_long::from(-state::errno()),
            result => result,
        }
    };
    if flags & libc::CLOSE_RANGE_CLOEXEC == 0 {
        rings::forget(|ring| (first..=last).contains(&(ring as c_uint)));
    }
    let mut from = first;
    while let Some(hidden) = c_int::try_from(from).ok().and_then(next_hidden).map(|hidden| hidden as c_uint) {
        if first > last || hidden > last {
            break;
        }
        if hidden > from {
            let result = close(from, hidden - 1);
            if result < 0 {
                return result;
            }
        }
        from = hidden + 1;
    }
    // The rest of the range. An invalid range goes to the kernel too, which returns the error.
    if from > last && first <= last { 0 } else { close(from, last) }
}

/// How many descriptors a call looks at that is to look at so many (`select`): at no more than the program has, if that
/// is more than in a set of the usual size, or than there is of a set. The kernel looks at no more than its table has,
/// and the engine's numbers make that longer: sets are shorter.
pub fn looked_at(count: c_int, sets: [usize; 3]) -> c_int {
    const USUAL: c_int = libc::FD_SETSIZE as c_int;
    /// The shortest table, and what is in a word of a set.
    const FEWEST: c_int = 64;
    if count <= FEWEST || guard::inside() || !state::may_manage() {
        return count;
    }
    let len = set_bytes(count.min(USUAL));
    // What lies in one page is there, or nothing of it.
    let is_whole =
        |set: usize| set == 0 || set % PAGE_SIZE + len <= PAGE_SIZE || access::prefix(set, len, Access::Write) == len;
    let least = if sets.into_iter().all(is_whole) { USUAL } else { FEWEST };
    if count <= least {
        return count;
    }
    let _guard = guard::enter();
    let thread = thread_id(); // not what is noted: in a child of vfork that is its parent's
    let highest = move || {
        let numbers = std::fs::read_dir(format!("/proc/self/task/{thread}/fd"))?.flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(numbers.filter(|&number| !is_hidden(number)).max())
    };
    let highest: Option<c_int> = state::keeping_errno(|| own_table::briefly(highest)).ok().flatten();
    highest.map_or(count, |highest| count.min(least.max(highest + 1)))
}

export! {
    fn close(fd: c_int) -> c_int {
        if is_engines(fd) {
            return not_open();
        }
        real!(REAL = c"close": fn(c_int) -> c_int);
        rings::forget(|ring| ring == fd);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe {
            match By::name() {
                By::Name => REAL.get()(fd),
                By::Number => kernel!(libc::SYS_close, fd) as c_int,
            }
        }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let errno = state::errno();
        match close_others(first, last, flags as c_uint) {
            failed @ ..0 => { state::fail(-failed as i32); -1 }
            _ => { state::fail(errno); 0 }
        }
    }

    fn closefrom(first: c_int) -> () {
        let errno = state::errno();
        if close_others(first.max(0) as c_uint, c_uint::MAX, 0) == c_long::from(-libc::ENOSYS) {
            (first.max(0)..c_int::from(i16::MAX)).filter(|&fd| !is_engines(fd)).for_each(|fd| {
                // SAFETY: takes no pointers.
                unsafe { kernel!(libc::SYS_close, fd) };
            });
        }
        state::fail(errno);
    }

    fn dup(fd: c_int) -> c_int {
        if is_engines(fd) {
            return not_open();
        }
        // SAFETY: passes the caller's arguments on unchanged.
        copied(fd, unsafe { kernel!(libc::SYS_dup, fd) as c_int })
    }

    fn dup2(fd: c_int, target: c_int) -> c_int {
        if is_engines(fd) || is_engines(target) {
            return not_open();
        }
        real!(REAL = c"dup2": fn(c_int, c_int) -> c_int);
        rings::forget(|ring| ring == target && ring != fd);
        // SAFETY: passes the caller's arguments on unchanged.
        copied(fd, unsafe { REAL.get()(fd, target) })
    }

    fn dup3(fd: c_int, target: c_int, flags: c_int) -> c_int {
        if is_engines(fd) || is_engines(target) {
            return not_open();
        }
        rings::forget(|ring| ring == target && ring != fd);
        // SAFETY: passes the caller's arguments on unchanged.
        copied(fd, unsafe { kernel!(libc::SYS_dup3, fd, target, flags) as c_int })
    }
}

/// Makes a call of fcntl, repeatedly while a page is missing.
pub fn control<R: Outcome>(request: c_int, argument: *const c_void, call: impl Fn() -> R) -> R {
    const LEN: usize = size_of::<libc::flock>();
    let is_question = matches!(request, libc::F_GETLK | libc::F_OFD_GETLK);
    let before = is_question.then(|| Before::of(argument as usize, LEN));
    let touch = || {
        before.iter().for_each(Before::bring_back);
        cover::touch(argument, LEN);
    };
    cover::repeat(touch, call)
}

export! {
    fn fcntl(fd: c_int, request: c_int, argument: *mut c_void) -> c_int {
        if is_engines(fd) {
            return not_open();
        }
        let real = FCNTL.get();
        // SAFETY: passes the caller's arguments on unchanged.
        let result = control(request, argument, || unsafe { real(fd, request, argument) });
        if is_for_copy(request) { copied(fd, result) } else { result }
    }
}

aliases! {
    fn __close = close(fd: c_int) -> c_int;
    fn __dup2 = dup2(fd: c_int, target: c_int) -> c_int;
    fn fcntl64 = fcntl(fd: c_int, request: c_int, argument: *mut c_void) -> c_int;
    fn __fcntl = fcntl(fd: c_int, request: c_int, argument: *mut c_void) -> c_int;
}
