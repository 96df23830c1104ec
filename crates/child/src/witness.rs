//! Which signals the whole process group has got, and so the program too.
//!
//! What a signal carries does not tell whether its sender meant one process or all. So a process that does nothing else
//! is in the group, with all signals blocked. Those that the group has got wait there, and the kernel lists them. The
//! same holds for signals that somebody sends to all processes one by one, as systemd does.

use std::io;

use crate::begun::{die_with, erase_arguments};
use crate::{check, mask};

/// Its name. It differs from the command's, so that a signal to all processes of that name does not reach it.
const NAME: &std::ffi::CStr = c"group-signals";

/// A process in the group of this one.
pub struct Witness(libc::pid_t);

impl Witness {
    /// Starts one, which ends with the calling thread.
    ///
    /// # Errors
    /// There is no memory for it, or there are too many processes.
    pub fn start() -> io::Result<Witness> {
        // SAFETY: takes no pointers.
        let parent = unsafe { libc::getpid() };
        // No handlers of fork: the child makes system calls only.
        // SAFETY: without flags the child is a process with a copy of the memory, which goes on on the same stack.
        match check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD as usize, 0usize, 0usize, 0usize, 0usize) })?
        {
            0 => witness(parent),
            child => Ok(Witness(child as libc::pid_t)),
        }
    }

    /// Whether nobody has ended it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG) == 0 }
    }

    /// The signals that it has got.
    #[must_use]
    pub fn seen(&self) -> u64 {
        // The list of another PID namespace has other processes.
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let is_ours = status.lines().next().is_some_and(|name| name.as_bytes().ends_with(NAME.to_bytes()));
        let waiting = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).filter(|_| is_ours);
        waiting.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // If somebody has ended it, its number may be another's.
        if self.is_there() {
            // SAFETY: no status is asked for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
}

fn witness(parent: libc::pid_t) -> ! {
    mask(libc::SIG_SETMASK, u64::MAX);
    // SAFETY: this process has one thread, which uses neither its descriptors nor its arguments. The name is a string.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        if libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) != 0 {
            libc::_exit(0); // it would keep files and pipes open
        }
        erase_arguments();
        while die_with(parent).is_ok() {
            libc::pause();
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bit;

    #[test]
    fn it_sees_what_was_sent_and_leaves_nothing() {
        let witness = Witness::start().unwrap();
        let process = witness.0;
        let sees = |set| {
            let begun = std::time::Instant::now();
            while witness.seen() != set {
                assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:x}", witness.seen());
                std::thread::yield_now();
            }
        };
        // Its mask is set before its name.
        let status = || std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        while !status().contains("group-signals") {
            std::thread::yield_now();
        }
        for (signal, set) in [(libc::SIGTERM, bit(libc::SIGTERM)), (40, bit(libc::SIGTERM) | bit(40))] {
            // SAFETY: takes no pointers.
            unsafe { libc::kill(process, signal) };
            sees(set);
        }
        assert_eq!(std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default().iter().max(), Some(&0));
        drop(witness);
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
    }
}
