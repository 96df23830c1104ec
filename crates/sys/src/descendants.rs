//! Tells whether the descendants of a fork are gone: the child, and all that were forked from it since.
//!
//! Each fork has a *tie*: a mapping of a file that has a byte of it locked. A child inherits the mapping, and passes it
//! on to its own children; exec and exit end it. The lock belongs to the open file, so it ends with the last mapping,
//! in whatever way a process ends. No process needs a descriptor for that, which its program could close.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::descriptor::Descriptor;
use crate::memory::{PAGE_SIZE, place_apart};
use crate::{check, futex, kept, taken};

/// Bytes of a tie's mapping.
const TIE_BYTES: usize = PAGE_SIZE;

/// How often those are looked at that are waited for.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The ties of a process's forks.
#[derive(Debug)]
pub struct Descendants {
    file: Descriptor,
}

impl Descendants {
    /// Without any fork.
    ///
    /// # Errors
    /// EMFILE, ENOMEM and the like.
    pub fn new() -> io::Result<Self> {
        Ok(Descendants { file: Descriptor::hidden(memory_file()?)? })
    }

    /// In a forked child, before it has another thread: forgets the ties of its parent.
    ///
    /// # Errors
    /// As [`Descendants::new`].
    pub fn renew(&self) -> io::Result<()> {
        self.file.renew(memory_file()?)
    }

    /// Makes the tie of a fork with this number, which no other fork of this process has. It must exist when the
    /// process forks; afterwards the parent drops it, and the child keeps it for good ([`std::mem::forget`]).
    ///
    /// # Errors
    /// There is no `/proc`, or EMFILE, ENOMEM and the like.
    pub fn tie(&self, number: u64) -> io::Result<Tie> {
        // The program may use all numbers of its own table.
        self.file.elsewhere(|fd| {
            let path = CString::new(format!("thread-self/fd/{fd}")).expect("no NUL");
            let opened = kept::open_in_proc(&path, libc::O_RDWR)?;
            lock_call(opened.as_raw_fd(), libc::F_OFD_SETLK, &mut byte(number, libc::F_WRLCK))?;
            // SAFETY: a new mapping, of which nothing is ever touched.
            let addr = check(unsafe {
                libc::syscall(
                    libc::SYS_mmap,
                    place_apart(TIE_BYTES),
                    TIE_BYTES,
                    libc::PROT_NONE,
                    libc::MAP_SHARED,
                    opened.as_raw_fd(),
                    0usize,
                )
            })?;
            Ok(Tie { addr })
        })
    }

    /// Waits until [`Descendants::have_ended`] is true, or cannot be known.
    pub fn wait(&self, number: u64) {
        while self.have_ended(number).is_ok_and(|have_ended| !have_ended) {
            futex::sleep(POLL_INTERVAL);
        }
    }

    /// Whether all descendants of the fork with this number have ended, or executed another program.
    pub fn have_ended(&self, number: u64) -> io::Result<bool> {
        let mut lock = byte(number, libc::F_WRLCK);
        self.file
            .with(|fd| lock_call(fd, libc::F_OFD_GETLK, &mut lock).map(|()| lock.l_type))
            .map(|kind| i32::from(kind) == libc::F_UNLCK)
    }
}

/// What the descendants of a fork have in common.
#[derive(Debug)]
pub struct Tie {
    addr: usize,
}

impl Tie {
    /// Sets whether children that are forked from here on have it.
    pub fn set_inherited(&self, is_inherited: bool) {
        let advice = if is_inherited { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // SAFETY: this object's own mapping, which nobody touches.
        unsafe { libc::syscall(libc::SYS_madvise, self.addr, TIE_BYTES, advice) };
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping, which nobody touches.
        unsafe { libc::syscall(libc::SYS_munmap, self.addr, TIE_BYTES) };
    }
}

fn memory_file() -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated.
    taken(unsafe { libc::syscall(libc::SYS_memfd_create, c"folioswap-descendants".as_ptr(), libc::MFD_CLOEXEC) })
}

/// A lock of the byte of a fork.
fn byte(number: u64, kind: i32) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: number as i64, l_len: 1, l_pid: 0 }
}

fn lock_call(fd: RawFd, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the kernel reads and fills in a structure of the caller's frame.
    check(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, &raw mut *lock) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::exit_now;

    /// Forks, and lets the child do `work` and end.
    fn fork(work: impl FnOnce()) -> i32 {
        // SAFETY: the child calls nothing that needs a lock of another thread, and ends at once.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            work();
            exit_now(0);
        }
        pid
    }

    fn reap(pid: i32) {
        let mut status = 0;
        // SAFETY: the status is a local of this frame. The child is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    }

    #[test]
    fn the_last_descendant_ends_it_whatever_is_closed() {
        let descendants = Descendants::new().unwrap();
        let mut pipe = [0; 2];
        // SAFETY: the kernel fills in two numbers of this frame.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let [reading, writing] = pipe;
        let ties = [1, 2].map(|number| descendants.tie(number).unwrap());
        let child = fork(|| {
            // SAFETY: takes no pointers. The child has only the pipe's descriptors after that, for which its own child
            // waits.
            unsafe { libc::syscall(libc::SYS_close_range, writing + 1, u32::MAX, 0) };
            fork(|| {
                let mut byte = 0u8;
                // SAFETY: one byte of this frame.
                unsafe {
                    libc::close(writing);
                    libc::read(reading, (&raw mut byte).cast(), 1);
                }
            });
        });
        drop(ties);
        reap(child);
        assert!(!descendants.have_ended(1).unwrap() && !descendants.have_ended(2).unwrap(), "a grandchild lives");
        // SAFETY: takes no pointers. Nobody else uses the pipe.
        unsafe { libc::close(writing) };
        let begun = std::time::Instant::now();
        while !(descendants.have_ended(1).unwrap() && descendants.have_ended(2).unwrap()) {
            assert!(begun.elapsed().as_secs() < 60, "nobody holds it");
            std::thread::yield_now();
        }
        // SAFETY: as above.
        unsafe { libc::close(reading) };
    }

    #[test]
    fn a_fork_that_failed_is_over_at_once() {
        let descendants = Descendants::new().unwrap();
        let tie = descendants.tie(7).unwrap();
        assert!(!descendants.have_ended(7).unwrap());
        drop(tie);
        assert!(descendants.have_ended(7).unwrap());
    }
}
