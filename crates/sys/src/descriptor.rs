//! The engine's descriptors, hidden in a process whose program does not know about them.
//!
//! A hidden [`Descriptor`] is open in two tables: that of the engine's threads ([`own_table`]) and the program's, for
//! calls on the program's threads. Its number in the program's table is above RLIMIT_NOFILE if possible
//! ([`may_raise_limit`]). A preloaded library asks [`is_hidden`] which numbers to protect. If a number is closed or
//! reused anyway (an inline system call, a vfork child), [`Descriptor::with`] notices before it uses the number, and
//! the keeper thread makes the call: slower, but still correct.
//!
//! A child created by the C library's fork closes its copies before it runs any code of its own.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::{check, fork, own_table};

/// Upper limit for where the engine's numbers start. The kernel's table is as long as the highest number, and each fork
/// copies it (128 KiB).
const HIGHEST_BASE: u64 = 16384;

/// How many numbers the engine may use, above the program's limit or, if there are none, below it.
const NR_NUMBERS: u64 = 1024;
const NR_NUMBERS_BELOW: u64 = 64;

/// A file, userfaultfd or eventfd of the engine's.
#[derive(Debug)]
pub struct Descriptor {
    /// Its number in the program's table.
    here: RawFd,
    /// If it is hidden: its number in the table of the engine's threads, and whose table that is.
    own: Option<Own>,
    file: FileId,
}

/// A number in a keeper's table.
#[derive(Debug, Clone, Copy)]
struct Own {
    number: RawFd,
    keeper: usize,
}

impl Own {
    /// Whether the table belongs to this process's keeper. In a child with a copy of the memory it does not, and the
    /// child must not use it.
    fn is_ours(self) -> bool {
        own_table::current() == self.keeper
    }
}

/// A number that no descriptor has: calls with it fail with EBADF.
const CLOSED: RawFd = -1;

/// Identifies a file: device and inode. All userfaultfds, eventfds and the like have the same.
type FileId = (u64, u64);

impl From<OwnedFd> for Descriptor {
    /// Not hidden: for descriptors that one call of the engine uses and closes.
    fn from(fd: OwnedFd) -> Self {
        let file = file_id(fd.as_raw_fd()).unwrap_or_default();
        Descriptor { here: fd.into_raw_fd(), own: None, file }
    }
}

impl Descriptor {
    /// Hides a descriptor from the program.
    ///
    /// # Errors
    /// EMFILE: no number is left. The kernel's error if the engine's own table could not be created (needs Linux 5.9).
    pub fn hidden(fd: OwnedFd) -> io::Result<Self> {
        let file = file_id(fd.as_raw_fd())?;
        let number = own_table::import(fd.as_fd())?;
        let own = Own { number, keeper: own_table::current() };
        match hide_number(fd) {
            Ok(here) => Ok(Descriptor { here, own: Some(own), file }),
            Err(error) => {
                let _ = own_table::run(|| close(number));
                Err(error)
            }
        }
    }

    /// The same descriptor, hidden from here on.
    ///
    /// # Errors
    /// As [`Descriptor::hidden`].
    pub fn hide(self) -> io::Result<Self> {
        if self.own.is_some() {
            return Ok(self);
        }
        let here = std::mem::ManuallyDrop::new(self).here;
        // SAFETY: this descriptor owned the number, and is not dropped.
        Self::hidden(unsafe { OwnedFd::from_raw_fd(here) })
    }

    /// Its number in the calling thread's table. In the program's table it may be another file by now: see
    /// [`Descriptor::with`].
    #[must_use]
    pub fn number(&self) -> RawFd {
        match self.own {
            None => self.here,
            Some(own) if !own.is_ours() => CLOSED,
            Some(own) if own_table::inside() => own.number,
            Some(_) => self.here,
        }
    }

    /// Makes a call with the number: here if it is still this file's, else in the keeper. Free on the engine's threads,
    /// the cost of one fstat (0.2 us) on others.
    pub fn with<R: Send>(&self, call: impl FnOnce(RawFd) -> R + Send) -> R {
        if self.own.is_none() || own_table::inside() {
            return call(self.number());
        }
        if NR_RETIRED.load(Ordering::Relaxed) > 0 {
            close_retired();
        }
        if self.is_here() { call(self.number()) } else { self.elsewhere(call) }
    }

    /// Makes a call with the number where it is certainly this file's.
    pub(crate) fn elsewhere<R: Send>(&self, call: impl FnOnce(RawFd) -> R + Send) -> R {
        match self.own {
            None => call(self.here),
            Some(own) if own.is_ours() => match own_table::run(|| call(own.number)) {
                Ok(result) => result,
                Err(_) => unreachable!("the keeper is there"),
            },
            Some(_) => call(CLOSED),
        }
    }

    /// Identifies its file: device and inode.
    #[must_use]
    pub fn file_id(&self) -> (u64, u64) {
        self.file
    }

    /// Whether the number is still this file's in the program's table, or that of a file with the same identity.
    pub(crate) fn is_here(&self) -> bool {
        file_id(self.here).is_ok_and(|file| file == self.file)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let Some(own) = self.own else { return close(self.here) };
        if !own.is_ours() {
            return; // a forked child, which has closed its copies
        }
        if own_table::inside() {
            retire(self.here);
        } else {
            close_retired();
            if unlist(self.here) && self.is_here() {
                close(self.here);
            }
        }
        let _ = own_table::run(|| close(own.number));
    }
}

fn close(fd: RawFd) {
    // SAFETY: takes no pointers. The number's owner gives it up.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

fn file_id(fd: RawFd) -> io::Result<FileId> {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills in the structure before it is read.
    unsafe {
        check(libc::syscall(libc::SYS_fstat, fd, about.as_mut_ptr()))?;
        let about = about.assume_init();
        Ok((about.st_dev, about.st_ino))
    }
}

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
#[must_use]
pub fn is_hidden(number: RawFd) -> bool {
    number >= LOWEST.load(Ordering::Relaxed) && next_hidden(number) == Some(number)
}

/// The lowest hidden number from `from` on, including those that are yet to be closed.
#[must_use]
pub fn next_hidden(from: RawFd) -> Option<RawFd> {
    let number = |entry: &AtomicI32| match entry.load(Ordering::Relaxed) {
        number if number < NONE => retired(number),
        number => number,
    };
    listed().map(number).filter(|&number| number >= from.max(0)).min()
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

fn unlist(number: RawFd) -> bool {
    listed().any(|entry| entry.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

fn retire(number: RawFd) {
    let mark = |entry: &AtomicI32| {
        entry.compare_exchange(number, retired(number), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if listed().any(mark) {
        NR_RETIRED.fetch_add(1, Ordering::Release);
    }
}

/// Closes what the engine's threads have dropped.
fn close_retired() {
    if NR_RETIRED.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    for entry in listed() {
        let number = entry.load(Ordering::Acquire);
        if number < NONE && entry.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            close(retired(number));
        }
    }
}

/// Whether the limit of descriptors may be raised briefly.
static MAY_RAISE: AtomicBool = AtomicBool::new(false);

/// Sets whether the process's limit of descriptors may be raised briefly, so that hidden numbers are above what the
/// program can get. Only while nobody else reads or sets the limit, or starts a program.
pub fn may_raise_limit(may: bool) {
    MAY_RAISE.store(may, Ordering::Relaxed);
}

/// Moves a descriptor of the program's table to a number where programs do not look, and lists it.
pub(crate) fn hide_number(fd: OwnedFd) -> io::Result<RawFd> {
    close_copies_in_children();
    let high = above_the_limit(&fd).or_else(|_| {
        let limit = limits()?.rlim_cur.min(HIGHEST_BASE);
        duplicate(&fd, limit.saturating_sub(NR_NUMBERS_BELOW))
    })?;
    list(high.as_raw_fd())?;
    Ok(high.into_raw_fd())
}

fn duplicate(fd: &OwnedFd, from: u64) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let number = check(unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from.max(3)) })?;
    // SAFETY: the kernel just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

fn limits() -> io::Result<libc::rlimit64> {
    let mut limits = MaybeUninit::uninit();
    // SAFETY: the kernel fills in the structure before it is read.
    unsafe {
        check(libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0usize, limits.as_mut_ptr()))?;
        Ok(limits.assume_init())
    }
}

fn set_limits(limits: libc::rlimit64) -> io::Result<()> {
    // SAFETY: the kernel reads a local of this frame.
    check(unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limits, 0usize) }).map(drop)
}

/// Duplicates a descriptor to a number beyond the program's limit, which is raised meanwhile.
fn above_the_limit(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let limits = limits()?;
    let (soft, hard) = (limits.rlim_cur, limits.rlim_max);
    if soft > HIGHEST_BASE || !MAY_RAISE.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let wanted = soft + NR_NUMBERS;
    let raised = libc::rlimit64 { rlim_cur: wanted, rlim_max: hard.max(wanted) };
    let permitted = libc::rlimit64 { rlim_cur: hard.min(wanted), rlim_max: hard };
    set_limits(raised).or_else(|_| set_limits(permitted))?;
    let high = duplicate(fd, soft);
    set_limits(limits)?;
    high
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

/// Closes all hidden descriptors, in a forked child.
pub extern "C" fn close_in_child() {
    for entry in listed() {
        let number = entry.swap(NONE, Ordering::AcqRel);
        if number != NONE {
            close(if number < NONE { retired(number) } else { number });
        }
    }
    LOWEST.store(RawFd::MAX, Ordering::Release);
}
