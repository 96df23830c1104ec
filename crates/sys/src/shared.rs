//! A value in memory that processes share, without a name in any file system.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::memory::place_apart;
use crate::{check, taken};

/// Types that may live in [`SharedMemory`].
///
/// # Safety
/// All-zero bytes are a valid value, and so is anything that another process of the same program writes into it: the
/// type is `repr(C)` (or transparent), consists of atomics only, and holds no pointer.
pub unsafe trait Zeroable: Sync {}

/// A `T` in shared memory. The memory is freed when no process has it open or mapped any more.
#[derive(Debug)]
pub struct SharedMemory<T: Zeroable> {
    fd: OwnedFd,
    addr: usize,
    value: PhantomData<T>,
}

impl<T: Zeroable> SharedMemory<T> {
    const LEN: usize = {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096);
        size_of::<T>().next_multiple_of(4096)
    };

    /// Creates zeroed memory. `name` shows in `/proc/<pid>/fd`.
    ///
    /// # Errors
    /// EMFILE, ENOMEM.
    pub fn create(name: &str) -> io::Result<Self> {
        let name = std::ffi::CString::new(name)?;
        // SAFETY: the name is NUL-terminated.
        let fd = taken(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), Self::LEN as libc::off_t) }.into())?;
        Self::map(fd)
    }

    /// Opens memory that another process created, by its [`SharedMemory::path`].
    ///
    /// # Errors
    /// ENOENT: that process is gone. EACCES: it belongs to another user. InvalidData: the size is not this type's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(File::options().read(true).write(true).open(path)?)
    }

    /// The memory that another process created, by a descriptor of it.
    ///
    /// # Errors
    /// InvalidData: the size is not this type's.
    pub fn of(file: File) -> io::Result<Self> {
        if file.metadata()?.len() != Self::LEN as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory of another size"));
        }
        Self::map(file.into())
    }

    /// The path by which another process of the same user can open it while this one runs: `/proc/<pid>/fd/<n>`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }

    /// The value, for the rest of the process.
    pub fn leak(self) -> &'static T {
        let value: *const T = &*self;
        let mapped = std::mem::ManuallyDrop::new(self);
        // SAFETY: moves the descriptor out of a value that is never dropped. The mapping does not need it, so it is
        // closed.
        drop(unsafe { std::ptr::read(&mapped.fd) });
        // SAFETY: as in `deref`. The mapping stays, since its owner is never dropped.
        unsafe { &*value }
    }

    fn map(fd: OwnedFd) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping apart. Existing mappings are not touched.
        let addr = check(unsafe {
            libc::syscall(
                libc::SYS_mmap,
                place_apart(Self::LEN),
                Self::LEN,
                access,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0usize,
            )
        })?;
        Ok(SharedMemory { fd, addr, value: PhantomData })
    }
}

impl<T: Zeroable> Deref for SharedMemory<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is at least as long as T, page aligned, and lives as long as `self`. By the contract of
        // `Zeroable`, its bytes are a valid T at all times, and shared access to it is sound.
        unsafe { &*(self.addr as *const T) }
    }
}

impl<T: Zeroable> AsFd for SharedMemory<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: Zeroable> Drop for SharedMemory<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and borrows of it have ended.
        unsafe { libc::syscall(libc::SYS_munmap, self.addr, Self::LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Numbers([AtomicU64; 3]);
    // SAFETY: repr(C), atomics only.
    unsafe impl Zeroable for Numbers {}

    #[repr(C)]
    #[derive(Debug)]
    struct Many([AtomicU64; 1000]);
    // SAFETY: repr(C), atomics only.
    unsafe impl Zeroable for Many {}

    #[test]
    fn a_child_process_writes_and_the_parent_reads() {
        let memory = SharedMemory::<Numbers>::create("folioswap-test").unwrap();
        assert!(memory.0.iter().all(|number| number.load(Ordering::Relaxed) == 0));
        let again = SharedMemory::<Numbers>::open(&memory.path()).unwrap();
        // SAFETY: the child stores one number, and exits without running any of the parent's code.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            memory.0[2].store(42, Ordering::SeqCst);
            crate::signals::exit_now(0);
        }
        let mut status = 0;
        // SAFETY: the status is a local of this frame. The child is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(memory.0[2].load(Ordering::SeqCst), 42);
        drop(memory);
        assert_eq!(again.leak().0[2].load(Ordering::SeqCst), 42);
    }

    #[test]
    fn another_size_is_refused() {
        let memory = SharedMemory::<Numbers>::create("folioswap-test").unwrap();
        let error = SharedMemory::<Many>::open(&memory.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
