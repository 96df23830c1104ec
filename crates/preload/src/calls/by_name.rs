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

/// Functions of the C library, each with the call that it makes.
macro_rules! one_call {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) by $number:ident($($word:expr),*);)*) => {$(
        export! {
            fn $name($($argument: $kind),*) -> c_int {
                let mut words = [0; 6];
                words.iter_mut().zip([$($word as usize),*]).for_each(|(to, word)| *to = word);
                let [a, b, c, d, e, f] = words;
                // SAFETY: passes the caller's arguments on unchanged.
                unsafe { syscall(libc::$number, a, b, c, d, e, f) as c_int }
            }
        }
    )*};
}

// Limits by the newer call, as the C library.
one_call! {
    fn chroot(path: *const c_char) by SYS_chroot(path);
    fn pivot_root(new: *const c_char, old: *const c_char) by SYS_pivot_root(new, old);
    fn unshare(flags: c_int) by SYS_unshare(flags);
    fn setns(fd: c_int, kind: c_int) by SYS_setns(fd, kind);
    fn setrlimit(what: c_int, limit: *const rlimit) by SYS_prlimit64(0, what, limit);
    fn prlimit(pid: c_int, what: c_int, limit: *const rlimit, before: *mut rlimit)
        by SYS_prlimit64(pid, what, limit, before);
    fn getrlimit(what: c_int, limit: *mut rlimit) by SYS_prlimit64(0, what, 0, limit);
}

aliases! {
    fn setrlimit64 = setrlimit(what: c_int, limit: *const rlimit) -> c_int;
    fn prlimit64 = prlimit(pid: c_int, what: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int;
    fn getrlimit64 = getrlimit(what: c_int, limit: *mut rlimit) -> c_int;
}
