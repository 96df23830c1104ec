//! The numbers of hidden descriptors in the program's table: where they are, which they are, and who closes them.
//!
//! A number is above RLIMIT_NOFILE if possible ([`raise_limit`]). A preloaded library asks [`is_hidden`] which numbers
//! to protect. A child created by the C library's fork closes its copies before it runs any code of its own, or settles
//! which it keeps ([`settle_in_child`]).
//!
//! **Locking.** None. An entry of the list belongs to who has changed it from free.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::{fork, memory, taken};

/// Upper limit for where the engine's numbers start. The kernel's table is as long as the highest number, and each fork
/// copies it (128 KiB).
const HIGHEST_BASE: u64 = 16384;

/// How many numbers the engine may use, above the program's limit or, if there are none, below it.
const NR_NUMBERS: u64 = 1024;
const NR_NUMBERS_BELOW: u64 = 64;

/// The numbers of hidden descriptors in the program's table; -1: none.
static NUMBERS: [AtomicI32; NR_NUMBERS as usize] = [const { AtomicI32::new(NONE) }; NR_NUMBERS as usize];
const NONE: RawFd = -1;
/// No hidden number is below this, so one comparison answers for the program's other descriptors.
static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);
/// Entries of the list from here on were never used.
static NR_USED: AtomicUsize = AtomicUsize::new(0);
/// Descriptors that one of the engine's threads dropped. A thread of the program closes them.
static NR_RETIRED: AtomicUsize = AtomicUsize::new(0);

/// The list entry of a number that is yet to be closed.
fn retired(number: RawFd) -> RawFd {
    -2 - number
}

/// Whether a number of the program's table belongs to a hidden descriptor, and so must look closed to the program.
pub fn is_hidden(number: RawFd) -> bool {
    number >= LOWEST.load(Ordering::Relaxed) && next_hidden(number) == Some(number)
}

/// The lowest hidden number from `from` on, including those that are yet to be closed.
pub fn next_hidden(from: RawFd) -> Option<RawFd> {
    let number = |entry: &AtomicI32| match entry.load(Ordering::Relaxed) {
        number if number < NONE => retired(number),
        number => number,
    };
    listed().map(number).filter(|&number| number >= from.max(0)).min()
}

pub(crate) fn all() -> impl Iterator<Item = RawFd> {
    listed().map(|entry| entry.load(Ordering::Acquire)).filter(|&number| number > NONE)
}

fn listed() -> impl Iterator<Item = &'static AtomicI32> {
    NUMBERS[..NR_USED.load(Ordering::Acquire)].iter()
}

fn list(number: RawFd) -> io::Result<()> {
    let free = |entry: &AtomicI32| entry.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let Some(at) = NUMBERS.iter().position(free) else { return Err(io::Error::from_raw_os_error(libc::EMFILE)) };
    NR_USED.fetch_max(at + 1, Ordering::AcqRel);
    LOWEST.fetch_min(number, Ordering::AcqRel);
    Ok(())
}

/// Removes a number from the list. Returns whether it was there.
pub(crate) fn unlist(number: RawFd) -> bool {
    listed().any(|entry| entry.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// Closes a number from [`hide_number`].
pub(crate) fn close_hidden(number: RawFd) {
    if unlist(number) {
        close(number);
    }
}

/// Closes a number of the calling thread's table.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: takes no pointers. The number's owner gives it up.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Leaves a number to be closed on a thread of the program: this one has another table.
pub(crate) fn retire(number: RawFd) {
    let mark = |entry: &AtomicI32| {
        entry.compare_exchange(number, retired(number), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if listed().any(mark) {
        NR_RETIRED.fetch_add(1, Ordering::Release);
    }
}

/// Closes what the engine's threads have dropped.
pub(crate) fn close_retired() {
    if NR_RETIRED.load(Ordering::Relaxed) == 0 || NR_RETIRED.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    for entry in listed() {
        let number = entry.load(Ordering::Acquire);
        if number < NONE && entry.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            close(retired(number));
        }
    }
}

/// The program's limit of descriptors, while the process's is higher; 0: it is not.
static PROGRAMS_LIMIT: AtomicU64 = AtomicU64::new(0);

/// The process's limit of descriptors is raised until this is dropped.
#[must_use]
pub struct RaisedLimit(Option<libc::rlimit64>);

/// Raises the process's limit of descriptors, so that hidden numbers are above what the program can get, and can be had
/// though the program uses all of its own. If that is not permitted, nothing changes. Only while nobody else reads or
/// sets the limit, or starts a program.
pub fn raise_limit() -> RaisedLimit {
    let Ok(limits) = limits() else { return RaisedLimit(None) };
    let (soft, hard) = (limits.rlim_cur, limits.rlim_max);
    let wanted = soft.max(HIGHEST_BASE).saturating_add(NR_NUMBERS); // numbers above a lowered limit may be in use
    let raised = libc::rlimit64 { rlim_cur: wanted, rlim_max: hard.max(wanted) };
    let permitted = libc::rlimit64 { rlim_cur: hard.min(wanted), rlim_max: hard };
    if set_limits(raised).or_else(|_| set_limits(permitted)).is_err() {
        return RaisedLimit(None);
    }
    if soft <= HIGHEST_BASE {
        PROGRAMS_LIMIT.store(soft, Ordering::Relaxed);
    }
    RaisedLimit(Some(limits))
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        if let Some(limits) = self.0 {
            PROGRAMS_LIMIT.store(0, Ordering::Relaxed);
            let _ = set_limits(limits); // it is lowered, which is permitted
        }
    }
}

/// Moves a descriptor of the program's table to a number where programs do not look, and lists it. If it has got the
/// last number, it stays there.
pub(crate) fn hide_number(fd: OwnedFd) -> io::Result<RawFd> {
    close_copies_in_children();
    let high = above_the_limit(&fd).or_else(|_| {
        let limit = limits()?.rlim_cur.min(HIGHEST_BASE);
        duplicate(&fd, limit.saturating_sub(NR_NUMBERS_BELOW))
    });
    let high = match high {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => fd,
        moved => moved?,
    };
    list(high.as_raw_fd())?;
    Ok(high.into_raw_fd())
}

fn duplicate(fd: &OwnedFd, from: u64) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    taken(unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from.max(3)) })
}

fn limits() -> io::Result<libc::rlimit64> {
    memory::limits(libc::RLIMIT_NOFILE, None)
}

fn set_limits(limits: libc::rlimit64) -> io::Result<()> {
    memory::limits(libc::RLIMIT_NOFILE, Some(&limits)).map(drop)
}

/// Duplicates a descriptor to a number beyond the program's limit, while that is raised.
fn above_the_limit(fd: &OwnedFd) -> io::Result<OwnedFd> {
    match PROGRAMS_LIMIT.load(Ordering::Relaxed) {
        0 => Err(io::ErrorKind::Unsupported.into()),
        limit => duplicate(fd, limit),
    }
}

/// Makes forked children close the engine's descriptors. Otherwise a child could read what its parent swaps out later,
/// and write into its memory.
fn close_copies_in_children() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails for lack of memory only. Children then keep the descriptors until they exec.
        let _ = fork::at_fork(nothing, nothing, close_in_child);
    });
}

extern "C" fn nothing() {}

/// Closes all hidden descriptors, in a forked child whose engine does not go on.
pub extern "C" fn close_in_child() {
    if !CHILD_SETTLES.swap(false, Ordering::Relaxed) {
        settle_in_child(&[]);
    }
}

static CHILD_SETTLES: AtomicBool = AtomicBool::new(false);

/// Before a fork: the child will call [`settle_in_child`], perhaps before the handler above runs. And in the parent
/// after it: another child may not.
pub fn child_settles(settles: bool) {
    CHILD_SETTLES.store(settles, Ordering::Relaxed);
}

/// The number of a descriptor that a forked child keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptNumber(pub(crate) RawFd);

/// In a forked child, once: closes the hidden descriptors except some, those of all arenas that go on. They are to be
/// used again by [`Descriptor::keep_in_child`](crate::descriptor::Descriptor::keep_in_child).
pub fn settle_in_child(kept: &[KeptNumber]) {
    let mut lowest = RawFd::MAX;
    for entry in listed() {
        let number = entry.load(Ordering::Acquire);
        if kept.contains(&KeptNumber(number)) {
            lowest = lowest.min(number);
        } else if number != NONE {
            entry.store(NONE, Ordering::Release);
            close(if number < NONE { retired(number) } else { number });
        }
    }
    NR_RETIRED.store(0, Ordering::Relaxed);
    LOWEST.store(lowest, Ordering::Release);
}
