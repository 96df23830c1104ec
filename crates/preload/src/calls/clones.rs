//! `clone` and its like, where the child gets a copy of the memory. No fork handlers of the C library's run then, so
//! they run here, around the call.
//!
//! Some children get no managed memory: those that share the descriptors, since what such a child closes is closed in
//! its parent; those for whose end or exec the kernel lets the parent wait; those with other thread-local storage or
//! without signal handlers; and those that a system call gives a stack of their own.

use std::ffi::{c_int, c_long, c_void};
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use folioswap_sys::{own_calls, seat};
use libc::stack_t;

use crate::calls::{dispatch, fork};
use crate::faults::threads;
use crate::ground::export::{export, real};
use crate::ground::real::{kernel, own, raw_result};
use crate::ground::{guard, state};
use crate::memory::access;

type Work = extern "C" fn(*mut c_void) -> c_int;

/// Below the end of a stack that `clone` was given, this much is assumed to be the stack's.
const STACK_BYTES: usize = 16 << 10;

const CLEARS_HANDLERS: usize = 1 << 32;

/// Flags with which the engine does not go on in the child.
const UNMANAGED: usize =
    (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_SETTLS) as usize | CLEARS_HANDLERS;

/// Whether the child has a copy of the memory, and the engine may go on in it.
fn is_copy(flags: usize) -> bool {
    flags & UNMANAGED == 0 && !guard::inside() && state::may_manage()
}

/// Makes a call that creates a child with a copy of the memory, which goes on where the caller does. The result is the
/// kernel's. `None`: this is no such call.
///
/// # Safety
/// As the system call.
pub unsafe fn by_number(number: c_long, words: &[usize; 6]) -> Option<isize> {
    let (flags, stack, child) = match number {
        libc::SYS_fork => (0, 0, 0),
        libc::SYS_clone => (words[0], words[1], words[3]),
        libc::SYS_clone3 => {
            // SAFETY: the caller upholds this function's own contract.
            let [flags, _, child, _, _, stack] = unsafe { access::read(words[0] as *const [usize; 6]) }?;
            (flags, stack, child)
        }
        _ => return None,
    };
    if !is_copy(flags) || stack != 0 {
        return None;
    }
    // SAFETY: the caller upholds this function's own contract.
    Some(unsafe {
        dispatch::touch_for_clone(number, words);
        copied(flags, child, || raw_result(number, words))
    })
}

/// # Safety
/// `call` makes a child with a copy of the memory.
unsafe fn copied(flags: usize, id_at: usize, call: impl FnOnce() -> isize) -> isize {
    let result = fork::around(call);
    if result == 0 && flags & libc::CLONE_CHILD_SETTID as usize != 0 && state::is_managed(id_at) {
        // The kernel did not find the page.
        // SAFETY: the address that the program gave for this.
        unsafe { (id_at as *mut c_int).write_unaligned(kernel!(libc::SYS_gettid) as c_int) };
    }
    result
}

/// The program has made threads of which the C library does not know.
static HAS_OWN_THREADS: AtomicBool = AtomicBool::new(false);

/// Notes the flags of a call of `clone`.
pub fn note_flags(flags: usize) {
    if flags & libc::CLONE_THREAD as usize != 0 {
        HAS_OWN_THREADS.store(true, Ordering::Relaxed);
    }
}

/// Whether the program has one thread, as far as is known.
pub fn has_one_thread() -> bool {
    !HAS_OWN_THREADS.load(Ordering::Relaxed) && seat::has_one_other()
}

/// Threads that are about to end, locked.
pub type Ending = MutexGuard<'static, Vec<u32>>;

pub fn ending() -> Ending {
    static ENDING: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    ENDING.lock().expect("nothing panics under this lock")
}

/// Whether this thread, which ends now, is the program's last. The engine's would outlive it.
pub fn is_last_thread() -> bool {
    if state::arena().is_none() {
        return false;
    }
    if own_calls::is_used() {
        return has_one_thread(); // the program's filter may refuse to open a directory
    }
    let _guard = guard::enter();
    let mut ending = self::ending();
    let Ok(listed) = std::fs::read_dir("/proc/self/task") else { return false };
    let threads: Vec<u32> = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ending.retain(|thread| threads.contains(thread));
    ending.push(guard::this_thread());
    threads.into_iter().all(|thread| ending.contains(&thread) || folioswap::is_internal(thread) || has_ended(thread))
}

/// Whether a thread has ended. The first one of a process stays listed until the others have ended, too.
fn has_ended(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.is_empty() || state.starts_with(['Z', 'X'])
}

/// What a child in the program's memory begins with: its signal stack, and what the program wants it to do.
struct Beginning {
    work: Work,
    argument: *mut c_void,
    stack: stack_t,
}

impl Beginning {
    /// Puts this at the end of the signal stack that is used last.
    fn put(self) -> *mut Beginning {
        let at = self.stack.ss_sp.cast::<Beginning>();
        // SAFETY: the stack is larger, aligned, and nobody uses it yet.
        unsafe { at.write(self) };
        at
    }
}

extern "C" fn begin(beginning: *mut c_void) -> c_int {
    // SAFETY: `clone` below has put it there. The kernel reads the description of the child's own stack.
    let Beginning { work, argument, stack } = unsafe { beginning.cast::<Beginning>().read() };
    // SAFETY: as above.
    unsafe { own!(libc::SYS_sigaltstack, &raw const stack, 0usize) };
    work(argument)
}

export! {
    fn clone(
        work: Option<Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_int,
        tls: *mut c_void, child: *mut c_int,
    ) -> c_int {
        type Pointer = *mut c_void;
        real!(REAL = c"clone": fn(Option<Work>, Pointer, c_int, Pointer, *mut c_int, Pointer, *mut c_int) -> c_int);
        let words = [flags as usize, stack as usize, parent as usize, child as usize, tls as usize, 0];
        if !guard::inside() && state::may_manage() {
            // SAFETY: the arguments of the program's own call.
            unsafe { dispatch::before_clone(libc::SYS_clone, &words) };
        }
        let shares = flags & (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) == libc::CLONE_VM;
        if shares && !stack.is_null() && state::direct() && !guard::inside()
            && let Some(work) = work
        {
            let is_thread = flags & libc::CLONE_THREAD != 0;
            return threads::with_signal_stack(stack as usize, is_thread, |signal_stack| {
                let beginning = signal_stack.map(|stack| Beginning { work, argument, stack }.put());
                let (work, argument) = beginning.map_or((work, argument), |at| (begin as Work, at.cast()));
                // SAFETY: the program's call, but for what it begins with.
                unsafe { REAL.get()(Some(work), stack, flags, argument, parent, tls, child) }
            });
        }
        let Some(work) = work.filter(|_| is_copy(flags as usize) && !stack.is_null()) else {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { REAL.get()(work, stack, flags, argument, parent, tls, child) };
        };
        // The child begins on a copy of this stack. It has that of the program once it has managed memory.
        let on_this_stack = [words[0], 0, words[2], words[3], words[4], 0];
        // SAFETY: the program's call, but for the stack.
        let result = unsafe {
            copied(words[0], words[3], || {
                dispatch::touch_for_clone(libc::SYS_clone, &words);
                raw_result(libc::SYS_clone, &on_this_stack)
            })
        };
        if result < 0 {
            state::fail(-result as c_int);
            return -1;
        }
        if result == 0 {
            let top = stack as usize & !15;
            // SAFETY: the stack that the program gave for this. Nothing comes back from it.
            unsafe {
                psm::on_stack(without_provenance_mut(top - STACK_BYTES), STACK_BYTES, || {
                    kernel!(libc::SYS_exit_group, work(argument));
                });
            }
        }
        result as c_int
    }
}

export! {
    fn __clone(
        work: Option<Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_int,
        tls: *mut c_void, child: *mut c_int,
    ) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { clone(work, stack, flags, argument, parent, tls, child) }
    }
}

export! {
    #[allow(non_snake_case)] // the C library's name
    fn _Fork() -> libc::pid_t {
        real!(REAL = c"_Fork": fn() -> libc::pid_t);
        // SAFETY: takes no pointers.
        fork::around(|| unsafe { REAL.get()() as isize }) as libc::pid_t
    }
}
