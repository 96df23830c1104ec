//! A child that shares its parent's memory until it executes a program: of vfork, or of `clone` with CLONE_VM. It has
//! signal actions and a mask of its own in the kernel. So what it sets is not kept where its parent reads it, but here.
//!
//! The child has the thread-local variables of the thread that made it, which waits meanwhile. It is told from its
//! parent by its process id. Children that share the signal actions, too, are not told apart.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::signals::{Action, plain_action};
use crate::static_tls;
use crate::static_tls::StaticTls;

/// The process whose memory this is. Zero: nobody asks.
static OWNER: AtomicU32 = AtomicU32::new(0);

static_tls! {
    /// The child that has set something, and what it blocks in name.
    static CHILD: (u32, u64) = "folioswap_vforked";
}

static_tls! {
    /// Addresses of its actions for SIGBUS and SIGSYS. Zero: its parent's.
    static ACTIONS: (usize, usize) = "folioswap_vforked_actions";
}

/// The default action, and the one that ignores a signal.
static SPECIAL: [Action; 2] = [plain_action(libc::SIG_DFL), plain_action(libc::SIG_IGN)];

/// Asks for the process's id by a call that the program's filters exempt.
static ASK: OnceLock<fn() -> u32> = OnceLock::new();

fn this_process() -> u32 {
    ASK.get().map_or(0, |ask| ask())
}

/// Notes that the memory is this process's: at the start, and in a child that has a copy of it.
pub fn note_owner(ask: fn() -> u32) {
    ASK.get_or_init(|| ask);
    OWNER.store(this_process(), Ordering::Relaxed);
    CHILD.set((0, 0));
}

/// Whether the caller is such a child. A system call.
#[must_use]
pub fn is_child() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != this_process()
}

/// Whether the caller is such a child that has set something. What an earlier one has set is forgotten.
fn is_noted() -> bool {
    let (process, _) = CHILD.get();
    if process == 0 {
        return false;
    }
    let now = this_process();
    if process != now {
        CHILD.set((0, 0));
    }
    process == now
}

/// What such a child blocks in name, if it has set that.
pub(crate) fn blocked() -> Option<u64> {
    is_noted().then(|| CHILD.get().1)
}

/// Sets [`blocked`], if the caller is such a child. Returns whether it is one.
pub(crate) fn set_blocked(blocked: u64) -> bool {
    let is_child = is_child();
    if is_child {
        if !is_noted() {
            ACTIONS.set((0, 0));
        }
        CHILD.set((this_process(), blocked));
    }
    is_child
}

/// Where such a child finds its action, if it has set one.
pub(crate) fn action(signal: libc::c_int) -> Option<&'static Action> {
    if !is_noted() {
        return None;
    }
    let (bus, sys) = ACTIONS.get();
    let at = if signal == libc::SIGSYS { sys } else { bus };
    // SAFETY: zero, or what `set_action` was given.
    unsafe { (at as *const Action).as_ref() }
}

/// Sets [`action`], if the caller is such a child. Returns whether it is one. Allocates, unless the action is one of
/// the special ones: each program that is launched sets those.
pub(crate) fn set_action(signal: libc::c_int, action: &Action, blocked: u64) -> bool {
    if !is_child() {
        return false;
    }
    let at = SPECIAL
        .get(action.sa_sigaction)
        .map_or_else(|| Box::into_raw(Box::new(*action)).cast_const(), std::ptr::from_ref);
    if !is_noted() {
        set_blocked(blocked);
    }
    let (bus, sys) = ACTIONS.get();
    ACTIONS.set(if signal == libc::SIGSYS { (bus, at as usize) } else { (at as usize, sys) });
    true
}
