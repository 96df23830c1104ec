//! What is to happen around a fork by the C library.

use std::io;

/// Has the C library call `prepare` before each fork, in the forking thread, then `parent` and `child` after it, each
/// in its process. For the rest of the process. The child has one thread: its function takes no lock that another
/// thread may have held.
///
/// A raw `clone` or `vfork` system call does not come by here.
///
/// # Errors
/// ENOMEM.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: three functions that live as long as the process (or the library, which is never unloaded: it has
    // threads running) and take nothing.
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
        // SAFETY: the child does nothing but read a static and leave without running anything of the parent's.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            crate::signals::exit_now(SEEN.load(Ordering::SeqCst) as i32);
        }
        let mut status = 0;
        // SAFETY: the status is of this frame; the child is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status) & 5, 5);
        assert_eq!(SEEN.load(Ordering::SeqCst) & 3, 3);
    }
}
