//! `clone` and its like, where the child gets a copy of the memory. No fork handlers of the C library's run then, so
//! they run here, around the call.
//!
//! Two things that a call may ask for are done here instead of by the kernel: the child clears its signal handlers once
//! it can do without them, and the parent waits for the child's end or exec once other threads go on.
//!
//! Some children get no managed memory: those that share the descriptors, since what such a child closes is closed in
//! its parent; those with other thread-local storage; and those that a system call gives a stack of their own.

use std::ffi::{c_int, c_long, c_void};
use std::ptr::without_provenance_mut;
use std::time::Duration;

use folioswap::PAGE_SIZE;
use folioswap_sys::descendants::{Descendants, Tie};
use folioswap_sys::futex;
use libc::stack_t;

use crate::calls::fork;
use crate::faults::cleared::{self, Role};
use crate::faults::{only_thread, signals, threads};
use crate::ground::export::{aliases, export, real};
use crate::ground::guard::Guard;
use crate::ground::real::{kernel, own, raw_result};
use crate::ground::{guard, state, waiting};
use crate::memory::access::{self, Access};
use crate::memory::resident;

type Work = extern "C" fn(*mut c_void) -> c_int;

/// Below the end of a stack that `clone` was given, this much is assumed to be the stack's.
const STACK_BYTES: usize = 16 << 10;

const CLEARS_HANDLERS: usize = 1 << 32;
const WAITS: usize = libc::CLONE_VFORK as usize;

/// Flags with which the engine does not go on in the child.
const UNMANAGED: usize = (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_SETTLS) as usize;

/// Flags that the kernel does not get. Before the engine starts, nobody waits for the parent.
fn done_here() -> usize {
    if state::arena().is_some() { WAITS | CLEARS_HANDLERS } else { CLEARS_HANDLERS }
}

/// The kernel takes no longer description of a child.
const MOST_DESCRIBED_BYTES: usize = PAGE_SIZE;

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
        libc::SYS_clone => (words[0] as u32 as usize, words[1], words[3]),
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
    unsafe {
        let call = |words: &[usize; 6]| {
            touch_for_clone(number, words);
            raw_result(number, words)
        };
        if flags & done_here() == 0 {
            return copied(flags, child, || call(words));
        }
        let mut words = *words;
        if number == libc::SYS_clone {
            words[0] &= !done_here();
            return copied(flags, child, || call(&words));
        }
        let described = without_flags(words[0], words[1])?;
        words[0] = described.as_ptr() as usize;
        let result = copied(flags, child, || call(&words));
        let _guard = guard::enter();
        drop(described);
        result
    }
}

/// A copy of what describes a child for `clone3`, without [`done_here`]. `None`: the kernel would refuse it.
///
/// # Safety
/// If it can be read, it is such a description.
unsafe fn without_flags(at: usize, len: usize) -> Option<Vec<u64>> {
    if !(size_of::<[u64; 8]>()..=MOST_DESCRIBED_BYTES).contains(&len) || !access::is_open(at, len, Access::Read) {
        return None;
    }
    let mut copy = {
        let _guard = guard::enter();
        vec![0u64; len.div_ceil(size_of::<u64>())]
    };
    // SAFETY: the program's description can be read, and the copy is as long.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, copy.as_mut_ptr().cast(), len) };
    copy[0] &= !(done_here() as u64);
    Some(copy)
}

/// Makes a child, and does what its call leaves to do here. `None`: there is no means to wait for it, and there is no
/// child.
///
/// # Safety
/// `call` makes a child with a copy of the memory.
unsafe fn copied(flags: usize, id_at: usize, call: impl FnOnce() -> isize) -> Option<isize> {
    let flags_here = flags & done_here();
    let mut guard = (flags_here != 0).then(guard::enter); // no handler of the program's runs before it is done
    let awaited = if flags_here & WAITS != 0 { Some(state::keeping_errno(Awaited::new_alone)?) } else { None };
    let result = fork::around(|| {
        awaited.as_ref().inspect(|awaited| awaited.tie.set_inherited(true));
        let result = call();
        awaited.as_ref().inspect(|awaited| awaited.tie.set_inherited(false));
        result
    });
    if let Some(awaited) = awaited {
        let in_parent = if result == 0 { None } else { guard.take() };
        let _kept_out = in_parent.and_then(Guard::leave_to_others); // what ends the process still does
        state::keeping_errno(|| awaited.end(result));
    }
    if result == 0 {
        if flags_here & CLEARS_HANDLERS != 0 {
            state::keeping_errno(signals::clear_handlers);
        }
        drop(guard);
        let is_missing = || state::is_managed(id_at) && access::is_open(id_at, size_of::<c_int>(), Access::Write);
        if flags & libc::CLONE_CHILD_SETTID as usize != 0 && is_missing() {
            // The kernel did not find the page.
            // SAFETY: the address that the program gave for this.
            unsafe { (id_at as *mut c_int).write_unaligned(kernel!(libc::SYS_gettid) as c_int) };
        }
    }
    Some(result)
}

/// Whether a child has ended, though something of its memory lives on: in a process that it made with CLONE_VM.
fn has_ended(child: c_int) -> bool {
    // SAFETY: all zeroes is a valid `siginfo_t`, which the kernel fills in.
    unsafe {
        let mut about: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG | libc::__WALL;
        let asked = own!(libc::SYS_waitid, libc::P_PID, child, &raw mut about, how, 0usize);
        if asked == 0 {
            about.si_pid() == child
        } else {
            kernel!(libc::SYS_kill, child, 0) != 0 && state::errno() == libc::ESRCH
        }
    }
}

/// What a child has until it ends or executes a program, but its own children have not.
struct Awaited {
    descendants: Descendants,
    tie: Tie,
}

impl Awaited {
    /// Makes one while no other thread forks: its child would have the tie, too.
    fn new_alone() -> Option<Self> {
        let _waiting = waiting::waiting();
        Awaited::new()
    }

    fn new() -> Option<Self> {
        let descendants = Descendants::new().ok()?;
        let tie = descendants.tie(0).ok()?;
        tie.set_inherited(false);
        Some(Awaited { descendants, tie })
    }

    /// After the call with this result: waits in the parent. The child keeps it.
    fn end(self, result: isize) {
        let Awaited { descendants, tie } = self;
        if result == 0 {
            tie.set_inherited(false);
            std::mem::forget((descendants, tie));
            return;
        }
        let mut guard = guard::enter();
        drop(tie);
        let mut pause = Duration::from_micros(200);
        while result > 0 && descendants.have_ended(0).is_ok_and(|have_ended| !have_ended) && !has_ended(result as c_int)
        {
            drop(guard); // signals come between the looks
            futex::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
            guard = guard::enter();
        }
        drop(descendants);
        drop(guard);
    }
}

/// What a call of `clone` or `clone3` asks for: its flags, and where the kernel writes the ids of the child, in the
/// child and in its parent, and its descriptor.
///
/// # Safety
/// As the system call.
unsafe fn asked(number: c_long, words: &[usize; 6]) -> Option<[usize; 4]> {
    match number {
        libc::SYS_clone => Some([words[0], 0, words[3], words[2]]),
        // SAFETY: the caller upholds this function's own contract.
        libc::SYS_clone3 => unsafe { access::read(words[0] as *const [usize; 4]) },
        _ => None,
    }
}

/// Whether the child shares the memory and the thread-local variables of its parent, which waits until it executes a
/// program or ends.
///
/// # Safety
/// As the system call.
pub unsafe fn shares_until_exec(number: c_long, words: &[usize; 6]) -> bool {
    const FLAGS: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    // SAFETY: the caller upholds this function's own contract.
    let asked = unsafe { asked(number, words) };
    let flags = if number == libc::SYS_vfork { FLAGS } else { asked.map_or(0, |[flags, ..]| flags) };
    flags & (FLAGS | libc::CLONE_SETTLS as usize) == FLAGS
}

/// A process has an id in each of at most this many namespaces.
const MOST_IDS: usize = 32;

/// What the kernel reads and writes for a new thread or child: what it is, its address and its length.
///
/// # Safety
/// As the system call.
unsafe fn named(number: c_long, words: &[usize; 6]) -> Option<[(Role, usize, usize); 5]> {
    // SAFETY: the caller upholds this function's own contract.
    let [flags, pidfd, child, parent] = unsafe { asked(number, words) }?;
    let (mut description, mut ids) = ((0, 0), (0, 0));
    if number == libc::SYS_clone3 {
        description = (words[0], words[1].min(MOST_DESCRIBED_BYTES));
        // Its ids for the child are the ninth word, and their number the next.
        // SAFETY: as above.
        let about = if words[1] >= 80 { unsafe { access::read(words[0] as *const [usize; 10]) } } else { None };
        if let Some([.., at, nr_ids]) = about {
            ids = (at, nr_ids.min(MOST_IDS) * size_of::<c_int>());
        }
    }
    let one = |wanted: c_int| if flags & wanted as usize != 0 { size_of::<c_int>() } else { 0 };
    Some([
        (Role::Description, description.0, description.1),
        (Role::Ids, ids.0, ids.1),
        (Role::Descriptor, pidfd, one(libc::CLONE_PIDFD)),
        (Role::Cleared, child, one(libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID)),
        (Role::ChildId, parent, one(libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD)),
    ])
}

/// Brings in what the kernel reads and writes for a new thread or child. In monitor mode, too: after the copy it would
/// wait for a page that cannot come until the engine goes on.
///
/// # Safety
/// As the system call.
pub unsafe fn touch_for_clone(number: c_long, words: &[usize; 6]) {
    // SAFETY: the caller upholds this function's own contract.
    for (_, at, len) in unsafe { named(number, words) }.into_iter().flatten() {
        if len > 0 {
            resident::bring_in(at, len);
        }
    }
}

/// The same, before the call. Holds what the kernel writes when a thread ends, and starts the engine before a thread.
/// In direct mode, holds what the call itself reads and writes: it may leave RAM again before the call is made.
///
/// # Safety
/// As the system call.
pub unsafe fn before_clone(number: c_long, words: &[usize; 6]) {
    // SAFETY: the caller upholds this function's own contract.
    let Some([flags, ..]) = (unsafe { asked(number, words) }) else { return };
    if flags & (libc::CLONE_VM | libc::CLONE_VFORK) as usize == libc::CLONE_VM as usize {
        waiting::now();
    }
    only_thread::note_flags(flags);
    // SAFETY: as above.
    unsafe { touch_for_clone(number, words) };
    if flags & libc::CLONE_VM as usize == 0 {
        return;
    }
    // SAFETY: as above.
    for (role, at, len) in unsafe { named(number, words) }.into_iter().flatten() {
        match role {
            _ if len == 0 => {}
            Role::Cleared if flags & libc::CLONE_CHILD_CLEARTID as usize == 0 => {}
            Role::Cleared => cleared::hold(at, len, role, 0),
            _ if state::direct() => cleared::hold(at, len, role, guard::this_thread()),
            _ => {}
        }
    }
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
        let bits = flags.cast_unsigned() as usize; // CLONE_IO is the sign
        let words = [bits, stack as usize, parent as usize, child as usize, tls as usize, 0];
        if !guard::inside() && state::may_manage() {
            // SAFETY: the arguments of the program's own call.
            unsafe { before_clone(libc::SYS_clone, &words) };
        }
        let shares = flags & (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) == libc::CLONE_VM;
        if shares && !stack.is_null() && state::direct() && !guard::inside()
            && let Some(work) = work
        {
            let is_thread = flags & libc::CLONE_THREAD != 0;
            let result = threads::with_signal_stack(stack as usize, is_thread, |signal_stack| {
                let beginning = signal_stack.map(|stack| Beginning { work, argument, stack }.put());
                let (work, argument) = beginning.map_or((work, argument), |at| (begin as Work, at.cast()));
                // SAFETY: the program's call, but for what it begins with.
                unsafe { REAL.get()(Some(work), stack, flags, argument, parent, tls, child) }
            });
            cleared::end_call();
            return result;
        }
        let Some(work) = work.filter(|_| is_copy(bits) && !stack.is_null()) else {
            // SAFETY: passes the caller's arguments on unchanged.
            let result = unsafe { REAL.get()(work, stack, flags, argument, parent, tls, child) };
            cleared::end_call();
            return result;
        };
        // The child begins on a copy of this stack. It has that of the program once it has managed memory.
        let on_this_stack = [words[0] & !done_here(), 0, words[2], words[3], words[4], 0];
        // SAFETY: the program's call, but for the stack.
        let result = unsafe {
            copied(words[0], words[3], || {
                touch_for_clone(libc::SYS_clone, &words);
                raw_result(libc::SYS_clone, &on_this_stack)
            })
        };
        let Some(result) = result else {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { REAL.get()(Some(work), stack, flags, argument, parent, tls, child) };
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

    #[allow(non_snake_case)] // the C library's name
    fn _Fork() -> libc::pid_t {
        real!(REAL = c"_Fork": fn() -> libc::pid_t);
        // SAFETY: takes no pointers.
        fork::around(|| unsafe { REAL.get()() as isize }) as libc::pid_t
    }
}

aliases! {
    fn __clone = clone(
        work: Option<Work>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_int,
        tls: *mut c_void, child: *mut c_int,
    ) -> c_int;
}
