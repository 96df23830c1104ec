//! Files for swap: unlinked, private, read and written past the page cache.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Why a file cannot serve for swap.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file system reads and writes through the page cache only (tmpfs does before Linux 6.6, and pays with RAM
    /// what it stores).
    #[error("is on {0}, which keeps files in RAM: name a file on a disk, or use ram:SIZE")]
    InRam(&'static str),
    /// O_DIRECT is refused.
    #[error("the file system has no O_DIRECT: name a file on another one")]
    NoDirectIo,
    /// The directory is not there.
    #[error("no such directory")]
    NoDirectory,
    /// This user may not write there.
    #[error("permission denied: name a file in a directory that you may write to")]
    NotPermitted,
    /// A file of this name exists.
    #[error("exists and is no block device: name a new file, which is made and removed by itself")]
    Exists,
    /// Anything else.
    #[error("{0}")]
    Other(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINVAL) => OpenError::NoDirectIo,
            Some(libc::ENOENT | libc::ENOTDIR) => OpenError::NoDirectory,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => OpenError::NotPermitted,
            _ => OpenError::Other(error),
        }
    }
}

/// A new file in `directory` that has no name: mode 0600, O_DIRECT, gone when its descriptor is.
///
/// # Errors
/// [`OpenError`].
pub fn unlinked_file(directory: &Path) -> Result<OwnedFd, OpenError> {
    if let Some(name) = in_ram(directory)? {
        return Err(OpenError::InRam(name));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE | libc::O_DIRECT).open(directory) {
        Ok(file) => return Ok(file.into()),
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
            return Err(error.into());
        }
        Err(_) => {}
    }
    // A file system without O_TMPFILE: a name for a moment.
    let name = directory.join(format!(".folioswap.{}.{:p}", std::process::id(), &raw const options));
    let file = options.create_new(true).custom_flags(libc::O_DIRECT).open(&name)?;
    std::fs::remove_file(&name).map_err(OpenError::Other)?;
    Ok(file.into())
}

/// An existing block device, and its size in bytes.
///
/// # Errors
/// [`OpenError::Exists`] for anything but a block device.
pub fn block_device(path: &Path) -> Result<(OwnedFd, u64), OpenError> {
    if !std::fs::metadata(path)?.file_type().is_block_device() {
        return Err(OpenError::Exists);
    }
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_EXCL).open(path)?;
    // SAFETY: takes no pointers. The end of a block device is its size.
    let size = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
    if size < 0 {
        return Err(OpenError::Other(io::Error::last_os_error()));
    }
    Ok((file.into(), size as u64))
}

/// The name of the file system a path is on, when it keeps its files in RAM.
fn in_ram(path: &Path) -> io::Result<Option<&'static str>> {
    const RAMFS_MAGIC: libc::c_long = 0x8584_58f6_u32 as libc::c_long;
    let info = statfs(path)?;
    Ok(match info.f_type as libc::c_long {
        libc::TMPFS_MAGIC => Some("tmpfs"),
        RAMFS_MAGIC => Some("ramfs"),
        _ => None,
    })
}

/// Bytes that this user can still write to the file system of a path.
///
/// # Errors
/// The kernel's.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let info = statfs(path)?;
    Ok(info.f_bavail as u64 * info.f_bsize as u64)
}

fn statfs(path: &Path) -> io::Result<libc::statfs> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: a C string, and a struct of plain numbers that the call fills in.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &raw mut info) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info)
    }
}

/// Makes sure that the first `len` bytes of a file have their space on the disk.
///
/// # Errors
/// The kernel's; ENOSPC when there is no room.
pub fn preallocate(fd: RawFd, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: takes no pointers.
        if unsafe { libc::fallocate(fd, 0, 0, len as libc::off_t) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// Fills `bytes` from `offset`.
///
/// # Errors
/// The device's; an end before the last byte is an error too.
pub fn pread_exact(fd: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    borrowed(fd).read_exact_at(bytes, offset)
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// The device's.
pub fn pwrite_exact(fd: RawFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    borrowed(fd).write_all_at(bytes, offset)
}

/// A file that does not close its descriptor.
fn borrowed(fd: RawFd) -> std::mem::ManuallyDrop<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: never dropped, so the descriptor stays its owner's; a call on a closed one is an error, no more.
    std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// Permission bits and number of names of an open file.
///
/// # Errors
/// The kernel's.
pub fn mode_and_links(fd: RawFd) -> io::Result<(u32, u64)> {
    let metadata = borrowed(fd).metadata()?;
    Ok((metadata.mode() & 0o777, metadata.nlink()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_private_nameless_and_keeps_what_is_written() {
        let file = unlinked_file(Path::new("/var/tmp")).unwrap();
        let fd = file.as_raw_fd();
        assert_eq!(mode_and_links(fd).unwrap(), (0o600, 0));
        preallocate(fd, 1 << 20).unwrap();
        #[repr(align(4096))]
        struct Page([u8; 8192]);
        let mut page = Page([5; 8192]);
        pwrite_exact(fd, &page.0, 4096).unwrap();
        page.0.fill(0);
        pread_exact(fd, &mut page.0, 4096).unwrap();
        assert!(page.0.iter().all(|&byte| byte == 5));
        assert!(pread_exact(fd, &mut page.0, 1 << 21).is_err(), "past the end");
    }

    #[test]
    fn places_that_cannot_serve_are_named() {
        assert!(matches!(unlinked_file(Path::new("/dev/shm")), Err(OpenError::InRam("tmpfs"))));
        assert!(matches!(unlinked_file(Path::new("/no/such/place")), Err(OpenError::NoDirectory)));
        assert!(matches!(block_device(Path::new("/etc/passwd")), Err(OpenError::Exists)));
        assert!(free_bytes(Path::new("/var/tmp")).unwrap() > 0);
    }
}
