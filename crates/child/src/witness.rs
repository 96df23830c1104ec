//! Which signals the whole process group has got, and so the program too.
//!
//! What a signal carries does not tell whether its sender meant one process or all. So a process that does nothing else
//! is in the group. It has all signals blocked, takes each, and writes to a pipe what it was. The same holds for
//! signals that somebody sends to all processes one by one, as systemd does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::begun::{die_with, erase_arguments};
use crate::received::{Sent, readable, send};
use crate::{MOST_SIGNAL, check, mask};

/// Its name. It differs from the command's, so that a signal to all processes of that name does not reach it.
const NAME: &std::ffi::CStr = c"group-signals";

/// The question. The kernel hands out the lowest number first, so what the group got before is reported before.
const QUESTION: i32 = MOST_SIGNAL;

/// The set of all signals.
static ALL: u64 = u64::MAX;

/// Waits this long for an answer, at the most.
const ANSWER_MS: i32 = 1000;

/// A process in the group of this one.
pub struct Witness {
    process: OwnedFd,
    reports: OwnedFd,
}

impl Witness {
    /// Starts one, which ends with the calling thread.
    ///
    /// # Errors
    /// There is no memory or descriptor for it, or there are too many processes.
    pub fn start() -> io::Result<Witness> {
        let (reports, written) = std::io::pipe()?;
        let mut process: RawFd = -1;
        let flags = (libc::CLONE_PIDFD | libc::SIGCHLD) as usize;
        // SAFETY: takes no pointers.
        let parent = unsafe { libc::getpid() };
        let before = mask(libc::SIG_SETMASK, ALL); // the child is born so
        // No handlers of fork: the child makes system calls only.
        // SAFETY: the child is a process with a copy of the memory, which goes on on the same stack. The kernel stores
        // a descriptor in a local of this frame.
        let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut process, 0usize, 0usize) };
        if child == 0 {
            witness(parent, written.as_raw_fd());
        }
        mask(libc::SIG_SETMASK, before);
        check(child)?;
        // SAFETY: the kernel just created this descriptor, and nothing else owns it.
        Ok(Witness { process: unsafe { OwnedFd::from_raw_fd(process) }, reports: reports.into() })
    }

    /// What the group has got since the last call. `None`: it does not answer, or somebody has ended it.
    #[must_use]
    pub fn ask(&self) -> Option<Vec<Sent>> {
        // Where the user has too many signals pending, the kernel keeps none of the sender.
        let is_answer = |sent: Sent| sent.signal == QUESTION && [0, std::process::id()].contains(&sent.sender);
        send(self.process.as_fd(), QUESTION).ok()?;
        let mut got = Vec::new();
        loop {
            let sent = self.read()?;
            if is_answer(sent) {
                return Some(got);
            }
            got.push(sent);
        }
    }

    /// The next report. Reports are shorter than what a pipe takes and gives at once.
    fn read(&self) -> Option<Sent> {
        let mut sent = Sent { signal: 0, sender: 0 };
        if !readable([self.reports.as_raw_fd()], ANSWER_MS)[0] {
            return None;
        }
        // SAFETY: the kernel fills in a local of this frame, for which any bytes are valid.
        let read = unsafe { libc::read(self.reports.as_raw_fd(), (&raw mut sent).cast(), size_of::<Sent>()) };
        (usize::try_from(read) == Ok(size_of::<Sent>())).then_some(sent)
    }
}

/// Readable when there is a report.
impl AsFd for Witness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = send(self.process.as_fd(), libc::SIGKILL); // it may have ended
        // SAFETY: all zeroes is a valid value, which the kernel fills in.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PIDFD, self.process.as_raw_fd() as libc::id_t, &raw mut info, libc::WEXITED);
        }
    }
}

/// What the witness does, until it is killed. All signals are blocked.
fn witness(parent: libc::pid_t, reports: RawFd) -> ! {
    let keep = reports as u32; // above the standard streams, which the runtime opens
    // SAFETY: this process has one thread, which uses neither its other descriptors nor its arguments. The name is a
    // string.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        // Open, they would keep files and pipes open.
        let is_closed = libc::syscall(libc::SYS_close_range, 0, keep - 1, 0) == 0
            && libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0) == 0;
        erase_arguments();
        if !is_closed || die_with(parent).is_err() {
            libc::_exit(0);
        }
    }
    loop {
        // SAFETY: all zeroes is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let no_limit = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel reads a set of 8 bytes, and fills in a local of this frame.
        let signal = unsafe {
            libc::syscall(libc::SYS_rt_sigtimedwait, &raw const ALL, &raw mut info, no_limit, size_of::<u64>())
        };
        if signal == -1 {
            continue; // it was stopped and continued
        }
        // SAFETY: all of it is filled in or zero.
        let sent = Sent::of(signal as i32, info.si_code, unsafe { info.si_pid() } as u32);
        // SAFETY: the kernel reads a local of this frame. A full pipe makes this wait, with signals pending.
        unsafe { libc::write(reports, (&raw const sent).cast(), size_of::<Sent>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reports_what_was_sent_and_leaves_nothing() {
        let witness = Witness::start().unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", witness.process.as_raw_fd())).unwrap();
        let process = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim().to_owned();
        assert_eq!(witness.ask().unwrap(), []); // by now it is called what it is
        assert!(std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap().starts_with("group-signals"));
        assert_eq!(std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default().iter().max(), Some(&0));
        let sender = std::process::id();
        for signals in [&[libc::SIGTERM][..], &[libc::SIGTERM, libc::SIGCHLD, 40, 40, 64], &[]] {
            for &signal in signals {
                send(witness.process.as_fd(), signal).unwrap();
            }
            let expected: Vec<_> = signals.iter().map(|&signal| Sent { signal, sender }).collect();
            // The last is taken for the answer, and its own answer comes next.
            let expected = expected.strip_suffix(&[Sent { signal: 64, sender }]).unwrap_or(&expected);
            assert_eq!(witness.ask().unwrap(), expected);
            if signals.last() == Some(&64) {
                assert_eq!(witness.read(), Some(Sent { signal: 64, sender }));
            }
        }
        send(witness.process.as_fd(), libc::SIGKILL).unwrap();
        assert_eq!(witness.ask(), None);
        drop(witness);
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
    }
}
