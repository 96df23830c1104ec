//! Whether a thread is the program's only one, or its last.

use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_sys::{c_thread, own_calls};

use crate::ground::lock::{Lock, Locked};
use crate::ground::{guard, state};

/// The program has made threads of which the C library does not know.
static HAS_OWN_THREADS: AtomicBool = AtomicBool::new(false);

/// Notes the flags of a call of `clone`.
pub fn note_flags(flags: usize) {
    if flags & libc::CLONE_THREAD as usize != 0 {
        HAS_OWN_THREADS.store(true, Ordering::Relaxed);
    }
}

/// Whether the program has one thread, as far as is known.
pub fn has_one_thread() -> bool {
    !HAS_OWN_THREADS.load(Ordering::Relaxed) && c_thread::has_one_other()
}

/// Threads that are about to end, locked.
pub type Ending = Locked<Vec<u32>>;

pub fn ending() -> Ending {
    static ENDING: Lock<Vec<u32>> = Lock::new(Vec::new());
    ENDING.lock()
}

/// Whether this thread, which ends now, is the program's last. The engine's would outlive it.
pub fn is_last_thread() -> bool {
    if state::arena().is_none() {
        return false;
    }
    if own_calls::is_used() {
        return has_one_thread(); // the program's filter may refuse to open a directory
    }
    let _guard = guard::enter();
    let mut ending = self::ending();
    let Ok(listed) = std::fs::read_dir("/proc/self/task") else { return false };
    let threads: Vec<u32> = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ending.retain(|thread| threads.contains(thread));
    ending.push(guard::this_thread());
    threads.into_iter().all(|thread| ending.contains(&thread) || folioswap::is_internal(thread) || has_ended(thread))
}

/// Whether a thread has ended. The first one of a process stays listed until the others have ended, too.
fn has_ended(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.is_empty() || state.starts_with(['Z', 'X'])
}
