//! The signals that this process has got. All are blocked, and read from a descriptor: none interrupts anything, and
//! they wait there until somebody takes them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::begun::began_blocking;
use crate::{bit, check, mask};

/// All but those by which the C library changes its threads.
static ALL: u64 = !(bit(32) | bit(33));

/// The signals of this process. The calling thread, and threads that are started later, are not interrupted by any.
pub struct Received(OwnedFd);

/// A signal, and where it is from.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Sent {
    /// Its number.
    pub signal: i32,
    /// The process that sent it; 0: none did, or it is in another PID namespace.
    pub sender: u32,
}

impl Sent {
    /// From what the kernel says of a signal.
    pub(crate) fn of(signal: i32, code: i32, pid: u32) -> Sent {
        Sent { signal, sender: if code <= libc::SI_USER { pid } else { 0 } }
    }

    /// Whether each one is kept until it is handled. Of the others there is one at a time.
    pub fn is_queued(self) -> bool {
        self.signal >= 32
    }
}

impl Received {
    /// Blocks all signals, and has the kernel keep the statuses of children, however this process was started.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn begin() -> io::Result<Received> {
        // SAFETY: the default, which is to do nothing.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the kernel reads a set of 8 bytes.
        let number = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const ALL, size_of::<u64>(), flags) };
        let number = check(number)?;
        mask(libc::SIG_BLOCK, ALL);
        // SAFETY: the kernel just created this descriptor, and nothing else owns it.
        Ok(Received(unsafe { OwnedFd::from_raw_fd(number as i32) }))
    }

    /// Takes all signals, the lowest number first, but for what the kernel tells of children.
    pub fn take(&self) -> Vec<Sent> {
        let mut taken = Vec::new();
        loop {
            // SAFETY: all zeroes is a valid value.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            let len = size_of_val(&info);
            // SAFETY: the kernel fills in a local of this frame.
            let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), len) };
            if usize::try_from(read) != Ok(len) {
                return taken; // no more
            }
            let sent = Sent::of(info.ssi_signo as i32, info.ssi_code, info.ssi_pid);
            if sent.signal != libc::SIGCHLD || info.ssi_code <= libc::SI_USER {
                taken.push(sent);
            }
        }
    }

    /// Waits for a signal or a report. Returns whether the other end of the pipe `end` was closed, and whether there is
    /// a report.
    pub fn wait(&self, end: BorrowedFd<'_>, reports: Option<BorrowedFd<'_>>, limit: Option<Duration>) -> (bool, bool) {
        let reports = reports.map_or(-1, |reports| reports.as_raw_fd());
        let limit_ms = limit.map_or(-1, |limit| i32::try_from(limit.as_millis()).map_or(i32::MAX, |whole| whole + 1));
        let [is_end, _, has_report] = readable([end.as_raw_fd(), self.0.as_raw_fd(), reports], limit_ms);
        (is_end, has_report)
    }

    /// Drops the signals that were not taken, and gives the calling thread the mask that it was started with.
    pub fn end(self) {
        drop(self.take());
        mask(libc::SIG_SETMASK, began_blocking());
    }
}

/// Waits until one of the descriptors can be read or has no writer. Returns which do. The kernel passes over negative
/// ones.
pub(crate) fn readable<const N: usize>(descriptors: [RawFd; N], limit_ms: i32) -> [bool; N] {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the kernel reads and writes a local of this frame. No signal interrupts the call.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, limit_ms) };
    polled.map(|one| one.revents != 0)
}

/// Sends a signal to the process of a pidfd.
///
/// # Errors
/// It has ended, or may not be sent signals.
pub fn send(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a borrowed descriptor, and no information about the signal.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, no_info, 0) };
    check(sent).map(drop)
}

/// Stops this process as a signal does by default. Returns when it is continued.
pub fn stop_by(signal: i32) {
    raise(signal);
    mask(libc::SIG_BLOCK, bit(signal));
}

/// Ends this process by a signal that has ended another one, which has left a core dump if one was wanted. Returns if
/// this process is PID 1 of a namespace.
pub fn end_by(signal: i32) {
    // SAFETY: takes no pointers. No handler is installed.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0); // a limit of 0 does not hold for pipes
        libc::signal(signal, libc::SIG_DFL);
    }
    raise(signal);
}

fn raise(signal: i32) {
    mask(libc::SIG_UNBLOCK, bit(signal));
    // SAFETY: takes no pointers.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

/// Takes the statuses of children that have ended, until there is none or that of `child` is next. They become children
/// of this process, if it is PID 1 or a subreaper, when their own parents end.
pub fn reap_others(child: u32) {
    loop {
        // SAFETY: all zeroes is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG;
        // SAFETY: the kernel fills in a local of this frame.
        let waited = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options | libc::WNOWAIT) };
        // SAFETY: zero, or filled in for a child.
        let ended = u32::try_from(unsafe { info.si_pid() }).unwrap_or(0);
        if waited == -1 || ended == 0 || ended == child {
            return;
        }
        // SAFETY: as above.
        unsafe { libc::waitid(libc::P_PID, ended, &raw mut info, options) };
    }
}
