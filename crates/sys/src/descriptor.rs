//! The engine's descriptors, hidden in a process whose program does not know about them.
//!
//! A hidden [`Descriptor`] is open in two tables: that of the engine's threads ([`own_table`]) and the program's, for
//! calls on the program's threads, under one of the [`hidden_numbers`](crate::hidden_numbers). If the program closes or
//! reuses that number anyway (an inline system call, a vfork child), [`Descriptor::with`] notices before it uses the
//! number, and the keeper thread makes the call: slower, but still correct.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::hidden_numbers::{KeptNumber, close, close_hidden, close_retired, hide_number, retire, unlist};
use crate::{fstat, own_table};

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

    /// For [`settle_in_child`](crate::hidden_numbers::settle_in_child).
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
        close_retired();
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

fn file_id(fd: RawFd) -> io::Result<FileId> {
    fstat(fd).map(|about| (about.st_dev, about.st_ino))
}
