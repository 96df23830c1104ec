//! Signals and threads: blocking, thread ids, and an end without ceremony.

use std::cell::Cell;
use std::mem::MaybeUninit;

/// All signals of the calling thread are blocked until this is dropped.
pub struct Blocked(libc::sigset_t);

/// Blocks all signals of the calling thread; a thread started meanwhile has them blocked for good.
#[must_use]
pub fn block_all() -> Blocked {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are valid; the first call initialises the one that the second reads, and fills in `before`.
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Blocked(before.assume_init())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set that `block_all` was given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

thread_local! {
    static THREAD_ID: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's id, as the kernel counts them.
#[must_use]
pub fn thread_id() -> u32 {
    match THREAD_ID.get() {
        0 => {
            // SAFETY: takes no pointers.
            let id = unsafe { libc::gettid() } as u32;
            THREAD_ID.set(id);
            id
        }
        known => known,
    }
}

/// Forgets the remembered id: the child of a fork has another one.
pub fn forget_thread_id() {
    THREAD_ID.set(0);
}

/// Sends SIGBUS to a thread of this process, or to the process when the thread is not known.
pub fn send_sigbus(thread: u32) {
    // SAFETY: takes no pointers.
    unsafe {
        let process = libc::getpid();
        if thread == 0 {
            libc::kill(process, libc::SIGBUS);
        } else {
            libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGBUS);
        }
    }
}

/// Ends the process at once: nothing is flushed, no destructor runs.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: takes no pointers.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_ids_of_their_own() {
        let here = thread_id();
        assert_eq!(here, thread_id());
        assert_ne!(std::thread::spawn(thread_id).join().unwrap(), here);
    }
}
