//! The program's threads: signal stacks for their faults, and thread stacks in managed memory.
//!
//! The upper part of a stack that the program supplies is held in RAM from before the thread starts until it has
//! certainly ended: the kernel writes to the C library's data there at any time, and the thread uses some of it before
//! its faults can be handled. No code of this library runs last in a thread, so the kernel is asked which threads have
//! ended when the next one is created or joined, or when no memory can leave RAM. The C library's description of a
//! thread, at the top, stays until the thread is joined: other threads that end or fork write to it.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use folioswap::{BLOCK_BYTES, PAGE_SIZE, RawSpace, Waited};
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{fault_stack, futex, held_signals, own_calls, static_tls, tls_vector};
use libc::{pthread_attr_t, pthread_key_t, pthread_t, stack_t};

use crate::faults::{ended_tls, ours, robust, signal_stack, small_stack};
use crate::ground::export::{export, real};
use crate::ground::lock::{Lock, Locked};
use crate::ground::real::{kernel, own};
use crate::ground::{c_library, guard, state, waiting};
use crate::memory::{cover, refused, resident};

pub type Body = extern "C" fn(*mut c_void) -> *mut c_void;

type Destructor = extern "C" fn(*mut c_void);

real!(AT_THREAD_EXIT = c"__cxa_thread_atexit_impl": fn(Destructor, *mut c_void, *mut c_void) -> c_int);
real!(CREATE = c"pthread_create": fn(*mut pthread_t, *const pthread_attr_t, Body, *mut c_void) -> c_int);
real!(STATE = c"pthread_attr_getdetachstate": fn(*const pthread_attr_t, *mut c_int) -> c_int);
real!(MASK = c"pthread_attr_getsigmask_np": fn(*const pthread_attr_t, *mut u64) -> c_int);
real!(CANCEL = c"pthread_cancel": fn(pthread_t) -> c_int);
real!(JOIN = c"pthread_join": fn(pthread_t, *mut *mut c_void) -> c_int);

/// A thread's stack, its signal stack, or its vector of thread-local storage, in managed memory; or the signal stack of
/// a child.
pub struct HeldStack {
    addr: usize,
    len: usize,
    /// The thread that runs on it, and its process; 0 until it has started.
    thread: u32,
    process: u32,
    /// Identifies the entry until the thread has started.
    number: u32,
    kept: Kept,
    /// The C library's description of a thread that is yet to be joined.
    joinable: Option<pthread_t>,
}

/// How it is kept.
enum Kept {
    /// Each of its pages is.
    Pages(Vec<Waited>),
    /// Its blocks are held.
    Held,
    /// It is this library's.
    SignalStack,
}

impl HeldStack {
    fn new(addr: usize, len: usize, number: u32) -> HeldStack {
        HeldStack { addr, len, thread: 0, process: 0, number, kept: Kept::Held, joinable: None }
    }

    /// Keeps its pages in RAM. What was kept in the parent of a forked child is let go first: both are counted.
    fn keep(&mut self, space: &RawSpace) {
        self.kept = Kept::Pages(Vec::new());
        let pages = (self.addr & !(PAGE_SIZE - 1)..self.addr + self.len).step_by(PAGE_SIZE);
        self.kept = Kept::Pages(pages.map(|page| space.wait_on(page, PAGE_SIZE)).collect());
    }

    /// Whether its thread has ended. Of a thread that is yet to be joined, what describes it stays.
    fn is_over(&mut self) -> bool {
        let has_ended = self.has_ended();
        let (Some(thread), Kept::Pages(pages)) = (self.joinable, &mut self.kept) else { return has_ended };
        if has_ended {
            let nr_left = (self.addr + self.len).div_ceil(PAGE_SIZE) - thread as usize / PAGE_SIZE;
            pages.drain(..pages.len().saturating_sub(nr_left));
        }
        false
    }

    /// Its pages that stay in RAM; 1, if they are held by blocks.
    fn nr_kept(&self) -> usize {
        if let Kept::Pages(pages) = &self.kept { pages.len() } else { 1 }
    }

    fn has_ended(&self) -> bool {
        // SAFETY: takes no pointers. Signal 0 only checks whether the thread exists.
        self.thread != 0
            && unsafe { kernel!(libc::SYS_tgkill, self.process, self.thread, 0) < 0 }
            && state::errno() == libc::ESRCH
    }

    fn release(self, space: &RawSpace) {
        match self.kept {
            Kept::Pages(_) => {}
            // SAFETY: held when its thread was created.
            Kept::Held => unsafe { space.release_hold(self.addr, self.len) },
            Kept::SignalStack => signal_stack::give(self.addr),
        }
    }
}

static HELD: Lock<Vec<HeldStack>> = Lock::new(Vec::new());
static NEXT: AtomicU32 = AtomicU32::new(1);

/// How many threads have been made, and are not prepared yet.
static NR_STARTING: AtomicU32 = AtomicU32::new(0);

/// A thread starts within this time, unless it waits for the caller, as it may in a signal handler.
const LONGEST_START: Duration = Duration::from_secs(2);

/// Waits until the threads that have been made are prepared, and take no lock for that any more.
pub fn wait_for_starting() {
    let begun = Instant::now();
    loop {
        let nr_starting = NR_STARTING.load(Ordering::Acquire);
        let left = LONGEST_START.saturating_sub(begun.elapsed());
        if nr_starting == 0 || left.is_zero() {
            return;
        }
        futex::wait_timeout(&NR_STARTING, nr_starting, left);
    }
}

fn note_prepared() {
    if NR_STARTING.fetch_sub(1, Ordering::Release) == 1 {
        futex::wake_all(&NR_STARTING);
    }
}

/// The start routine of a new thread.
struct Beginning {
    body: Body,
    argument: *mut c_void,
    /// The number of its held stack; 0 if it has none.
    number: u32,
    is_joinable: bool,
    /// Set once its creator has held what it needs to handle faults.
    may_begin: AtomicU32,
    /// What it is to block in name: as its creator, or as the attributes say.
    blocked: u64,
    has_small_stack: bool,
}

/// A stack below this size is small: what the C library and the program's own code do there may need all of it.
const SMALL_BYTES: usize = 128 << 10;

/// Bytes of a thread's stack that are held besides its thread-local storage: for what runs before and after this
/// library's own code in the thread.
const HELD_BYTES: usize = 64 << 10;

/// The stack that the attributes name, if they name one.
///
/// # Safety
/// The attributes are valid, or null.
unsafe fn supplied_stack(attributes: *const pthread_attr_t) -> Option<Range<usize>> {
    if attributes.is_null() {
        return None;
    }
    let mut addr = MaybeUninit::<*mut c_void>::uninit();
    let mut len = MaybeUninit::<usize>::uninit();
    // SAFETY: the attributes are valid. Both results are filled in on success.
    let (addr, len) = unsafe {
        if libc::pthread_attr_getstack(attributes, addr.as_mut_ptr(), len.as_mut_ptr()) != 0 {
            return None;
        }
        (addr.assume_init() as usize, len.assume_init())
    };
    // Without a stack the address is the negative length, which is 0 unless that was set.
    Some(addr..addr.checked_add(len)?).filter(|stack| !stack.is_empty())
}

/// Whether a thread with these attributes is to be joined, and what it is to block in name.
///
/// # Safety
/// As for [`supplied_stack`].
unsafe fn of_attributes(attributes: *const pthread_attr_t) -> (bool, u64) {
    let (mut is_detached, mut mask) = (libc::PTHREAD_CREATE_JOINABLE, [0u64; size_of::<libc::sigset_t>() / 8]);
    if attributes.is_null() {
        return (true, held_signals::blocked());
    }
    // SAFETY: the attributes are valid. The results are filled in.
    let has_mask = unsafe {
        STATE.get()(attributes, &raw mut is_detached);
        MASK.find().is_some_and(|get| get(attributes, mask.as_mut_ptr()) == 0)
    };
    (is_detached == libc::PTHREAD_CREATE_JOINABLE, if has_mask { mask[0] } else { held_signals::blocked() })
}

/// The address and the length of what is to be held of a supplied stack, if any of that is managed.
fn held_part(stack: &Range<usize>) -> Option<(usize, usize)> {
    let held = stack.len().min((HELD_BYTES + c_library::static_tls_bytes()).next_multiple_of(PAGE_SIZE));
    (held > 0 && state::overlaps(stack.end - held, held)).then_some((stack.end - held, held))
}

/// The size of the stack that libc maps for a thread.
///
/// # Safety
/// As for [`supplied_stack`].
unsafe fn stack_len(attributes: *const pthread_attr_t) -> usize {
    let mut default = MaybeUninit::<pthread_attr_t>::uninit();
    let mut len = 0;
    // SAFETY: fresh attributes have the default size; they need not be destroyed after an error.
    unsafe {
        if !attributes.is_null() {
            libc::pthread_attr_getstacksize(attributes, &raw mut len);
        } else if libc::pthread_attr_init(default.as_mut_ptr()) == 0 {
            libc::pthread_attr_getstacksize(default.as_ptr(), &raw mut len);
            libc::pthread_attr_destroy(default.as_mut_ptr());
        }
    }
    len
}

/// Releases the stacks of threads that have ended.
fn release_ended() {
    release(HeldStack::is_over);
}

/// The same for the reclaim thread, when no memory can leave RAM. It does not wait for the lock: whoever holds it may
/// fork, and wait for this thread. This library's own stacks take no managed memory, and stay.
pub fn release_when_stuck() -> bool {
    if own_calls::is_used() {
        return false; // the program's filter may refuse to ask for threads
    }
    let (Some(space), Some(mut stacks)) = (state::space(), HELD.try_lock()) else { return false };
    let nr_kept = |stacks: &Vec<HeldStack>| stacks.iter().map(HeldStack::nr_kept).sum::<usize>();
    let before = nr_kept(&stacks);
    let over: Vec<_> =
        stacks.extract_if(.., |stack| !matches!(stack.kept, Kept::SignalStack) && stack.is_over()).collect();
    let is_less = nr_kept(&stacks) < before;
    drop(stacks);
    over.into_iter().for_each(|stack| stack.release(space));
    is_less
}

/// Releases the stacks of a thread that was not made.
fn release_unused(number: u32) {
    release(|stack| stack.number == number);
}

/// Releases the stacks that are over.
fn release(is_over: impl FnMut(&mut HeldStack) -> bool) {
    let Some(space) = state::space() else { return };
    let over: Vec<_> = stacks().extract_if(.., is_over).collect();
    over.into_iter().for_each(|stack| stack.release(space));
}

/// Notes which thread runs on the stacks of this number.
fn note_started(number: u32, process: u32, thread: u32) {
    for stack in stacks().iter_mut().filter(|stack| stack.number == number) {
        (stack.process, stack.thread) = (process, thread);
    }
}

/// Notes that the calling thread runs on the stacks of this number, and is yet to be joined.
fn note_handle(number: u32) {
    // SAFETY: takes no pointers.
    let thread = unsafe { libc::pthread_self() };
    note_joined(thread); // one that had this place before
    stacks().iter_mut().filter(|stack| stack.number == number).for_each(|stack| stack.joinable = Some(thread));
}

/// Notes that a thread is joined, or that another one has its place.
fn note_joined(thread: pthread_t) {
    stacks().iter_mut().filter(|stack| stack.joinable == Some(thread)).for_each(|stack| stack.joinable = None);
}

fn next_number() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed).max(1)
}

/// How much of a child's stack is held at most, from its top down.
const TOP_BYTES: usize = 16 << 10;

/// Makes a child that shares the program's memory, on the stack with this top. The kernel sets no signal stack for it,
/// so `call` gets one. Faults on this signal stack do not occur, nor at the top of the other.
pub fn with_signal_stack(top: usize, is_thread: bool, call: impl FnOnce(Option<stack_t>) -> c_int) -> c_int {
    let (number, signal_stack) = {
        let _guard = guard::enter();
        release_ended();
        let number = next_number();
        let signal_stack = signal_stack::take();
        let start = ((top - 1) & !(BLOCK_BYTES - 1)).max(top - TOP_BYTES);
        let is_managed = state::is_managed(start);
        resident::hold(start, top - start);
        let mut held = stacks();
        if is_managed {
            held.push(HeldStack::new(start, top - start, number));
        }
        if let Some(taken) = signal_stack {
            let stack = HeldStack::new(taken.ss_sp as usize, taken.ss_size, number);
            held.push(HeldStack { kept: Kept::SignalStack, ..stack });
        }
        (number, signal_stack)
    };
    let child = call(signal_stack);
    state::keeping_errno(|| {
        let _guard = guard::enter();
        match child {
            // SAFETY: takes no pointers.
            1.. if is_thread => note_started(number, unsafe { libc::getpid() as u32 }, child as u32),
            1.. => note_started(number, child as u32, child as u32),
            _ => release_unused(number),
        }
    });
    child
}

/// The list of held stacks, locked.
pub type Stacks = Locked<Vec<HeldStack>>;

pub fn stacks() -> Stacks {
    HELD.lock()
}

/// Called in a forked child. Its only thread is a copy of `thread`, whose stack is held again.
pub fn begin_child(thread: u32) {
    NR_STARTING.store(0, Ordering::Relaxed);
    let mut stacks = stacks();
    stacks.retain(|stack| stack.thread == thread);
    for stack in stacks.iter_mut() {
        stack.thread = folioswap_sys::signals::thread_id();
        (stack.process, stack.joinable) = (stack.thread, None);
        match (&stack.kept, state::space()) {
            (Kept::Pages(_), Some(space)) => stack.keep(space),
            _ => resident::hold(stack.addr, stack.len),
        }
    }
}

/// Holds a vector of thread-local storage, which another allocator may have put into managed memory: faults are handled
/// with it.
///
/// # Safety
/// The thread has not ended.
unsafe fn hold_vector(thread: pthread_t, number: u32) {
    // SAFETY: the caller's thread.
    if let Some(vector) = unsafe { tls_vector::of(thread) }
        && state::is_managed(vector.start)
    {
        resident::hold(vector.start, vector.len());
        let _guard = guard::enter();
        stacks().push(HeldStack::new(vector.start, vector.len(), number));
    }
}

extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    // Without thread-local variables: they may not be in RAM yet.
    // SAFETY: `pthread_create` below made it.
    let may_begin = unsafe { &(*beginning.cast::<Beginning>()).may_begin };
    while may_begin.load(Ordering::Acquire) == 0 {
        // SAFETY: the word lives until this thread drops it.
        unsafe { kernel!(libc::SYS_futex, may_begin.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0, 0) };
    }
    let (body, argument) = {
        let _guard = guard::enter();
        // SAFETY: `pthread_create` below made this box for this thread alone.
        let beginning = *unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
        if beginning.number != 0 {
            if beginning.is_joinable {
                note_handle(beginning.number);
            }
            // SAFETY: takes no pointers.
            let process = unsafe { libc::getpid() as u32 };
            note_started(beginning.number, process, folioswap_sys::signals::thread_id());
        }
        if beginning.has_small_stack {
            fault_stack::note_small();
        }
        prepare();
        note_prepared(); // the box is gone: a fork may hold the heap's lock
        held_signals::begin_thread(beginning.blocked);
        (beginning.body, beginning.argument)
    };
    if ours::has_ours() {
        ours::open_ours();
    }
    body(argument)
}

static_tls! {
    /// Whether the thread is prepared for its faults.
    static IS_PREPARED: bool = "folioswap_prepared";
}

/// Prepares the calling thread, but for its signal mask. Called under a guard.
fn prepare() {
    IS_PREPARED.set(true);
    if ours::has_ours() {
        signal_stack::set_stands_for(None); // the kernel gives a new thread SS_DISABLE, the first one perhaps no flags
        signal_stack::attach();
    }
    see_end();
}

/// The first thread is prepared.
pub fn note_first() {
    IS_PREPARED.set(true);
}

/// Called for each allocation of the program's, once memory is managed: prepares a thread that the C library has made
/// by itself. The signals of faults may be blocked there until then.
pub fn join() {
    if !IS_PREPARED.get() {
        join_now();
    }
}

#[cold]
fn join_now() {
    state::keeping_errno(|| {
        {
            let _guard = guard::enter();
            prepare();
        }
        if ours::has_ours() {
            ours::open_ours();
        }
    });
}

/// The key whose destructor runs when a thread ends, locked.
pub type Key = Locked<Option<pthread_key_t>>;

pub fn key() -> Key {
    static KEY: Lock<Option<pthread_key_t>> = Lock::new(None);
    KEY.lock()
}

/// How often the C library calls destructors of a thread's data while there is some.
const ROUNDS: u32 = 4;

static_tls! {
    /// Whether the thread's end is seen, and how often [`at_end`] was called.
    static END: (bool, u32) = "folioswap_end";
}

/// What looks at the process's memory before a thread ends.
static BEFORE_END: OnceLock<fn()> = OnceLock::new();

/// Has `look` called before each thread ends.
pub fn look_at_ends(look: fn()) {
    let _ = BEFORE_END.set(look);
}

/// Arranges for [`at_end`] to be called when the calling thread ends.
fn see_end() {
    if END.get().0 {
        return;
    }
    END.set((true, 0));
    let mut key = self::key();
    // SAFETY: the key is filled in on success, and the destructor lives as long as the program.
    unsafe {
        if key.is_none() {
            let mut made = MaybeUninit::uninit();
            if libc::pthread_key_create(made.as_mut_ptr(), Some(at_end)) == 0 {
                *key = Some(made.assume_init());
            }
        }
        if let Some(key) = *key {
            libc::pthread_setspecific(key, std::ptr::dangling());
        }
    }
}

/// Ends what the thread has. In the last round, because the program's destructors may use its mutexes. Those of keys
/// that were made after this one run later in the round, without what has ended here.
extern "C" fn at_end(value: *mut c_void) {
    let round = END.get().1 + 1;
    END.set((true, round));
    if round < ROUNDS {
        let _guard = guard::enter();
        if let Some(key) = *self::key() {
            // SAFETY: the thread's own data. It has a place already, so nothing is allocated.
            unsafe { libc::pthread_setspecific(key, value) };
        }
        return;
    }
    ended_tls::free_left();
    robust::end_thread();
    BEFORE_END.get().into_iter().for_each(|look| look());
    let _guard = guard::enter();
    // SAFETY: takes no pointers.
    let (thread, process) = (guard::this_thread(), unsafe { own!(libc::SYS_getpid) as u32 });
    // Else it goes on, to the end of the process.
    if thread != process {
        let held = signal_stack::take_held(); // the kernel uses it to the thread's end
        let held = held.map(|(addr, len)| HeldStack { thread, process, ..HeldStack::new(addr, len, 0) });
        stacks().extend(held);
        signal_stack::detach();
    }
}

/// The signals by which the C library cancels threads, and changes their users.
const CANCELS: c_int = 32;
const CHANGES_USERS: c_int = 33;

/// Whether a signal is the C library's own.
pub fn is_internal(signal: c_int) -> bool {
    [CANCELS, CHANGES_USERS].contains(&signal)
}

/// Waits until it has been cancelled: the C library does nothing for a thread that has ended.
extern "C" fn until_cancelled(may_end: *mut c_void) -> *mut c_void {
    let set = 1u64 << (CHANGES_USERS - 1); // it must answer to that
    // SAFETY: the word of `prepare_cancel`, which joins this thread. The kernel reads a set of 8 bytes, and the word.
    unsafe {
        let word = &*may_end.cast::<AtomicU32>();
        own!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const set, 0usize, 8);
        while word.load(Ordering::Acquire) == 0 {
            own!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0, 0);
        }
    }
    std::ptr::null_mut()
}

/// Lets the C library install its handler of [`CANCELS`] for a thread that does nothing else, and has it begin here: it
/// may end its thread at once, which is not to be in the middle of a caught call.
fn prepare_cancel() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !ours::has_ours() || DONE.swap(true, Ordering::SeqCst) {
        return;
    }
    let _guard = guard::enter();
    let (mut thread, may_end): (pthread_t, _) = (0, AtomicU32::new(0));
    // SAFETY: a new thread, which is joined, so that the word outlives it.
    unsafe {
        if CREATE.get()(&raw mut thread, null(), until_cancelled, may_end.as_ptr().cast()) == 0 {
            CANCEL.get()(thread);
            may_end.store(1, Ordering::Release);
            own!(libc::SYS_futex, may_end.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
            JOIN.get()(thread, std::ptr::null_mut());
        }
    }
    small_stack::begin_here(CANCELS);
}

export! {
    fn pthread_cancel(thread: pthread_t) -> c_int {
        prepare_cancel();
        let _stack = cover::stack();
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { CANCEL.get()(thread) }
    }
}

/// A copy of a thread's attributes that lies in no managed memory. The C library reads them with all signals blocked,
/// and has the kernel read the CPUs. `None`: it cannot be made.
///
/// # Safety
/// The attributes are valid. What this returns is destroyed under a guard.
unsafe fn copied(attributes: *const pthread_attr_t) -> Option<pthread_attr_t> {
    real!(CPUS = c"pthread_attr_getaffinity_np": fn(*const pthread_attr_t, usize, *mut u64) -> c_int);
    real!(SET_CPUS = c"pthread_attr_setaffinity_np": fn(*mut pthread_attr_t, usize, *const u64) -> c_int);
    real!(SET_MASK = c"pthread_attr_setsigmask_np": fn(*mut pthread_attr_t, *const u64) -> c_int);
    let mut made = MaybeUninit::<pthread_attr_t>::uninit();
    let copy = made.as_mut_ptr();
    let (mut state, mut inherits, mut policy, mut guard_len) = (0, 0, 0, 0);
    let mut parameters = MaybeUninit::<libc::sched_param>::uninit();
    // More than a mask of the C library's. Where no CPUs are set, all bits are.
    let (mut cpus, len) = ([0u64; 256], size_of::<[u64; 256]>());
    let mut mask = [0u64; size_of::<libc::sigset_t>() / 8];
    // SAFETY: the caller's promise. The C library fills in the locals, and copies them.
    unsafe {
        if libc::pthread_attr_init(copy) != 0 {
            return None;
        }
        STATE.get()(attributes, &raw mut state);
        libc::pthread_attr_getinheritsched(attributes, &raw mut inherits);
        libc::pthread_attr_getschedpolicy(attributes, &raw mut policy);
        libc::pthread_attr_getschedparam(attributes, parameters.as_mut_ptr());
        libc::pthread_attr_getguardsize(attributes, &raw mut guard_len);
        let sets_cpus =
            CPUS.get()(attributes, len, cpus.as_mut_ptr()) == 0 && cpus.iter().any(|&word| word != u64::MAX);
        let results = [
            libc::pthread_attr_setdetachstate(copy, state),
            libc::pthread_attr_setinheritsched(copy, inherits),
            libc::pthread_attr_setschedpolicy(copy, policy),
            libc::pthread_attr_setschedparam(copy, parameters.as_ptr()),
            libc::pthread_attr_setguardsize(copy, guard_len),
            match supplied_stack(attributes) {
                Some(stack) => libc::pthread_attr_setstack(copy, stack.start as *mut c_void, stack.len()),
                None => libc::pthread_attr_setstacksize(copy, stack_len(attributes)),
            },
            if sets_cpus { SET_CPUS.get()(copy, len, cpus.as_ptr()) } else { 0 },
            if MASK.find().is_some_and(|get| get(attributes, mask.as_mut_ptr()) == 0) {
                SET_MASK.get()(copy, mask.as_ptr())
            } else {
                0
            },
        ];
        if results != [0; 8] {
            libc::pthread_attr_destroy(copy);
            return None;
        }
        Some(made.assume_init())
    }
}

/// Has the C library create a thread.
///
/// # Safety
/// As `pthread_create`.
unsafe fn made(thread: *mut pthread_t, attributes: *const pthread_attr_t, beginning: *mut c_void) -> c_int {
    // SAFETY: the caller's call.
    unsafe {
        let copy = (state::direct() && !attributes.is_null()).then(|| {
            let _guard = guard::enter();
            fault_stack::run_if_small(|| copied(attributes))
        });
        let mut copy = copy.flatten();
        let attributes = copy.as_ref().map_or(attributes, |copy| &raw const *copy);
        let result = CREATE.get()(thread, attributes, begin, beginning);
        if let Some(copy) = &mut copy {
            let _guard = guard::enter();
            libc::pthread_attr_destroy(copy);
        }
        result
    }
}

/// Creates a thread of the program's.
///
/// # Safety
/// As `pthread_create`.
pub unsafe fn create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    body: Body,
    argument: *mut c_void,
) -> c_int {
    waiting::now();
    let Some(space) = state::space().filter(|_| !guard::inside()) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { CREATE.get()(thread, attributes, body, argument) };
    };
    // SAFETY: the caller's call, with a start routine and argument that only the new thread uses. The program has
    // mapped the stack that it supplies.
    unsafe {
        let supplied = supplied_stack(attributes);
        let stack = supplied.as_ref().and_then(held_part);
        let holds_vector = state::direct() && c_library::has_other_malloc();
        let begun = || {
            release_ended();
            see_end(); // the first thread's, too
            let number = if holds_vector || stack.is_some() { next_number() } else { 0 };
            if let Some((addr, len)) = stack {
                let mut stack = HeldStack::new(addr, len, number);
                stack.keep(space);
                stacks().push(stack);
            }
            let may_begin = u32::from(!holds_vector).into();
            let (is_joinable, blocked) = of_attributes(attributes);
            let has_small_stack = stack_len(attributes) < SMALL_BYTES;
            let beginning = Beginning { body, argument, number, is_joinable, may_begin, blocked, has_small_stack };
            (Box::into_raw(Box::new(beginning)), number)
        };
        let (beginning, number) = {
            let _guard = guard::enter();
            fault_stack::run_if_small(begun)
        };
        ended_tls::free_left();
        let _stack = cover::stack();
        let mut own: pthread_t = 0;
        NR_STARTING.fetch_add(1, Ordering::Relaxed);
        let result = made(if holds_vector { &raw mut own } else { thread }, attributes, beginning.cast());
        if result != 0 {
            note_prepared();
            let _guard = guard::enter();
            drop(Box::from_raw(beginning));
            if stack.is_some() {
                release_unused(number);
            }
            if supplied.is_none() && result == libc::EAGAIN {
                refused::note(stack_len(attributes));
            }
        }
        ours::run_on_signal_stack(CHANGES_USERS);
        if result == 0 && holds_vector {
            // SAFETY: it waits for this. The program's variable may get another thread's handle meanwhile.
            hold_vector(own, number);
            thread.write(own);
            let may_begin = &raw const (*beginning).may_begin;
            (*may_begin).store(1, Ordering::Release);
            // SAFETY: only an address for the kernel by now.
            kernel!(libc::SYS_futex, may_begin, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
        result
    }
}

export! {
    fn __cxa_thread_atexit_impl(destructor: Destructor, object: *mut c_void, library: *mut c_void) -> c_int {
        // The C library would allocate from the program, whose allocator may be locked until a fork has returned. The
        // engine's threads run to the end of the process.
        if folioswap::internal_thread() {
            return 0;
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { AT_THREAD_EXIT.get()(destructor, object, library) }
    }
}

export! {
    fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        let result = unsafe { JOIN.get()(thread, value) };
        if state::space().is_some() && !guard::inside() {
            {
                let _guard = guard::enter();
                if result == 0 {
                    note_joined(thread);
                }
                release_ended();
            }
            ended_tls::free_left();
        }
        result
    }
}
