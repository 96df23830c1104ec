//! The alternate signal stack of each thread in direct mode, never managed, unless the program sets a large one of its own:
//! the thread's own stack may be in managed memory (a coroutine's in a malloc block), and the kernel cannot put a
//! signal's frame on a page that is missing. The engine runs on a stack of its own (`folioswap_sys::fault_stack`).

use std::cell::Cell;
use std::sync::Mutex;

use crate::real::kernel;
use crate::state;

const SIGNAL_BYTES: usize = 64 << 10;
/// The least that a stack of the program's must have to be used.
const LEAST_BYTES: usize = 32 << 10;
/// No memory, below it.
const GUARD_BYTES: usize = 4096;

/// Mappings of threads that have ended.
static SPARE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    /// Where this thread's mapping begins; zero when it has none.
    static MAPPING: Cell<usize> = const { Cell::new(0) };
    /// The program's stack that this one stands in for.
    static STANDS_FOR: Cell<Option<libc::stack_t>> = const { Cell::new(None) };
}

fn map() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, whose first page nobody has used.
    unsafe {
        let addr = kernel!(libc::SYS_mmap, 0usize, GUARD_BYTES + SIGNAL_BYTES, access, flags, -1i32, 0usize);
        if addr < 0 {
            return None;
        }
        kernel!(libc::SYS_mprotect, addr, GUARD_BYTES, libc::PROT_NONE);
        Some(addr as usize)
    }
}

/// Gives the calling thread its stack. Under a guard.
pub fn attach() {
    if MAPPING.get() != 0 {
        return;
    }
    let spare = SPARE.lock().expect("nothing panics under this lock").pop();
    let Some(mapping) = spare.or_else(map) else {
        state::say("a thread has no stack for its faults: no memory");
        return;
    };
    MAPPING.set(mapping);
    let before = set_signal_stack(None);
    if before.is_some_and(|before| before.ss_flags & libc::SS_DISABLE == 0) {
        set_signal_stack(before); // the program was first
    } else {
        set_signal_stack(own_signal_stack());
    }
}

/// Takes the calling thread's stack back. Under a guard.
pub fn detach() {
    let mapping = MAPPING.replace(0);
    if mapping == 0 {
        return;
    }
    if let Some(current) = set_signal_stack(None)
        && !is_own(&current, mapping)
    {
        set_signal_stack(Some(current));
    }
    SPARE.lock().expect("nothing panics under this lock").push(mapping);
}

fn is_own(stack: &libc::stack_t, mapping: usize) -> bool {
    mapping != 0 && stack.ss_sp as usize == mapping + GUARD_BYTES
}

/// This thread's own alternate stack, to be set.
pub fn own_signal_stack() -> Option<libc::stack_t> {
    match MAPPING.get() {
        0 => None,
        mapping => Some(libc::stack_t {
            ss_sp: (mapping + GUARD_BYTES) as *mut libc::c_void,
            ss_flags: 0,
            ss_size: SIGNAL_BYTES,
        }),
    }
}

/// What to set when the program wants a stack, or none. Small ones are kept in name only: a system call that is caught,
/// with a fault in it, takes more than 8 KiB of some processors.
pub fn instead_of(wanted: libc::stack_t) -> libc::stack_t {
    let Some(own) = own_signal_stack() else { return wanted };
    let none = wanted.ss_flags & libc::SS_DISABLE != 0;
    let small = wanted.ss_flags == 0 && (libc::MINSIGSTKSZ..LEAST_BYTES).contains(&wanted.ss_size);
    STANDS_FOR.set(small.then_some(wanted));
    if none || small { own } else { wanted }
}

/// The program's stack that this library's stands in for.
pub fn stands_for() -> Option<libc::stack_t> {
    STANDS_FOR.get()
}

pub fn set_stands_for(stack: Option<libc::stack_t>) {
    STANDS_FOR.set(stack);
}

/// What the program is told when this is set, and stands for that.
pub fn told(set: libc::stack_t, stands_for: Option<libc::stack_t>) -> libc::stack_t {
    if !is_own(&set, MAPPING.get()) {
        return set;
    }
    match stands_for {
        Some(theirs) => libc::stack_t { ss_flags: set.ss_flags & libc::SS_ONSTACK, ..theirs },
        None => libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 },
    }
}

/// Sets the alternate stack; `None` sets none. Gives the one before.
fn set_signal_stack(stack: Option<libc::stack_t>) -> Option<libc::stack_t> {
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    let stack = stack.unwrap_or(none);
    let mut before = none;
    // SAFETY: the kernel reads one description and fills in the other; whose memory it names lives as long as it is set.
    let result = unsafe { kernel!(libc::SYS_sigaltstack, &raw const stack, &raw mut before) };
    (result == 0).then_some(before)
}
