//! What a child process does between fork and exec.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::check;

/// Signals have the numbers from 1 to this. Sets of them have a bit for each.
const MOST_SIGNAL: i32 = 64;

/// The signals that this process was started to ignore and to block, noted by [`note`]. Not SIGPIPE, which Rust's
/// runtime ignores before `main`: children have its default effect.
static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// Notes how this process was started. Called once, before any handler is installed.
pub fn note() {
    let mut ignored = 0;
    for signal in 1..=MOST_SIGNAL {
        // SAFETY: all zeroes is a valid action. The kernel fills it in.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        };
        let is_ignored = action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE;
        ignored |= u64::from(is_ignored) << (signal - 1);
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    let mut blocked = 0;
    mask(libc::SIG_BLOCK, None, Some(&mut blocked));
    BLOCKED.store(blocked, Ordering::Relaxed);
}

fn mask(how: i32, set: Option<&u64>, before: Option<&mut u64>) {
    let set = set.map_or(std::ptr::null(), |set| &raw const *set);
    let before = before.map_or(std::ptr::null_mut(), |before| &raw mut *before);
    // SAFETY: the kernel reads and writes sets of eight bytes, where there is one.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, size_of::<u64>()) };
}

/// Whether this process was started with a signal ignored.
#[must_use]
pub fn began_ignoring(signal: i32) -> bool {
    IGNORED.load(Ordering::Relaxed) >> (signal - 1) & 1 == 1
}

/// Has the calling thread receive these signals, and the kernel keep the statuses of children, however this process was
/// started. Children are started as this process was.
pub fn attend(signals: &[i32]) {
    let set = signals.iter().fold(0, |set, signal| set | 1 << (signal - 1));
    mask(libc::SIG_UNBLOCK, Some(&set), None);
    // SAFETY: the default, which is to do nothing.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Has the children of `command` killed when the calling thread ends, and in the control group of which `group` is
/// `cgroup.procs`, open for writing. They ignore and block the signals that this process was started to ignore and
/// block.
pub fn bind(command: &mut Command, group: Option<OwnedFd>) {
    // SAFETY: takes no pointers.
    let parent = unsafe { libc::getpid() };
    let before_exec = move || {
        // SAFETY: takes no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into())?;
        // SAFETY: as above.
        if unsafe { libc::getppid() } != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)); // it ended before the signal was set
        }
        if let Some(group) = &group {
            // SAFETY: a buffer of one byte. A zero names the process that writes it.
            check(unsafe { libc::write(group.as_raw_fd(), c"0".as_ptr().cast(), 1) } as libc::c_long)?;
        }
        for signal in (1..=MOST_SIGNAL).filter(|&signal| began_ignoring(signal)) {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        mask(libc::SIG_SETMASK, Some(&BLOCKED.load(Ordering::Relaxed)), None);
        Ok(())
    };
    // SAFETY: system calls only, which are safe after fork.
    unsafe { command.pre_exec(before_exec) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_runs_and_a_refusal_is_an_error() {
        let mut command = Command::new("grep");
        command.args(["-c", "Name:", "/proc/self/status"]);
        bind(&mut command, None);
        assert!(command.output().unwrap().status.success());
        let read_only = std::fs::File::open("/dev/null").unwrap();
        bind(&mut command, Some(read_only.into()));
        assert_eq!(command.output().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
