//! Calls by which the program gives up rights, or limits itself.
//!
//! What the engine would have to make later, when it is no longer permitted, is made before. What would lead code out
//! of the new root is closed.

use std::ffi::{c_char, c_int, c_long};

use folioswap_sys::kept;
use libc::{rlimit, uid_t};

use crate::calls::by_number::syscall;
use crate::export::{export, real};
use crate::{guard, state};

/// Called before a call that sets a limit.
pub fn before(number: c_long, words: &[usize; 6]) {
    const LIMITS: [u32; 4] = [libc::RLIMIT_NPROC, libc::RLIMIT_NOFILE, libc::RLIMIT_AS, libc::RLIMIT_DATA];
    let (what, is_set) = match number {
        libc::SYS_setrlimit => (words[0], words[1] != 0),
        libc::SYS_prlimit64 => (words[1], words[2] != 0),
        _ => return,
    };
    if is_set && LIMITS.contains(&(what as u32)) {
        prepare();
    }
}

/// Called after a call that has succeeded.
pub fn after(number: c_long, words: &[usize; 6]) {
    const SPACES: usize = (libc::CLONE_NEWNS | libc::CLONE_NEWUSER) as usize;
    let leaves = match number {
        libc::SYS_chroot | libc::SYS_pivot_root => true,
        libc::SYS_unshare => words[0] & SPACES != 0,
        libc::SYS_setns => words[1] == 0 || words[1] & SPACES != 0,
        _ => false,
    };
    if leaves {
        let _guard = guard::enter();
        state::keeping_errno(kept::leave_root);
    }
}

/// Starts all threads of the engine.
fn prepare() {
    if let Some(arena) = state::arena().filter(|_| !guard::inside()) {
        let _guard = guard::enter();
        state::keeping_errno(|| arena.prepare_for_limits());
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
    fn setrlimit64(what: c_int, limit: *const rlimit) -> c_int {
        // SAFETY: the same on 64-bit machines.
        unsafe { setrlimit(what, limit) }
    }
}

export! {
    fn prlimit(pid: c_int, what: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { syscall(libc::SYS_prlimit64, pid as usize, what as usize, limit as usize, before as usize, 0, 0) as c_int }
    }
}

export! {
    fn prlimit64(pid: c_int, what: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int {
        // SAFETY: the same on 64-bit machines.
        unsafe { prlimit(pid, what, limit, before) }
    }
}

/// The new user may have no thread left (RLIMIT_NPROC).
macro_rules! changes_user {
    ($(fn $name:ident = $text:literal($($user:ident),*);)*) => {$(
        export! {
            fn $name($($user: uid_t),*) -> c_int {
                real!(REAL = $text: fn($(changes_user!(@ $user)),*) -> c_int);
                prepare();
                // SAFETY: passes the caller's arguments on unchanged.
                unsafe { REAL.get()($($user),*) }
            }
        }
    )*};
    (@ $user:ident) => { uid_t };
}

changes_user! {
    fn setuid = c"setuid"(user);
    fn setreuid = c"setreuid"(real, effective);
    fn setresuid = c"setresuid"(real, effective, saved);
}
