//! An unmanaged alternate signal stack for each thread in direct mode, unless the program sets a large one itself that
//! no other thread uses.
//!
//! The thread's own stack may be managed (a coroutine's stack in a malloc block), and the kernel cannot push a signal
//! frame onto a missing page. The engine runs on yet another stack (`folioswap_sys::fault_stack`).

use std::ops::Range;

use folioswap::PAGE_SIZE;
use folioswap_sys::memory::place_apart;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{fs_base, own_calls, static_tls, vforked};

use crate::ground::libc_call;
use crate::ground::lock::{Lock, Locked};
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::resident;

/// Room for a frame of each signal, if all come at once: each is made on top of the others before a handler runs. And
/// for what the handlers do here.
pub const SIGNAL_BYTES: usize = 64 * FRAME_BYTES + (64 << 10);
/// A frame, without the tiles of AMX.
const FRAME_BYTES: usize = 4 << 10;
/// The smallest stack of the program's that is really used, unless another thread uses it, and the largest: all of it
/// is held in RAM.
const LEAST_BYTES: usize = 32 << 10;
const MOST_BYTES: usize = 1 << 20;
/// A guard page below the stack.
const GUARD_BYTES: usize = PAGE_SIZE;

pub struct Stacks {
    /// Mappings of threads that have ended.
    spare: Vec<usize>,
    /// The program's stacks that are really used.
    used: Vec<Used>,
}

/// A stack of the program's that is really used.
struct Used {
    /// The mapping of the thread that uses it.
    thread: usize,
    range: Range<usize>,
    /// Whether it is held since it was adopted. What is managed already when it is set is in [`HELD`].
    is_held: bool,
}

impl Stacks {
    /// What a thread uses no longer.
    fn take_used(&mut self, thread: usize) -> Vec<Before> {
        let taken = self.used.extract_if(.., |used| used.thread == thread).filter(|used| used.is_held);
        taken.map(|used| Before(used.range.start, used.range.len())).collect()
    }
}

static STACKS: Lock<Stacks> = Lock::new(Stacks { spare: Vec::new(), used: Vec::new() });

/// These, locked.
pub type LockedStacks = Locked<Stacks>;

pub fn stacks() -> LockedStacks {
    STACKS.lock()
}

static_tls! {
    /// Start of this thread's mapping; zero if it has none.
    static MAPPING: usize = "folioswap_signal_stack";
}

static_tls! {
    /// The program's stack that this one replaces. Its size is zero if there is none.
    static STANDS_FOR: libc::stack_t = "folioswap_stands_for";
}

static_tls! {
    /// The program's stack that is held in RAM: its address and size.
    static HELD: (usize, usize) = "folioswap_held_signal_stack";
}

static_tls! {
    /// Whether this thread really uses a stack of the program's.
    static USES_THEIRS: bool = "folioswap_uses_theirs";
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
    let kept = stacks().spare.pop();
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
    stacks().spare.push(addr - GUARD_BYTES);
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
    let known = current();
    // The program may have set one already.
    let wanted = if mode(&known) == libc::SS_DISABLE { of_mapping(mapping) } else { instead_of(known) };
    set_signal_stack(Some(wanted));
    drop(hold(&wanted));
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
    let used = stacks().take_used(mapping);
    drop(used); // not under the lock
    stacks().spare.push(mapping);
}

fn is_own(stack: &libc::stack_t, mapping: usize) -> bool {
    mapping != 0 && stack.ss_sp as usize == mapping + GUARD_BYTES
}

/// This thread's own alternate stack.
pub fn own_signal_stack() -> Option<libc::stack_t> {
    Some(MAPPING.get()).filter(|&mapping| mapping != 0).map(of_mapping)
}

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

/// Notes which stack the calling thread really uses, if any. `false`: another thread uses it, and this one none.
fn note_used(wanted: Option<&libc::stack_t>) -> bool {
    if vforked::is_child() {
        return true;
    }
    let _guard = guard::enter();
    let mapping = MAPPING.get();
    let Some(wanted) = wanted else {
        USES_THEIRS.set(false);
        let before = stacks().take_used(mapping);
        drop(before); // not under the lock
        return true;
    };
    let range = wanted.ss_sp as usize..(wanted.ss_sp as usize).saturating_add(wanted.ss_size);
    if stacks().used.iter().any(|used| used.thread == mapping && used.range == range) {
        return true; // and it stays held
    }
    let _before = stacks().take_used(mapping);
    let mut stacks = stacks();
    let is_free = stacks.used.iter().all(|used| used.range.end <= range.start || range.end <= used.range.start);
    USES_THEIRS.set(is_free);
    if is_free {
        stacks.used.push(Used { thread: mapping, range, is_held: false });
    }
    is_free
}

/// The kernel has refused another stack: the thread has the one that it had.
pub fn stay(stood_for: Option<libc::stack_t>) {
    set_stands_for(stood_for);
    let known = current();
    let is_theirs = mode(&known) != libc::SS_DISABLE && !is_own(&known, MAPPING.get());
    note_used(is_theirs.then_some(&known));
    drop(hold(&known));
}

/// The program unmaps, replaces or moves a range. If the calling thread's stack lies there, it is set in name only
/// until what is returned is dropped: the next fault needs one. A program may leave a stack that none of its handlers
/// wants any more.
pub fn leave(range: &Range<usize>) -> Option<Left> {
    let own = own_signal_stack().filter(|_| USES_THEIRS.get() && !vforked::is_child())?;
    let known = current();
    let (start, end) = (known.ss_sp as usize, known.ss_sp as usize + known.ss_size);
    let is_there = range.start < range.end && start < range.end && range.start < end;
    // The kernel changes none that a handler is on.
    if !is_there || is_own(&known, MAPPING.get()) || mode(&known) != 0 {
        return None;
    }
    set_stands_for(Some(known));
    set_signal_stack(Some(own));
    note_used(None);
    drop(hold(&own));
    Some(Left(known))
}

/// A stack that its thread has left. It is set again when dropped, unless its top cannot be written any more.
#[must_use]
pub struct Left(libc::stack_t);

impl Drop for Left {
    fn drop(&mut self) {
        const TOP_BYTES: usize = 64;
        let top = (self.0.ss_sp as usize + self.0.ss_size).saturating_sub(TOP_BYTES);
        state::keeping_errno(|| {
            if access::is_open(top, TOP_BYTES, Access::Write) {
                let set = instead_of(self.0);
                let _before = hold(&set);
                set_signal_stack(Some(set));
            }
        });
    }
}

/// In a forked child: the other threads are its parent's, and so is what was held.
pub fn begin_child() {
    HELD.set((0, 0));
    let mapping = MAPPING.get();
    stacks().used.retain(|used| used.thread == mapping);
    stacks().used.iter_mut().for_each(|used| used.is_held = false);
}

/// The stack to set when the program asks for one, or for none. Small stacks are set in name only: a caught system call
/// with a fault in it needs more than 8 KiB on some processors. So are those that might not fit into RAM. Handlers run
/// on them all the same ([`small_stack`](super::small_stack)), as on those that the kernel would not keep while a
/// handler runs (SS_AUTODISARM): it may switch to a stack that has left RAM. So is one set that another thread uses, as
/// varnishd has all of its threads set the same, for the one that ends the process: handlers of the others stay on this
/// library's.
pub fn instead_of(wanted: libc::stack_t) -> libc::stack_t {
    let Some(own) = own_signal_stack() else { return wanted };
    let none = mode(&wanted) == libc::SS_DISABLE;
    let is_run_on = !none && complaint(&wanted) == 0 && is_run_on(&wanted);
    let is_free = note_used(if none || is_run_on { None } else { Some(&wanted) });
    let in_name = is_run_on || !is_free;
    set_stands_for(in_name.then_some(wanted));
    if none || in_name { own } else { wanted }
}

/// The kernel's flag that a handler is to find no stack set.
pub const SS_AUTODISARM: i32 = i32::MIN;

/// Whether a handler is to find no stack set.
pub fn disarms(stack: &libc::stack_t) -> bool {
    stack.ss_flags & SS_AUTODISARM != 0
}

/// Whether a stack of the program's is set in name only for what it is itself. Handlers run on it.
fn is_run_on(stack: &libc::stack_t) -> bool {
    !(LEAST_BYTES..=MOST_BYTES).contains(&stack.ss_size) || disarms(stack)
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

/// Holds the stacks that threads have set, and that are managed from now on.
pub fn hold_set() {
    drop(hold(&current()));
    let mapping = MAPPING.get();
    let is_adopted = |used: &&Used| used.thread != mapping && !used.is_held && state::is_managed(used.range.start);
    let adopted: Vec<_> = stacks().used.iter().filter(is_adopted).map(|used| used.range.clone()).collect();
    for range in adopted {
        let held = Before(range.start, range.len());
        resident::hold(range.start, range.len());
        if let Some(used) = stacks().used.iter_mut().find(|used| used.range == range) {
            used.is_held = true;
            std::mem::forget(held);
        }
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

/// The address and size of the stack that is held, if there is one. It stays held, which is the caller's from here on.
pub fn take_held() -> Option<(usize, usize)> {
    let mapping = MAPPING.get();
    let held = Some(HELD.replace((0, 0))).filter(|&held| held != (0, 0));
    let adopted = || {
        let mut stacks = stacks();
        let used = stacks.used.iter_mut().find(|used| used.thread == mapping && used.is_held)?;
        used.is_held = false;
        Some((used.range.start, used.range.len()))
    };
    held.or_else(adopted)
}

/// A stack that stays held until this is dropped.
pub struct Before(usize, usize);

impl Drop for Before {
    fn drop(&mut self) {
        resident::release(self.0, self.1);
    }
}

/// Holds the stack in RAM that the kernel is about to get, if it is the program's: the kernel writes the frames of
/// signals to it, and waits for no page in direct mode. In both, handlers that run on it may be in the engine, under
/// locks. Returns the one before, which the kernel may still use.
pub fn hold(set: &libc::stack_t) -> Before {
    let (addr, len) = (set.ss_sp as usize, set.ss_size);
    let is_set = mode(set) != libc::SS_DISABLE && complaint(set) == 0;
    let wanted = if is_set && state::is_managed(addr) { (addr, len) } else { (0, 0) };
    if wanted == (0, 0) && HELD.get() == (0, 0) {
        return Before(0, 0);
    }
    let _guard = guard::enter(); // a handler may set another stack
    let before = HELD.get();
    if wanted == before {
        drop(Before(addr, len)); // the program may have mapped something else there meanwhile
    }
    resident::hold(wanted.0, wanted.1);
    if vforked::is_child() {
        return Before(0, 0); // the parent's
    }
    HELD.set(wanted);
    if wanted == before { Before(0, 0) } else { Before(before.0, before.1) }
}

/// The program's stack that this library's stack replaces.
pub fn stands_for() -> Option<libc::stack_t> {
    Some(STANDS_FOR.get()).filter(|stack| stack.ss_size > 0)
}

/// The same, if handlers run on it.
pub fn stands_for_run_on() -> Option<libc::stack_t> {
    stands_for().filter(is_run_on)
}

/// What a handler finds in its context, where the kernel has put `noted`. With SS_AUTODISARM no stack is set until it
/// returns.
pub fn in_context(noted: libc::stack_t) -> libc::stack_t {
    if !is_own(&noted, MAPPING.get()) {
        return noted;
    }
    let theirs = STANDS_FOR.get();
    if disarms(&theirs) {
        set_stands_for(None);
    }
    theirs
}

/// The stack for the kernel to set where a handler returns in whose context there is `wanted`. A stack on which the
/// `frame` is stays set, as the kernel has it since Linux 6.12.
pub fn returned_to(wanted: libc::stack_t, frame: usize) -> libc::stack_t {
    let flags = |stack: &libc::stack_t| stack.ss_flags & !libc::SS_ONSTACK;
    let mut known = current();
    known.ss_flags = flags(&known);
    let now = told(known, stands_for());
    let is_same = (now.ss_sp, now.ss_size, flags(&now)) == (wanted.ss_sp, wanted.ss_size, flags(&wanted));
    let is_in_use = !disarms(&now) && is_on(&now, frame);
    if is_same || is_in_use || complaint(&wanted) != 0 {
        return known;
    }
    let mut set = instead_of(wanted);
    let _before = hold(&set);
    set.ss_flags = flags(&set);
    if set.ss_sp != known.ss_sp {
        change(&set);
    }
    set
}

/// Sets a stack though this may run on the one that is set, which the kernel does not change: the call is made from the
/// fault stack. Signals are blocked meanwhile, whose handlers would overwrite frames.
pub fn change(set: &libc::stack_t) {
    extern "C" fn set_now(stack: usize) -> bool {
        // SAFETY: the kernel reads the description that is passed below.
        unsafe { own!(libc::SYS_sigaltstack, stack, 0usize) == 0 }
    }
    let _guard = guard::enter();
    folioswap_sys::fault_stack::call(set_now, &raw const *set as usize);
}

/// A child that shares the memory leaves its parent's.
pub fn set_stands_for(stack: Option<libc::stack_t>) {
    if !vforked::is_child() {
        STANDS_FOR.set(stack.unwrap_or(none()));
    }
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

fn none() -> libc::stack_t {
    libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 }
}

/// Sets the alternate stack, or none for `None`. Returns the previous one.
fn set_signal_stack(stack: Option<libc::stack_t>) -> Option<libc::stack_t> {
    let stack = stack.unwrap_or(none());
    let before = current();
    // SAFETY: the kernel reads the description. The stack's memory lives as long as it is set.
    let result = unsafe { own!(libc::SYS_sigaltstack, &raw const stack, std::ptr::null::<libc::stack_t>()) };
    (result == 0).then_some(before)
}
