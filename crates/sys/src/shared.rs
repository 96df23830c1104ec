//! Memory that two processes share: made by one, opened by the other by its path.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Types for which all-zero bytes are a value, and which many processes may use at once.
///
/// # Safety
/// All-zero bytes are a valid value, the type has no pointers and no destructor, and all its fields are atomic.
pub unsafe trait Zeroable: Sync + 'static {}

/// A value in shared memory. It stays mapped for the life of the process: others hold references to it.
#[derive(Debug)]
pub struct Shared<T: Zeroable> {
    value: &'static T,
    fd: OwnedFd,
}

impl<T: Zeroable> Shared<T> {
    /// A new one, all zero. Not inherited by children, who open it by [`Shared::path`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(name: &std::ffi::CStr) -> io::Result<Self> {
        // SAFETY: a C string; the descriptor is new and nobody else's.
        let fd = unsafe {
            match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
                fd if fd < 0 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        let file = File::from(fd);
        file.set_len(size_of::<T>() as u64)?;
        let value = map(&file)?;
        Ok(Shared { value, fd: file.into() })
    }

    /// Where another process of the same user can open it while this one lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> &'static T {
        self.value
    }
}

/// Opens what another process has made.
///
/// # Errors
/// The kernel's; `InvalidData` when it is not as large as a `T`.
pub fn open<T: Zeroable>(path: &Path) -> io::Result<&'static T> {
    let file = File::options().read(true).write(true).open(path)?;
    if file.metadata()?.len() != size_of::<T>() as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    map(&file)
}

fn map<T: Zeroable>(file: &File) -> io::Result<&'static T> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a mapping of the kernel's choice of address, page-aligned, never unmapped, as long as a T (the callers
    // saw to it), of bytes that are zero or were written by users of a T; `Zeroable` answers for the rest.
    unsafe {
        let addr = libc::syscall(libc::SYS_mmap, 0, size_of::<T>(), protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if addr < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(&*(addr as *const T))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Count(AtomicU64);
    // SAFETY: one atomic number.
    unsafe impl Zeroable for Count {}

    #[test]
    fn what_one_opener_writes_the_other_reads() {
        let made = Shared::<Count>::new(c"folioswap-test").unwrap();
        let opened = open::<Count>(Path::new(&made.path())).unwrap();
        opened.0.store(42, Ordering::SeqCst);
        assert_eq!(made.get().0.load(Ordering::SeqCst), 42);
    }
}
