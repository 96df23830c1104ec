//! Masks of signals, actions and ways to send one, thread ids, and the end of a process without cleanup.

use std::io;
use std::marker::PhantomData;

use crate::{check, said};

/// While it lives, the calling thread gets no signals except those of its own faults. Threads that it starts meanwhile
/// inherit this for good.
#[must_use = "signals are let in again when this is dropped"]
pub struct Blocked {
    before: u64,
    /// The mask belongs to a thread, so it must be dropped on the same one.
    _not_send: PhantomData<*const ()>,
}

/// A program's signal action, as sigaction(2) takes it.
pub type Action = libc::sigaction;

/// The action that has this handler or special value, no flags and an empty mask.
pub(crate) const fn plain_action(handler: libc::sighandler_t) -> Action {
    // SAFETY: all zeroes is a valid action: the restorer is an option.
    let mut action: Action = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action
}

pub(crate) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signal by which glibc makes every thread change its user id. The caller waits for all threads.
const SIGSETXID: i32 = 33;

/// All signals except those of faults: a blocked fault signal kills the process without calling a handler. What the
/// program has blocked itself stays so. glibc's cancellation signal is included, which glibc's own full set leaves out.
pub(crate) const BLOCKED: u64 = !(bit(libc::SIGBUS)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS)
    | bit(SIGSETXID));

/// Blocks all signals for the calling thread until the guard is dropped.
pub fn block_all() -> Blocked {
    Blocked::by(libc::SIG_BLOCK, BLOCKED)
}

impl Blocked {
    /// Changes the calling thread's mask until the guard is dropped.
    pub(crate) fn by(how: i32, mask: u64) -> Self {
        Blocked { before: change_mask(how, mask), _not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, self.before);
    }
}

/// Changes the calling thread's mask, and returns the previous one. The C library's call would leave out its own
/// signals.
pub(crate) fn change_mask(how: i32, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads one set of 8 bytes and fills in the other, both locals of this frame. It cannot fail.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size_of::<u64>());
    }
    before
}

/// Whether the calling thread runs on its alternate signal stack.
#[must_use]
pub fn are_on_their_stack() -> bool {
    let mut now = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the kernel fills in the local.
    unsafe { libc::syscall(libc::SYS_sigaltstack, std::ptr::null::<libc::stack_t>(), &raw mut now) };
    now.ss_flags & libc::SS_ONSTACK != 0
}

/// The calling thread's id, unique in the system while it runs. A system call, about 50 ns.
#[must_use]
pub fn thread_id() -> u32 {
    // SAFETY: takes no pointers, and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Sends SIGBUS to a thread of this process. Does nothing if the thread has ended.
pub fn send_sigbus(thread: u32) {
    let _ = send(thread, libc::SIGBUS);
}

/// Sends a signal to a thread of this process.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn send(thread: u32, signal: i32) -> io::Result<()> {
    // SAFETY: takes no pointers. The process is this one.
    check(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) }).map(drop)
}

/// Whether a signal would wake a thread of this process that sleeps in a fault: the signal is neither blocked nor
/// ignored, and no system call made the access (the call would only repeat it). `false` also if this is unknown.
#[must_use]
pub fn ends_wait(thread: u32, signal: i32) -> bool {
    let read = |what| said::read(format!("/proc/self/task/{thread}/{what}"));
    let (Ok(status), Ok(call)) = (read("status"), read("syscall")) else { return false };
    let is_not_in = |set: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).is_ok_and(|set| set >> (signal - 1) & 1 == 0)
    };
    is_not_in("SigBlk:") && is_not_in("SigIgn:") && call.starts_with("-1 ")
}

/// Ends the process at once: no destructors, no exit handlers, no flushing. Safe in signal handlers and forked
/// children.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: takes no pointers, and does not return.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mask in the kernel.
    fn mask() -> u64 {
        change_mask(libc::SIG_BLOCK, 0)
    }

    #[test]
    fn nobody_cancels_or_interrupts_a_thread_with_signals_blocked() {
        let before = mask();
        let blocked = block_all();
        {
            let _again = block_all();
        }
        assert_eq!(mask() & (bit(32) | bit(libc::SIGTERM) | bit(libc::SIGBUS)), bit(32) | bit(libc::SIGTERM));
        drop(blocked);
        assert_eq!(mask(), before);
    }

    #[test]
    fn what_was_blocked_before_stays_so() {
        let before = change_mask(libc::SIG_BLOCK, bit(libc::SIGABRT) | bit(libc::SIGSEGV));
        let blocked = block_all();
        assert_eq!(mask() & (bit(libc::SIGABRT) | bit(libc::SIGSEGV)), bit(libc::SIGABRT) | bit(libc::SIGSEGV));
        drop(blocked);
        change_mask(libc::SIG_SETMASK, before);
    }
}
