//! The engine's descriptors, hidden in a process whose program does not know about them.
//!
//! A hidden [`Descriptor`] is open in two tables: that of the engine's threads ([`own_table`]) and the program's, for
//! calls on the program's threads. Its number in the program's table is above RLIMIT_NOFILE if possible
//! ([`raise_limit`]). A preloaded library asks [`is_hidden`] which numbers to protect. If a number is closed or
//! reused anyway (an inline system call, a vfork child), [`Descriptor::with`] notices before it uses the number, and
//! the keeper thread makes the call: slower, but still correct.
//!
//! A child created by the C library's fork closes its copies before it runs any code of its own, or settles which it
//! keeps ([`settle_in_child`]).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

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
    here: AtomicI32,
    /// If it is hidden: its number in the table of the engine's threads, and whose table that is.
    own: Option<Own>,
    /// Device and inode.
    file: [AtomicU64; 2],
}

/// A number in a keeper's table. Changes only in a forked child that has no other thread yet.
#[derive(Debug)]
struct Own {
    number: AtomicI32,
    keeper: AtomicUsize,
}

impl Own {
    /// Whether the table belongs to this process's keeper. In a child with a copy of the memory it does not, and the
    /// child must not use it.
    fn is_ours(&self) -> bool {
        own_table::current() == self.keeper.load(Ordering::Relaxed)
    }

    fn number(&self) -> RawFd {
        self.number.load(Ordering::Relaxed)
    }
}

/// A number that no descriptor has: calls with it fail with EBADF.
const CLOSED: RawFd = -1;

/// Identifies a file: device and inode. All userfaultfds, eventfds and the like have the same.
type FileId = (u64, u64);

fn noted((device, inode): FileId) -> [AtomicU64; 2] {
    [device.into(), inode.into()]
}

impl From<OwnedFd> for Descriptor {
    /// Not hidden: for descriptors that one call of the engine uses and closes.
    fn from(fd: OwnedFd) -> Self {
        let file = file_id(fd.as_raw_fd()).unwrap_or_default();
        Descriptor { here: fd.into_raw_fd().into(), own: None, file: noted(file) }
    }
}

impl Descriptor {
    /// Hides a descriptor from the program.
    ///
    /// # Errors
    /// EMFILE: no number is left. The kernel's error if the engine's own table could not be created (needs Linux 5.9).
    pub fn hidden(fd: OwnedFd) -> io::Result<Self> {
        let file = file_id(fd.as_raw_fd())?;
        let here = hide_number(fd)?;
        // SAFETY: just hidden, and open.
        let number = own_table::import(unsafe { BorrowedFd::borrow_raw(here) }).inspect_err(|_| close_hidden(here))?;
        let own = Own { number: number.into(), keeper: own_table::current().into() };
        Ok(Descriptor { here: here.into(), own: Some(own), file: noted(file) })
    }

    /// In a forked child, before it has another thread: gives this hidden descriptor a file of the child's own. The
    /// copy of the parent's was closed.
    ///
    /// # Errors
    /// As [`Descriptor::hidden`].
    pub fn renew(&self, fd: OwnedFd) -> io::Result<()> {
        let fresh = std::mem::ManuallyDrop::new(Descriptor::hidden(fd)?);
        self.become_that(&fresh);
        Ok(())
    }

    /// Before a fork: makes sure that a child gets this file, though the program may have closed its number.
    ///
    /// # Errors
    /// EMFILE, and those of [`own_table::export`].
    pub fn be_inherited(&self) -> io::Result<()> {
        match &self.own {
            Some(own) if own.is_ours() && !self.is_here() => {
                unlist(self.here()); // it is the program's
                self.here.store(hide_number(own_table::export(own.number())?)?, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// In a forked child, before it has another thread: lets its engine use the parent's file, which it was forked
    /// with.
    ///
    /// # Errors
    /// As [`Descriptor::hidden`]. EBADF: the program has closed it.
    pub fn keep_in_child(&self) -> io::Result<()> {
        let here = self.here();
        if self.own.as_ref().is_none_or(Own::is_ours) {
            return Ok(()); // it was kept for another arena
        }
        if !self.is_here() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: this descriptor owns the number, which stays open.
        let number = own_table::import(unsafe { BorrowedFd::borrow_raw(here) })?;
        let own = Own { number: number.into(), keeper: own_table::current().into() };
        let file = noted(self.file_id());
        self.become_that(&std::mem::ManuallyDrop::new(Descriptor { here: here.into(), own: Some(own), file }));
        Ok(())
    }

    /// For [`settle_in_child`].
    #[must_use]
    pub fn kept_number(&self) -> KeptNumber {
        KeptNumber(self.here())
    }

    fn become_that(&self, that: &Descriptor) {
        self.here.store(that.here(), Ordering::Relaxed);
        let (device, inode) = that.file_id();
        self.file[0].store(device, Ordering::Relaxed);
        self.file[1].store(inode, Ordering::Relaxed);
        if let (Some(own), Some(fresh)) = (&self.own, &that.own) {
            own.number.store(fresh.number(), Ordering::Relaxed);
            own.keeper.store(fresh.keeper.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn here(&self) -> RawFd {
        self.here.load(Ordering::Relaxed)
    }

    /// The descriptor alone, if it is not hidden.
    ///
    /// # Panics
    /// If it is.
    pub(crate) fn into_fd(self) -> OwnedFd {
        let that = std::mem::ManuallyDrop::new(self);
        assert!(that.own.is_none(), "a hidden descriptor has two numbers");
        // SAFETY: this descriptor owned the number, and is not dropped.
        unsafe { OwnedFd::from_raw_fd(that.here()) }
    }

    /// The same descriptor, hidden from here on.
    ///
    /// # Errors
    /// As [`Descriptor::hidden`].
    pub fn hide(self) -> io::Result<Self> {
        if self.own.is_some() {
            return Ok(self);
        }
        Self::hidden(self.into_fd())
    }

    /// Its number in the calling thread's table. In the program's table it may be another file by now: see
    /// [`Descriptor::with`].
    #[must_use]
    pub fn number(&self) -> RawFd {
        match &self.own {
            None => self.here(),
            Some(own) if !own.is_ours() => CLOSED,
            Some(own) if own_table::inside() => own.number(),
            Some(_) => self.here(),
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
        match &self.own {
            None => call(self.here()),
            Some(own) if own.is_ours() && !own_table::has_begun() && self.is_here() => call(self.here()),
            Some(own) if own.is_ours() => {
                let mut call = Some(call);
                let made = own_table::run(|| call.take().map(|call| call(own.number())));
                // In a forked child the keeper may not have begun, and may be unable to.
                let made = made.ok().flatten().or_else(|| call.take().map(|call| call(CLOSED)));
                made.expect("one of them has made the call")
            }
            Some(_) => call(CLOSED),
        }
    }

    /// Identifies its file: device and inode.
    #[must_use]
    pub fn file_id(&self) -> (u64, u64) {
        (self.file[0].load(Ordering::Relaxed), self.file[1].load(Ordering::Relaxed))
    }

    /// Whether the number is still this file's in the program's table, or that of a file with the same identity.
    pub(crate) fn is_here(&self) -> bool {
        file_id(self.here()).is_ok_and(|file| file == self.file_id())
    }
}

impl Descriptor {
    /// Closes it in both tables. Nobody uses it any more.
    pub(crate) fn close(&self) {
        let here = self.here.swap(CLOSED, Ordering::Relaxed);
        if here == CLOSED {
            return;
        }
        let Some(own) = &self.own else { return close(here) };
        if !own.is_ours() {
            // A forked child, whose copy is listed if it has kept it.
            if unlist(here) && file_id(here).is_ok_and(|file| file == self.file_id()) {
                close(here);
            }
            return;
        }
        if own_table::inside() {
            retire(here);
        } else {
            close_retired();
            if unlist(here) && file_id(here).is_ok_and(|file| file == self.file_id()) {
                close(here);
            }
        }
        if own_table::has_begun() {
            let _ = own_table::run(|| close(own.number()));
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}

/// Closes a number from [`hide_number`].
pub(crate) fn close_hidden(number: RawFd) {
    if unlist(number) {
        close(number);
    }
}

/// The hidden numbers.
pub(crate) fn hidden_numbers() -> impl Iterator<Item = RawFd> {
    listed().map(|entry| entry.load(Ordering::Acquire)).filter(|&number| number > NONE)
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
    let wanted = soft.saturating_add(NR_NUMBERS);
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
        close_but(&[]);
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
pub struct KeptNumber(RawFd);

/// In a forked child, once: closes the hidden descriptors except some, those of all arenas that go on. They are to be
/// used again by [`Descriptor::keep_in_child`].
pub fn settle_in_child(kept: &[KeptNumber]) {
    close_but(kept);
}

fn close_but(kept: &[KeptNumber]) {
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
