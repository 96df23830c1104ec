//! Threads without signals, a thread's number, and the ends that need no cleaning up.

use std::io;
use std::marker::PhantomData;
use std::thread::JoinHandle;

use crate::check;

/// While it lives, the calling thread gets no signals but those of its own faults, and threads that it starts inherit
/// that for good.
#[must_use = "signals are let in again when this is dropped"]
pub struct Blocked {
    before: libc::sigset_t,
    /// The mask is a thread's own: not to be dropped on another one.
    _not_send: PhantomData<*const ()>,
}

/// Blocks all signals for the calling thread until the guard is dropped.
pub fn block_all() -> Blocked {
    // SAFETY: all zeros are a valid set; it is filled below.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: both sets are of this frame. Neither call fails with these arguments.
    unsafe {
        libc::sigfillset(&mut all);
        // A fault with its signal blocked kills the process without a handler having been asked.
        for fault in
            [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS]
        {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    Blocked { before, _not_send: PhantomData }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set that was in force before, kept by this guard.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Starts a thread with signals blocked (see [`block_all`]). `name` is cut to the kernel's 15 bytes.
///
/// # Errors
/// EAGAIN: too many threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    stack_size: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.chars().filter(|c| c.is_ascii() && *c != '\0').take(15).collect();
    let _blocked = block_all();
    std::thread::Builder::new().name(name).stack_size(stack_size).spawn(body)
}

/// The calling thread's id, unique in the system while it runs. A system call, about 50 ns.
#[must_use]
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Sends SIGBUS to a thread of this process; one that has ended gets nothing.
pub fn send_sigbus(thread: u32) {
    let _ = send(thread, libc::SIGBUS);
}

/// Sends a signal to a thread of this process.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn send(thread: u32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers; the process is this one.
    check(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) }).map(drop)
}

/// Ends the process at once: no destructors, no exit handlers, no flushing. Fit for signal handlers and forked
/// children.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(signal: i32) -> bool {
        // SAFETY: all zeros are a valid set; the calls fill it and look into it.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            libc::sigismember(&mask, signal) == 1
        }
    }

    #[test]
    fn a_spawned_thread_has_signals_blocked_and_the_spawner_not() {
        let before = blocked(libc::SIGTERM);
        let thread = spawn("a-rather-long-name", 256 << 10, || {
            let name = std::thread::current().name().map(str::to_owned);
            (blocked(libc::SIGTERM), blocked(libc::SIGBUS), name, thread_id())
        });
        let (term, bus, name, id) = thread.unwrap().join().unwrap();
        assert!(term && !bus);
        assert_eq!(name.as_deref(), Some("a-rather-long-n"));
        assert_ne!(id, thread_id());
        assert_eq!(blocked(libc::SIGTERM), before);
    }
}
