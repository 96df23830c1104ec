//! An unmanaged alternate signal stack for each thread.
//!
//! The thread's own stack may be managed (a coroutine's stack in a malloc block), and so may a signal stack of the
//! program's: in direct mode the kernel cannot push a signal frame onto a missing page. The program's are set in name
//! only, and handlers are moved to them ([`small_stack`](super::small_stack)). The engine runs on yet another stack
//! (`folioswap_sys::fault_stack`).

use folioswap::PAGE_SIZE;
use folioswap_sys::memory::place_apart;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{fs_base, own_calls, static_tls, vforked};

use crate::ground::libc_call;
use crate::ground::lock::{Lock, Locked};
use crate::ground::real::own;
use crate::ground::state;
use crate::memory::resident;

/// Room for a frame of each signal, if all come at once: each is made on top of the others before a handler runs. And
/// for what the handlers do here.
pub const SIGNAL_BYTES: usize = 64 * FRAME_BYTES + (64 << 10);
/// A frame, without the tiles of AMX.
const FRAME_BYTES: usize = 4 << 10;
/// A guard page below the stack.
const GUARD_BYTES: usize = PAGE_SIZE;

/// Mappings of threads that have ended.
static SPARE: Lock<Vec<usize>> = Lock::new(Vec::new());

pub fn spare() -> Locked<Vec<usize>> {
    SPARE.lock()
}

static_tls! {
    /// Start of this thread's mapping; zero if it has none.
    static MAPPING: usize = "folioswap_signal_stack";
}

static_tls! {
    /// The program's stack that this one replaces. Its size is zero if there is none.
    static STANDS_FOR: libc::stack_t = "folioswap_stands_for";
}

fn map() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, whose first page nobody uses yet.
    unsafe {
        let place = place_apart(GUARD_BYTES + SIGNAL_BYTES);
        let addr = own!(libc::SYS_mmap, place, GUARD_BYTES + SIGNAL_BYTES, access, flags, -1i32, 0usize);
        if addr < 0 {
            return None;
        }
        own!(libc::SYS_mprotect, addr, GUARD_BYTES, libc::PROT_NONE);
        Some(addr as usize)
    }
}

fn take_mapping() -> Option<usize> {
    let kept = spare().pop();
    let mapping = kept.or_else(map);
    if mapping.is_none() {
        state::say("a thread has no stack for its faults: no memory");
    }
    mapping
}

/// A stack for a child. Called under a guard.
pub fn take() -> Option<libc::stack_t> {
    take_mapping().map(of_mapping)
}

/// Takes such a stack back, by its address. Called under a guard.
pub fn give(addr: usize) {
    spare().push(addr - GUARD_BYTES);
}

fn of_mapping(mapping: usize) -> libc::stack_t {
    libc::stack_t { ss_sp: (mapping + GUARD_BYTES) as *mut libc::c_void, ss_flags: 0, ss_size: SIGNAL_BYTES }
}

/// Sets the calling thread's stack. Called under a guard.
pub fn attach() {
    if MAPPING.get() != 0 {
        return;
    }
    let Some(mapping) = take_mapping() else { return };
    MAPPING.set(mapping);
    // SAFETY: this thread's own from here on, and not set yet.
    unsafe { fs_base::note(&of_mapping(mapping)) };
    // The program has set one already, perhaps.
    let before = set_signal_stack(own_signal_stack());
    set_stands_for(before.filter(|before| mode(before) != libc::SS_DISABLE));
}

/// Takes the calling thread's stack back. Called under a guard.
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
    // SAFETY: it is not set any more.
    unsafe { fs_base::forget(&of_mapping(mapping)) };
    spare().push(mapping);
}

fn is_own(stack: &libc::stack_t, mapping: usize) -> bool {
    mapping != 0 && stack.ss_sp as usize == mapping + GUARD_BYTES
}

/// This thread's own alternate stack.
pub fn own_signal_stack() -> Option<libc::stack_t> {
    Some(MAPPING.get()).filter(|&mapping| mapping != 0).map(of_mapping)
}

/// Whether a stack pointer is on a stack.
pub fn is_on(stack: &libc::stack_t, pointer: usize) -> bool {
    pointer.wrapping_sub(stack.ss_sp as usize).wrapping_sub(1) < stack.ss_size
}

/// Whether a stack pointer is on this thread's own alternate stack.
pub fn is_on_own(pointer: usize) -> bool {
    own_signal_stack().is_some_and(|own| is_on(&own, pointer))
}

/// Whether a stack pointer is on the program's stack that this library's stack replaces. The kernel takes nobody to be
/// on a stack that it does not keep while a handler runs.
pub fn is_on_theirs(pointer: usize) -> bool {
    stands_for().is_some_and(|theirs| !disarms(&theirs) && is_on(&theirs, pointer))
}

/// The stack to set when the program asks for one, or for none: this library's, which takes the frames of faults and
/// caught calls, for which the program's may have no room. One that the kernel does not take is left to it.
pub fn instead_of(wanted: libc::stack_t) -> libc::stack_t {
    let Some(own) = own_signal_stack().filter(|_| complaint(&wanted) == 0) else { return wanted };
    set_stands_for((mode(&wanted) != libc::SS_DISABLE).then_some(wanted));
    own
}

/// The kernel's flag that a handler is to find no stack set.
pub const SS_AUTODISARM: i32 = i32::MIN;

/// Whether a handler is to find no stack set.
pub fn disarms(stack: &libc::stack_t) -> bool {
    stack.ss_flags & SS_AUTODISARM != 0
}

/// What the program wants, less that flag.
fn mode(wanted: &libc::stack_t) -> i32 {
    wanted.ss_flags & !SS_AUTODISARM
}

/// The kernel's error number for a stack; zero if it takes it.
pub fn complaint(wanted: &libc::stack_t) -> i32 {
    match mode(wanted) {
        libc::SS_DISABLE => 0,
        0 | libc::SS_ONSTACK if wanted.ss_size < libc::MINSIGSTKSZ => libc::ENOMEM,
        0 | libc::SS_ONSTACK => 0,
        _ => libc::EINVAL,
    }
}

/// Holds the stack that the calling thread has set, if it is the program's: it was set before the engine started, in a
/// handler that runs on it. The kernel goes on to use it.
pub fn hold_current() {
    let current = current();
    if mode(&current) != libc::SS_DISABLE && !is_own(&current, MAPPING.get()) {
        resident::hold(current.ss_sp as usize, current.ss_size);
    }
}

/// The stack that the kernel knows for the calling thread.
pub fn current() -> libc::stack_t {
    let mut current = none();
    // SAFETY: the kernel fills in the description.
    unsafe { own!(libc::SYS_sigaltstack, std::ptr::null::<libc::stack_t>(), &raw mut current) };
    current
}

/// The same, found out without anything thread-local. Not where the program's filters might forbid it.
pub fn current_without_tls() -> Option<libc::stack_t> {
    let mut current = none();
    // SAFETY: the kernel fills in the description, and cannot fail.
    let is_known =
        !own_calls::is_used() && unsafe { libc_call::without_tls(libc::SYS_sigaltstack, 0, &raw mut current as usize) };
    is_known.then_some(current)
}

/// The program's stack that this library's stack replaces.
pub fn stands_for() -> Option<libc::stack_t> {
    Some(STANDS_FOR.get()).filter(|stack| stack.ss_size > 0)
}

/// The stack for the kernel to set where a handler returns in whose context there is `noted`: it stays what it is, but
/// for one that was set before the handler began only.
pub fn set_again(noted: libc::stack_t) -> libc::stack_t {
    let own = own_signal_stack().filter(|_| disarms(&noted));
    let Some(own) = own else { return if disarms(&noted) { noted } else { current() } };
    set_stands_for(Some(noted));
    own
}

/// A child that shares the memory leaves its parent's.
pub fn set_stands_for(stack: Option<libc::stack_t>) {
    if stack.is_none() && stands_for().is_none() || vforked::is_child() {
        return;
    }
    STANDS_FOR.set(stack.unwrap_or(none()));
}

/// What the program is told when `set` is set and replaces `stands_for`.
pub fn told(set: libc::stack_t, stands_for: Option<libc::stack_t>) -> libc::stack_t {
    if !is_own(&set, MAPPING.get()) {
        return set;
    }
    match stands_for {
        Some(theirs) if disarms(&theirs) => libc::stack_t { ss_flags: SS_AUTODISARM, ..theirs },
        Some(theirs) => libc::stack_t { ss_flags: set.ss_flags & libc::SS_ONSTACK, ..theirs },
        None => libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 },
    }
}

/// No stack.
fn none() -> libc::stack_t {
    libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 }
}

/// Sets the alternate stack, or none for `None`. Returns the previous one.
fn set_signal_stack(stack: Option<libc::stack_t>) -> Option<libc::stack_t> {
    let stack = stack.unwrap_or(none());
    let mut before = none();
    // SAFETY: the kernel reads one description and fills in the other. The stack's memory lives as long as it is set.
    let result = unsafe { own!(libc::SYS_sigaltstack, &raw const stack, &raw mut before) };
    (result == 0).then_some(before)
}
