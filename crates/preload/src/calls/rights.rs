//! Calls by which the program gives up rights, or limits itself.
//!
//! What the engine would have to make later, when it is no longer permitted, is made before. What would lead code out
//! of the new root is closed.

use std::ffi::{c_char, c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_sys::kept;
use libc::{gid_t, size_t, uid_t};

use crate::calls::{copied, mirrored};
use crate::ground::export::{export, real};
use crate::ground::real::own;
use crate::ground::{guard, state, waiting};
use crate::map::adopt;

/// landlock_restrict_self, since Linux 5.13.
const RESTRICT: c_long = 446;

/// What `prctl` changes of a thread's rights.
const OF_A_THREAD: [c_int; 2] = [libc::PR_SET_KEEPCAPS, libc::PR_SET_SECUREBITS];

/// The program has changed rights that each thread has for itself, before the engine had any thread.
static HAS_OWN_RIGHTS: AtomicBool = AtomicBool::new(false);

/// Whether the engine's threads may start now. With other rights than the program's thread, they would get another
/// answer when the C library changes the user of all threads, and it ends the process then. A child that shares the
/// memory until it executes a program has its own rights.
fn may_start() -> bool {
    (state::arena().is_some() || !HAS_OWN_RIGHTS.load(Ordering::Relaxed)) && waiting::is_own_process()
}

/// Starts the engine, and adopts, before the program gives up a right.
fn ready() {
    if may_start() {
        adopt::now();
    }
}

/// Called before a call that changes the rights of one thread. The engine does not start for it, but if it runs, all of
/// its threads do from now on.
fn before_own_rights() {
    if state::arena().is_some() && may_start() {
        adopt::now();
        prepare();
    }
}

/// Called after it has succeeded.
fn after_own_rights(number: c_long, words: &[usize; 6]) {
    if state::arena().is_none() && waiting::is_own_process() {
        HAS_OWN_RIGHTS.store(true, Ordering::Relaxed);
    }
    mirrored::mirror(number, words);
}

/// Called before a call by which the program gives up rights or sets a limit, or for which the engine must run.
pub fn before(number: c_long, words: &[usize; 6]) {
    // The kernel lets processes of one thread only into another user namespace or time namespace. A new one of time is
    // entered by setns.
    const USER: usize = libc::CLONE_NEWUSER as usize;
    const TIME: usize = libc::CLONE_NEWTIME as usize;
    match number {
        libc::SYS_unshare if words[0] & USER != 0 || words[0] == TIME => {}
        libc::SYS_setns if words[1] & (USER | TIME) != 0 => {}
        libc::SYS_setns if words[1] == 0 || words[1] & libc::CLONE_NEWNS as usize != 0 => {
            ready();
            mirrored::set_apart();
        }
        libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_unshare | libc::SYS_setns => ready(),
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid | libc::SYS_setfsuid => ready(),
        libc::SYS_setgid | libc::SYS_setregid | libc::SYS_setresgid | libc::SYS_setfsgid => ready(),
        libc::SYS_setgroups | RESTRICT => ready(),
        libc::SYS_capset => before_own_rights(),
        libc::SYS_prctl if OF_A_THREAD.contains(&(words[0] as c_int)) => before_own_rights(),
        libc::SYS_io_uring_setup | libc::SYS_io_setup => waiting::now(),
        // A process that is not dumpable may not open its own page map.
        libc::SYS_prctl if words[0] == libc::PR_SET_DUMPABLE as usize && words[1] != 1 => ready(),
        _ => {}
    }
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
    match number {
        libc::SYS_capset => after_own_rights(number, words),
        libc::SYS_prctl if OF_A_THREAD.contains(&(words[0] as c_int)) => after_own_rights(number, words),
        // The C library's functions, which do it for all threads, do not come here.
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => _ = mirrored::mirror(number, words),
        libc::SYS_setgid | libc::SYS_setregid | libc::SYS_setresgid => _ = mirrored::mirror(number, words),
        libc::SYS_setgroups => mirror_groups(),
        _ => {}
    }
    let leaves = match number {
        libc::SYS_chroot | libc::SYS_pivot_root => true,
        libc::SYS_unshare => words[0] & SPACES != 0,
        libc::SYS_setns => words[1] == 0 || words[1] & SPACES != 0,
        _ => false,
    };
    if leaves && waiting::is_own_process() {
        let _guard = guard::enter();
        state::keeping_errno(kept::leave_root);
    }
}

/// Starts all threads of the engine.
fn prepare() {
    if !may_start() {
        return;
    }
    waiting::now();
    if let Some(arena) = state::arena().filter(|_| !guard::inside()) {
        let _guard = guard::enter();
        state::keeping_errno(|| arena.prepare_for_limits());
    }
}

/// An id that stays as it is.
const SAME: u32 = u32::MAX;

/// Functions that change the user or group of all threads, each with the call that it makes for a thread. The C library
/// does not know the engine's. The new user may have no thread left (RLIMIT_NPROC).
macro_rules! changes_user {
    ($(fn $name:ident = $text:literal($($user:ident: $kind:ty),*) by $number:ident($($id:ident),*);)*) => {$(
        export! {
            fn $name($($user: $kind),*) -> c_int {
                real!(REAL = $text: fn($($kind),*) -> c_int);
                prepare();
                // SAFETY: passes the caller's arguments on unchanged.
                let result = unsafe { REAL.get()($($user),*) };
                if result == 0 {
                    let mut words = [0; 6];
                    words.iter_mut().zip([$($id as usize),*]).for_each(|(word, id)| *word = id);
                    mirrored::mirror(libc::$number, &words);
                }
                result
            }
        }
    )*};
}

/// The same for the groups of the calling thread, which it has just changed for all threads.
fn mirror_groups() {
    if !mirrored::is_possible() {
        return;
    }
    let groups = {
        let _guard = guard::enter();
        // SAFETY: asks for the number of groups; then the kernel fills in that many at most.
        unsafe {
            let count = own!(libc::SYS_getgroups, 0, std::ptr::null_mut::<gid_t>()).max(0) as usize;
            let mut groups = vec![0 as gid_t; count];
            let count = own!(libc::SYS_getgroups, count, groups.as_mut_ptr()).max(0) as usize;
            groups.truncate(count);
            groups
        }
    };
    let have_all = mirrored::mirror(libc::SYS_setgroups, &[groups.len(), groups.as_ptr() as usize, 0, 0, 0, 0]);
    let _guard = guard::enter();
    match have_all {
        true => drop(groups),
        false => std::mem::forget(groups), // a thread is late
    }
}

changes_user! {
    fn setuid = c"setuid"(user: uid_t) by SYS_setuid(user);
    fn seteuid = c"seteuid"(user: uid_t) by SYS_setresuid(SAME, user, SAME);
    fn setreuid = c"setreuid"(real: uid_t, effective: uid_t) by SYS_setreuid(real, effective);
    fn setresuid = c"setresuid"(real: uid_t, effective: uid_t, saved: uid_t) by SYS_setresuid(real, effective, saved);
    fn setgid = c"setgid"(group: gid_t) by SYS_setgid(group);
    fn setegid = c"setegid"(group: gid_t) by SYS_setresgid(SAME, group, SAME);
    fn setregid = c"setregid"(real: gid_t, effective: gid_t) by SYS_setregid(real, effective);
    fn setresgid = c"setresgid"(real: gid_t, effective: gid_t, saved: gid_t) by SYS_setresgid(real, effective, saved);
}

/// Functions that change what the kernel checks for the calling thread alone.
macro_rules! changes_own_user {
    ($(fn $name:ident = $text:literal($user:ident: $kind:ty);)*) => {$(
        export! {
            fn $name($user: $kind) -> c_int {
                real!(REAL = $text: fn($kind) -> c_int);
                prepare();
                // SAFETY: passes the caller's argument on unchanged.
                unsafe { REAL.get()($user) }
            }
        }
    )*};
}

changes_own_user! {
    fn setfsuid = c"setfsuid"(user: uid_t);
    fn setfsgid = c"setfsgid"(group: gid_t);
}

export! {
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int {
        real!(SETGROUPS = c"setgroups": fn(size_t, *const gid_t) -> c_int);
        prepare();
        // SAFETY: the caller's call, with a valid copy in place of its pointer.
        let result = unsafe {
            let copy = copied::values(groups, count);
            SETGROUPS.get()(count, copy.at(groups))
        };
        if result == 0 {
            mirror_groups();
        }
        result
    }
}

export! {
    fn initgroups(user: *const c_char, group: gid_t) -> c_int {
        real!(INITGROUPS = c"initgroups": fn(*const c_char, gid_t) -> c_int);
        ready();
        prepare();
        // SAFETY: the caller's call, with a valid copy in place of its pointer.
        let result = unsafe {
            let copy = copied::text(user);
            INITGROUPS.get()(copy.at(user), group)
        };
        if result == 0 {
            mirror_groups();
        }
        result
    }
}

export! {
    fn capset(header: *mut [u32; 2], rights: *const [u32; 6]) -> c_int {
        real!(CAPSET = c"capset": fn(*mut [u32; 2], *const [u32; 6]) -> c_int);
        before_own_rights();
        // SAFETY: the caller's call, with valid copies in place of its pointers.
        unsafe {
            let copies = (copied::value(header), copied::value(rights));
            let result = CAPSET.get()(copies.0.at(header), copies.1.at(rights));
            let result = copies.0.bring_back(result);
            if result == 0 {
                after_own_rights(libc::SYS_capset, &[header as usize, rights as usize, 0, 0, 0, 0]);
            }
            result
        }
    }
}
