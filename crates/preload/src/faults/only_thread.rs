//! Whether a thread is the program's only one, or its last.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_sys::{c_thread, own_calls, own_table};

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
    let this = guard::this_thread();
    let listed = own_table::briefly(listed).ok().filter(|threads| threads.contains(&this));
    let Some(threads) = listed else { return has_one_thread() }; // there is no `/proc`, or not that of this process
    ending.retain(|thread| threads.contains(thread));
    ending.push(this);
    threads.into_iter().all(|thread| ending.contains(&thread) || folioswap::is_internal(thread))
}

/// The threads of the process, by the ids that they have for it: another PID namespace, of which `/proc` may be, has
/// others for them. Without those that have ended: the first one stays listed until the others have, too.
fn listed() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")?.flatten() {
        match std::fs::read(entry.path().join("status")) {
            Ok(status) => found.extend(id_of_living(&String::from_utf8_lossy(&status))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {} // it has ended
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The innermost id in what `/proc` says of a thread; `None` if that has ended.
fn id_of_living(status: &str) -> Option<u32> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_living = field("State:").is_some_and(|state| !state.starts_with(['Z', 'X']));
    field("NSpid:").filter(|_| is_living)?.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_id_that_its_own_namespace_gave_it() {
        let status = |state, ids| format!("Name:\tState: Z\nState:\t{state}\nPid:\t7\nNSpid:\t{ids}\nThreads:\t1\n");
        assert_eq!(id_of_living(&status("S (sleeping)", "7")), Some(7));
        assert_eq!(id_of_living(&status("R (running)", "7\t12\t3")), Some(3));
        assert_eq!(id_of_living(&status("Z (zombie)", "7\t12")), None);
        assert_eq!(id_of_living("State:\tS (sleeping)\n"), None);
    }
}
