//! Rights that the program's thread has changed for itself alone: the engine's threads change theirs alike. When the
//! C library changes the user of all threads, each must get the same answer, or it ends the process.
//!
//! A thread of the engine is asked by SIGSYS, which is open there and handled by this library.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folioswap_sys::{own_calls, seat};
use libc::c_long;

use crate::calls::access;
use crate::real::{kernel, own};
use crate::{guard, state};

/// How long threads are waited for: one may wait for a device.
const LIMIT: Duration = Duration::from_secs(2);

/// The call that is being mirrored: its number and its words. What words of capset point to is in [`RIGHTS`].
static CALL: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];
static RIGHTS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// Threads that have made it.
static NR_DONE: AtomicUsize = AtomicUsize::new(0);

/// Called after the program's thread has made such a call, with success.
pub fn mirror(number: c_long, words: &[usize; 6]) {
    static ONE: Mutex<()> = Mutex::new(());
    if state::arena().is_none() || guard::inside() || own_calls::is_used() {
        return; // a filter may forbid the call
    }
    let _guard = guard::enter();
    let _one = ONE.lock().expect("nothing panics under this lock");
    let mut words = *words;
    if number == libc::SYS_capset {
        // SAFETY: the kernel has just read the program's two structures.
        let given = unsafe { (access::read(words[0] as *const [u32; 2]), access::read(words[1] as *const [u32; 6])) };
        let (Some([version, _]), Some(rights)) = given else { return };
        let own = [version, 0].into_iter().chain(rights);
        RIGHTS.iter().zip(own).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        words = [RIGHTS[..].as_ptr() as usize, RIGHTS[2..].as_ptr() as usize, 0, 0, 0, 0];
    }
    CALL[0].store(number as usize, Ordering::Relaxed);
    CALL[1..].iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    NR_DONE.store(0, Ordering::SeqCst);
    state::keeping_errno(ask);
}

/// What tells such a SIGSYS from others.
fn sign() -> usize {
    &raw const CALL as usize
}

fn ask() {
    let mut nr_asked = 0;
    seat::each_thread(|thread| {
        // Signal, error, code; then process, user and value.
        let mut about = [0u64; 16];
        // SAFETY: takes no pointers.
        let process = unsafe { own!(libc::SYS_getpid) as u64 };
        about[0] = libc::SIGSYS as u64;
        about[1] = u64::from(libc::SI_QUEUE as u32);
        about[2] = process;
        about[3] = sign() as u64;
        // SAFETY: the kernel copies the local.
        let sent = unsafe { kernel!(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGSYS, about.as_ptr()) };
        nr_asked += usize::from(sent == 0);
    });
    let begun = Instant::now();
    while NR_DONE.load(Ordering::SeqCst) < nr_asked && begun.elapsed() < LIMIT {
        // SAFETY: takes no pointers.
        unsafe { own!(libc::SYS_sched_yield) };
    }
}

/// Called for a SIGSYS that was sent to a thread of the engine. Returns whether it is such a question.
pub fn is_answered(about: &libc::siginfo_t) -> bool {
    // SAFETY: a sent signal has a value.
    let value = unsafe { about.si_value().sival_ptr } as usize;
    if about.si_code != libc::SI_QUEUE || value != sign() || !folioswap::internal_thread() {
        return false;
    }
    let [number, words @ ..] = CALL.each_ref().map(|place| place.load(Ordering::Relaxed));
    // SAFETY: the call that the program has made for its thread, on values that stay until all have answered.
    unsafe { kernel!(number as c_long, words[0], words[1], words[2], words[3], words[4]) };
    NR_DONE.fetch_add(1, Ordering::SeqCst);
    true
}
