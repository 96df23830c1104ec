//! Threads with signals blocked, thread ids, and ways to end a process without cleanup.

use std::io;
use std::marker::PhantomData;
use std::thread::JoinHandle;

use crate::check;
use crate::sigbus::is_fronted;

/// While it lives, the calling thread gets no signals except those of its own faults. Threads that it starts meanwhile
/// inherit this for good.
#[must_use = "signals are let in again when this is dropped"]
pub struct Blocked {
    before: u64,
    /// The mask belongs to a thread, so it must be dropped on the same one.
    _not_send: PhantomData<*const ()>,
}

pub(crate) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signal by which glibc makes every thread change its user id. The caller waits for all threads.
const SIGSETXID: i32 = 33;

/// All signals except those of faults: a blocked fault signal kills the process without calling a handler. What the
/// program has blocked itself stays so. glibc's cancellation signal is included, which glibc's own full set leaves out.
const BLOCKED: u64 = !(bit(libc::SIGBUS)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS)
    | bit(SIGSETXID));

/// Signals that the program may have blocked on all its threads to wait for them. On a thread of the engine they would
/// be handled. SIGBUS and SIGSYS stay open where this crate handles them itself.
const NOT_ON_ITS_THREADS: u64 =
    bit(libc::SIGSEGV) | bit(libc::SIGILL) | bit(libc::SIGFPE) | bit(libc::SIGTRAP) | bit(libc::SIGABRT);

/// Blocks all signals for the calling thread until the guard is dropped.
pub fn block_all() -> Blocked {
    Blocked { before: change_mask(libc::SIG_BLOCK, BLOCKED), _not_send: PhantomData }
}

/// As [`block_all`], while a thread of the engine is started. That inherits the mask, and gets no signals of faults
/// either, but for those that this crate handles. Nothing else is blocked, although the caller may be in a handler with
/// all signals blocked: who changes the user id waits for the new thread.
pub(crate) fn block_for_new_thread() -> Blocked {
    let not_ours = [libc::SIGBUS, libc::SIGSYS].into_iter().filter(|&signal| !is_fronted(signal)).map(bit);
    let before = change_mask(libc::SIG_SETMASK, not_ours.fold(BLOCKED | NOT_ON_ITS_THREADS, |mask, bit| mask | bit));
    Blocked { before, _not_send: PhantomData }
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

/// Starts a thread with signals blocked, those of faults too, but for those that this crate handles. `name` is cut to
/// the kernel's 15 bytes.
///
/// # Errors
/// EAGAIN: too many threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    stack_size: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.chars().filter(|c| c.is_ascii() && *c != '\0').take(15).collect();
    let _blocked = block_for_new_thread();
    std::thread::Builder::new().name(name).stack_size(stack_size).spawn(body)
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
    let read = |what| std::fs::read_to_string(format!("/proc/self/task/{thread}/{what}"));
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

    fn blocked(signal: i32) -> bool {
        // SAFETY: all zeroes is a valid set. The calls fill it in and test it.
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
            (blocked(libc::SIGTERM) && blocked(libc::SIGABRT), blocked(libc::SIGBUS), name, thread_id())
        });
        let (term, bus, name, id) = thread.unwrap().join().unwrap();
        assert!(term && bus != is_fronted(libc::SIGBUS));
        assert_eq!(name.as_deref(), Some("a-rather-long-n"));
        assert_ne!(id, thread_id());
        assert_eq!(blocked(libc::SIGTERM), before);
    }
}
