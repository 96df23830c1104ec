//! Rights that the program's thread has changed for itself alone: the engine's threads change theirs alike. When the
//! C library changes the user of all threads, each must get the same answer, or it ends the process. And calls by which
//! they share less with the program's thread.
//!
//! A thread of the engine is asked by SIGSYS, which is open there and handled by this library.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folioswap_sys::{own_calls, seat};
use libc::c_long;

use crate::calls::copied::SHORT_RIGHTS;
use crate::ground::lock::{Lock, Locked};
use crate::ground::real::{kernel, own};
use crate::ground::{guard, state};
use crate::memory::access;

/// How long threads are waited for: one may wait for a device.
const LIMIT: Duration = Duration::from_secs(2);

/// The call that is being mirrored: its number and its words. What words of capset point to is in [`RIGHTS`].
static CALL: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];
static RIGHTS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// The number of the round in the upper half, and of the threads that have made its call in the lower one. The round is
/// odd while its call is being written down. A thread that is late, after [`LIMIT`], finds a later round: it makes that
/// one's call, for which its signal may have been dropped because the first one was pending, and is not counted.
static ROUND: AtomicU64 = AtomicU64::new(0);

/// One call at a time.
pub type One = Locked<()>;

pub fn one() -> One {
    static ONE: Lock<()> = Lock::new(());
    ONE.lock()
}

/// Whether there may be threads of the engine's, and no filter that may forbid the call.
pub fn is_possible() -> bool {
    state::arena().is_some() && !guard::inside() && !own_calls::is_used()
}

/// Called after the program's thread has made such a call, with success. Returns whether all threads have made it, or
/// need not.
pub fn mirror(number: c_long, words: &[usize; 6]) -> bool {
    if !is_possible() {
        return true;
    }
    let _guard = guard::enter();
    let rights = if number == libc::SYS_capset {
        // SAFETY: the kernel has just read the program's two structures.
        let Some(rights) = (unsafe { rights(words) }) else { return true };
        rights
    } else {
        [0; 8]
    };
    folioswap::wait_for_starting(); // they are asked, too
    let _one = one();
    let round = (ROUND.load(Ordering::SeqCst) >> 32) as u32;
    let begin = |round: u32| ROUND.store(u64::from(round) << 32, Ordering::SeqCst);
    begin(round.wrapping_add(1));
    RIGHTS.iter().zip(rights).for_each(|(place, word)| place.store(word, Ordering::SeqCst));
    CALL[0].store(number as usize, Ordering::SeqCst);
    CALL[1..].iter().zip(words).for_each(|(place, word)| place.store(*word, Ordering::SeqCst));
    begin(round.wrapping_add(2));
    state::keeping_errno(|| ask(round.wrapping_add(2)))
}

/// Called before the program's thread enters another mount namespace. The kernel wants it to share its root and folder
/// with no other thread, so the engine's get their own. They leave the folder, whose mount would stay in use.
pub fn set_apart() {
    let mirror = |number, word| mirror(number, &[word, 0, 0, 0, 0, 0]);
    let _ = mirror(libc::SYS_unshare, libc::CLONE_FS as usize) && mirror(libc::SYS_chdir, c"/".as_ptr() as usize);
}

/// The version and the rights that a call of capset names.
///
/// # Safety
/// If they can be read, these are its words.
unsafe fn rights(words: &[usize; 6]) -> Option<[u32; 8]> {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let version = access::read(words[0] as *const u32)?;
        let [low, high] = match version {
            SHORT_RIGHTS => [access::read(words[1] as *const [u32; 3])?, [0; 3]],
            _ => access::read(words[1] as *const [[u32; 3]; 2])?,
        };
        Some([version, 0, low[0], low[1], low[2], high[0], high[1], high[2]])
    }
}

/// What tells such a SIGSYS from others.
fn sign() -> usize {
    &raw const CALL as usize
}

/// Whether all have answered in time.
fn ask(round: u32) -> bool {
    let mut nr_asked = 0;
    seat::each_thread(|thread| {
        // Signal, round in place of an error, code; then process, user and value.
        let mut about = [0u64; 16];
        // SAFETY: takes no pointers.
        let process = unsafe { own!(libc::SYS_getpid) as u64 };
        about[0] = libc::SIGSYS as u64 | u64::from(round) << 32;
        about[1] = u64::from(libc::SI_QUEUE as u32);
        about[2] = process;
        about[3] = sign() as u64;
        // SAFETY: the kernel copies the local.
        let sent = unsafe { kernel!(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGSYS, about.as_ptr()) };
        nr_asked += u32::from(sent == 0);
    });
    let begun = Instant::now();
    while (ROUND.load(Ordering::SeqCst) as u32) < nr_asked && begun.elapsed() < LIMIT {
        // SAFETY: takes no pointers.
        unsafe { own!(libc::SYS_sched_yield) };
    }
    ROUND.load(Ordering::SeqCst) as u32 >= nr_asked
}

/// Called for a SIGSYS that was sent to a thread of the engine. Returns whether it is such a question.
pub fn is_answered(about: &libc::siginfo_t) -> bool {
    // SAFETY: a sent signal has a value.
    let value = unsafe { about.si_value().sival_ptr } as usize;
    let is_whole = about.si_code == libc::SI_QUEUE && value == sign();
    // At the limit of pending signals (RLIMIT_SIGPENDING) the kernel sends it without what comes with it.
    let is_bare = about.si_code == libc::SI_USER && value == 0 && ROUND.load(Ordering::SeqCst) >> 32 != 0;
    if !(is_whole || is_bare) || !folioswap::internal_thread() {
        return false;
    }
    let (round, [number, mut words @ ..], rights) = whole_call();
    if number as c_long == libc::SYS_capset {
        words[..2].copy_from_slice(&[rights[..].as_ptr() as usize, rights[2..].as_ptr() as usize]);
    }
    // SAFETY: the call that the program has made for its thread, on numbers and locals, or one of `set_apart`.
    let result = unsafe { kernel!(number as c_long, words[0], words[1], words[2], words[3], words[4]) };
    if number as c_long == libc::SYS_unshare && result != 0 {
        return true; // the next call must not be made
    }
    let count =
        |word: u64| ((word >> 32) as u32 == round && (is_bare || round == about.si_errno as u32)).then(|| word + 1);
    let _ = ROUND.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
    true
}

/// The newest round, with its call and rights.
fn whole_call() -> (u32, [usize; 6], [u32; 8]) {
    loop {
        let round = (ROUND.load(Ordering::SeqCst) >> 32) as u32;
        let call = CALL.each_ref().map(|place| place.load(Ordering::SeqCst));
        let rights = RIGHTS.each_ref().map(|place| place.load(Ordering::SeqCst));
        if round.is_multiple_of(2) && (ROUND.load(Ordering::SeqCst) >> 32) as u32 == round {
            return (round, call, rights);
        }
    }
}
