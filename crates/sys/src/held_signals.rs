//! The signals that a program has blocked in name only: those that this crate's handlers need open ([`crate::sigbus`]).
//!
//! Such a signal that somebody sends stays pending here until the thread unblocks it or takes it ([`take`]), as in the
//! kernel. One that the thread raises by an access goes to the program's handler, where the kernel would end the
//! process: `siglongjmp` may have restored the mask unseen.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::siginfo_t;

use crate::signals::{Blocked, block_all, send, thread_id};

const SIGNALS: [i32; 2] = [libc::SIGBUS, libc::SIGSYS];

type Slot = Option<siginfo_t>;

thread_local! {
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
    /// What was sent to this thread.
    static SENT: [Cell<Slot>; 2] = const { [Cell::new(None), Cell::new(None)] };
}

/// What was sent to the process.
static SHARED: Mutex<[Shared; 2]> = Mutex::new([const { Shared(None) }; 2]);

/// The last thread that began to wait for each signal and has not come back; 0: none.
static WAITING: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

struct Shared(Slot);

// SAFETY: the description of a signal is plain numbers. Its address is that of an access, and is not used.
unsafe impl Send for Shared {}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The slots of the signals in a set.
fn slots(set: u64) -> impl Iterator<Item = usize> {
    (0..SIGNALS.len()).filter(move |&slot| set & bit(SIGNALS[slot]) != 0)
}

/// What was sent to the process, with signals blocked: a handler may have to keep one.
fn shared() -> (MutexGuard<'static, [Shared; 2]>, Blocked) {
    let blocked = block_all();
    (SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner), blocked)
}

/// What the calling thread has blocked in name, as a mask of the kernel's.
#[must_use]
pub fn blocked() -> u64 {
    BLOCKED.get()
}

/// Sets [`blocked`] where nothing can be pending: in a new thread, or at the start.
pub fn begin_thread(blocked: u64) {
    BLOCKED.set(blocked);
}

/// In a forked child: nothing is pending.
pub fn begin_child() {
    SENT.with(|sent| sent.iter().for_each(|slot| slot.set(None)));
    let (mut shared, _blocked) = shared();
    *shared = [const { Shared(None) }; 2];
    WAITING.iter().for_each(|waiting| waiting.store(0, Ordering::Relaxed));
}

/// Changes [`blocked`] as `rt_sigprocmask` does, by signals of `which` only. Returns what was blocked before. What is
/// pending and no longer blocked is delivered.
pub fn change(how: i32, set: Option<u64>, which: u64) -> u64 {
    let before = BLOCKED.get();
    let Some(set) = set.map(|set| set & which) else { return before };
    let now = match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        _ => set,
    };
    BLOCKED.set(now);
    while let Some(info) = if before & !now == 0 { None } else { take(before & !now) } {
        repeat(&info);
    }
    before
}

/// The pending ones among what the calling thread has blocked, as a mask.
#[must_use]
pub fn pending() -> u64 {
    if BLOCKED.get() == 0 {
        return 0;
    }
    let (shared, _blocked) = shared();
    let is_pending = |slot: &usize| shared[*slot].0.is_some() || SENT.with(|sent| sent[*slot].get().is_some());
    slots(BLOCKED.get()).filter(is_pending).fold(0, |set, slot| set | bit(SIGNALS[slot]))
}

/// Takes a pending signal of a set, as `sigtimedwait` does.
pub fn take(set: u64) -> Option<siginfo_t> {
    slots(set).find_map(|slot| SENT.with(|sent| sent[slot].take()).or_else(|| shared().0[slot].0.take()))
}

/// Forgets a signal that is pending: the program ignores it from now on.
pub fn discard(signal: i32) {
    while take(bit(signal)).is_some() {}
}

/// While this lives, the calling thread waits for signals of a set. It is woken by one that another thread gets, which
/// [`take`] then finds.
pub struct Waiting(u64);

impl Waiting {
    /// Begins to wait. [`take`] is asked after this, so that nothing is missed in between.
    #[must_use]
    pub fn begin(set: u64) -> Waiting {
        slots(set).for_each(|slot| WAITING[slot].store(thread_id(), Ordering::SeqCst));
        Waiting(set)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for slot in slots(self.0) {
            let _ = WAITING[slot].compare_exchange(thread_id(), 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// Keeps a signal that was sent to this thread, which has blocked it. Called by its handler.
pub(crate) fn keep(info: &siginfo_t) {
    let Some(slot) = slots(bit(info.si_signo)).next() else { return };
    if info.si_code == libc::SI_TKILL {
        let before = SENT.with(|sent| sent[slot].take());
        return SENT.with(|sent| sent[slot].set(before.or(Some(*info))));
    }
    shared().0[slot].0.get_or_insert(*info);
    let waiting = WAITING[slot].load(Ordering::SeqCst);
    if waiting != 0 && waiting != thread_id() {
        let _ = send(waiting, info.si_signo);
    }
}

/// Sends the calling thread a signal as it was described before. The kernel permits that for no other thread.
fn repeat(info: &siginfo_t) {
    let mut copy = MaybeUninit::new(*info);
    let (process, thread) = (std::process::id(), thread_id());
    // SAFETY: the kernel reads a description, which is a local of this frame.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, info.si_signo, copy.as_mut_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUS: u64 = bit(libc::SIGBUS);

    fn sent(code: i32) -> siginfo_t {
        // SAFETY: all zeroes is a valid description.
        let mut info: siginfo_t = unsafe { std::mem::zeroed() };
        (info.si_signo, info.si_code) = (libc::SIGBUS, code);
        info
    }

    #[test]
    fn what_is_sent_stays_pending_once_and_can_be_taken() {
        assert_eq!(change(libc::SIG_BLOCK, Some(!0), BUS), 0);
        for code in [libc::SI_TKILL, libc::SI_TKILL, libc::SI_USER] {
            keep(&sent(code));
        }
        assert_eq!(pending(), BUS);
        assert_eq!(take(BUS).map(|info| info.si_code), Some(libc::SI_TKILL));
        assert_eq!(take(BUS).map(|info| info.si_code), Some(libc::SI_USER));
        assert!(take(BUS).is_none() && pending() == 0);
        assert_eq!(change(libc::SIG_UNBLOCK, Some(BUS), BUS), BUS);
        assert_eq!(blocked(), 0);
    }
}
