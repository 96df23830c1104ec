//! Fork handlers.

use std::io;

/// Makes the C library call `prepare` before each fork, in the forking thread, then `parent` and `child` after it, each
/// in its process. This is permanent. The child has one thread, so `child` must not take a lock that another thread may
/// have held.
///
/// A raw `clone` or `vfork` system call does not run these handlers.
///
/// # Errors
/// ENOMEM.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the functions take no arguments, and live as long as the process (or the library, which is never unloaded
    // because its threads are running).
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static SEEN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn prepare() {
        SEEN.fetch_or(1, Ordering::SeqCst);
    }
    extern "C" fn parent() {
        SEEN.fetch_or(2, Ordering::SeqCst);
    }
    extern "C" fn child() {
        SEEN.fetch_or(4, Ordering::SeqCst);
    }

    #[test]
    fn both_processes_are_told() {
        at_fork(prepare, parent, child).unwrap();
        // SAFETY: the child only reads a static, and exits without running any of the parent's code.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            crate::signals::exit_now(SEEN.load(Ordering::SeqCst) as i32);
        }
        let mut status = 0;
        // SAFETY: the status is a local of this frame. The child is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status) & 5, 5);
        assert_eq!(SEEN.load(Ordering::SeqCst) & 3, 3);
    }
}
