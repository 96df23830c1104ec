//! Functions of the C library that do nothing but make one call.

use std::ffi::{c_char, c_int};

use libc::rlimit;

use crate::calls::by_number::syscall;
use crate::ground::export::{aliases, export};
use crate::ground::symbols::is_own_image;

export! {
    fn prctl(what: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if what == libc::PR_SET_VMA && is_own_image(d) {
            return 0; // the program's heap names what it maps; a filter may refuse that
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_prctl, what as usize, a, b, c, d, 0) as c_int }
    }
}

export! {
    fn chroot(path: *const c_char) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_chroot, path as usize, 0, 0, 0, 0, 0) as c_int }
    }
}

export! {
    fn pivot_root(new: *const c_char, old: *const c_char) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_pivot_root, new as usize, old as usize, 0, 0, 0, 0) as c_int }
    }
}

export! {
    fn unshare(flags: c_int) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_unshare, flags as usize, 0, 0, 0, 0, 0) as c_int }
    }
}

export! {
    fn setns(fd: c_int, kind: c_int) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_setns, fd as usize, kind as usize, 0, 0, 0, 0) as c_int }
    }
}

export! {
    fn setrlimit(what: c_int, limit: *const rlimit) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged. As the C library, it uses the newer call.
        unsafe { syscall(libc::SYS_prlimit64, 0, what as usize, limit as usize, 0, 0, 0) as c_int }
    }
}

export! {
    fn prlimit(pid: c_int, what: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int {
        let (limit, before) = (limit as usize, before as usize);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_prlimit64, pid as usize, what as usize, limit, before, 0, 0) as c_int }
    }
}

export! {
    fn getrlimit(what: c_int, limit: *mut rlimit) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_prlimit64, 0, what as usize, 0, limit as usize, 0, 0) as c_int }
    }
}

aliases! {
    fn setrlimit64 = setrlimit(what: c_int, limit: *const rlimit) -> c_int;
    fn prlimit64 = prlimit(pid: c_int, what: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int;
    fn getrlimit64 = getrlimit(what: c_int, limit: *mut rlimit) -> c_int;
}
