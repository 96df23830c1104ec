//! Files and block devices past the page cache, and space in them.

use std::fs::{File, TryLockError};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{check, errno};

/// Why a swap device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// EINVAL of O_DIRECT.
    #[error("its file system cannot be read and written directly (O_DIRECT)")]
    NoDirectIo,
    /// EACCES, EPERM, EROFS.
    #[error("no permission to write there")]
    NotPermitted,
    /// ENOENT, ENOTDIR.
    #[error("no such directory or device")]
    NotFound,
    /// It exists and is an ordinary file, a directory or something else that must not be overwritten.
    #[error("exists and is no block device: name a file that does not exist yet")]
    NotBlockDevice,
    /// EBUSY: claimed by the kernel.
    #[error("in use: mounted, swap of the kernel, a part of a RAID or volume, or another program's")]
    InUse,
    /// ENOSPC, EDQUOT.
    #[error("no space left for a file")]
    NoSpace,
    /// Anything else.
    #[error("{0}")]
    System(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINVAL) => OpenError::NoDirectIo,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => OpenError::NotPermitted,
            Some(libc::ENOENT | libc::ENOTDIR) => OpenError::NotFound,
            Some(libc::EBUSY) => OpenError::InUse,
            Some(libc::ENOSPC | libc::EDQUOT) => OpenError::NoSpace,
            _ => OpenError::System(error),
        }
    }
}

/// What a directory lies on, as far as it matters to swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// RAM: what is swapped out there saves none.
    Tmpfs,
    /// Another one.
    Other,
}

/// A new file in `directory` that has no name, mode 0600, past the page cache: gone when the descriptor is closed,
/// whatever ends the process.
///
/// # Errors
/// [`OpenError`] by name.
pub fn unlinked_file(directory: &Path) -> Result<OwnedFd, OpenError> {
    let made = File::options()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT | libc::O_CLOEXEC)
        .open(directory);
    match made {
        Ok(file) => Ok(file.into()),
        // A file system without O_TMPFILE says EOPNOTSUPP; a kernel's that takes it for a directory, EISDIR.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            named_and_unlinked(directory)
        }
        Err(error) => Err(error.into()),
    }
}

/// The same by a name that lives for a moment.
fn named_and_unlinked(directory: &Path) -> Result<OwnedFd, OpenError> {
    let mut path = directory.join("folioswap.XXXXXX").as_os_str().as_bytes().to_vec();
    path.push(0);
    // SAFETY: a path that ends in 0, in a buffer of our own; the call replaces the six X in place.
    let fd = check(unsafe { libc::mkostemp(path.as_mut_ptr().cast(), libc::O_DIRECT | libc::O_CLOEXEC) }.into());
    // mkostemp creates the file before it finds that O_DIRECT is refused (EINVAL): the name goes in any case.
    let refused = fd.as_ref().is_err_and(|error| error.raw_os_error() != Some(libc::EINVAL));
    if !refused {
        // SAFETY: the path that the call has filled in, ending in 0.
        unsafe { libc::unlink(path.as_ptr().cast()) };
    }
    // SAFETY: the C library has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd? as RawFd) })
}

/// Opens a block device for this process alone, past the page cache; also says its size in bytes. Anything that is no
/// block device is left as it is.
///
/// # Errors
/// [`OpenError`] by name.
pub fn block_device(path: &Path) -> Result<(OwnedFd, u64), OpenError> {
    if !std::fs::metadata(path)?.file_type().is_block_device() {
        return Err(OpenError::NotBlockDevice);
    }
    // O_EXCL of a block device: not while it is mounted, swap, a part of another device, or opened so by somebody else.
    let flags = libc::O_DIRECT | libc::O_CLOEXEC | libc::O_EXCL;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(OpenError::NotBlockDevice); // replaced meanwhile
    }
    let size = size_of_block_device(&file)?;
    Ok((file.into(), size))
}

fn size_of_block_device(file: &File) -> io::Result<u64> {
    const BLKGETSIZE64: u64 = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: the request writes eight bytes, of this frame's own.
    check(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), BLKGETSIZE64, &raw mut size) })?;
    Ok(size)
}

/// Calls fcntl with a lock of all of a file, for the calling process.
fn with_lock(fd: RawFd, request: libc::c_int) -> io::Result<libc::flock> {
    // SAFETY: a plain structure of numbers, of which zeros are a value: from the begin to the end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    // SAFETY: the kernel reads the structure and may fill it in, of this frame's own.
    check(unsafe { libc::syscall(libc::SYS_fcntl, fd, request, &raw mut lock) })?;
    Ok(lock)
}

/// Locks all of a file for this process, as [`locked_of_other`] asks for: until any descriptor of the file is closed.
///
/// # Errors
/// EAGAIN, EACCES: another process has. The kernel's.
pub fn lock_for_process(fd: RawFd) -> io::Result<()> {
    with_lock(fd, libc::F_SETLK).map(drop)
}

/// Whether another process has locked a part of a file so.
fn is_locked_by_other(file: &File) -> io::Result<bool> {
    Ok(with_lock(file.as_raw_fd(), libc::F_GETLK)?.l_type != libc::F_UNLCK as libc::c_short)
}

/// Opens what another process has open, by its `/proc/<pid>/fd/<n>`, for this process alone of all that open it so. Also says the
/// size of a block device. None: another one has it.
///
/// Two locks: that of `fcntl` ([`lock_for_process`], which the caller takes on the descriptor that it keeps) goes with the process, so it
/// says at once whether a living one has it. That of `flock` goes with the
/// last use of its descriptor, I/O in flight included, which may be a moment after the process has ended or executed another program:
/// that moment is waited for, `patience` at most.
///
/// # Errors
/// [`OpenError::NotFound`] if it is something else by now; the kernel's.
pub fn locked_of_other(
    path: &Path,
    identity: (u64, u64),
    patience: Duration,
) -> Result<Option<(OwnedFd, Option<u64>)>, OpenError> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path)?;
    let about = file.metadata()?;
    if (about.dev(), about.ino()) != identity {
        return Err(OpenError::NotFound);
    }
    if is_locked_by_other(&file)? {
        return Ok(None);
    }
    let begun = Instant::now();
    while let Err(refused) = file.try_lock() {
        match refused {
            TryLockError::WouldBlock if begun.elapsed() > patience => return Ok(None),
            TryLockError::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            TryLockError::Error(error) => return Err(error.into()),
        }
    }
    let size = if about.file_type().is_block_device() { Some(size_of_block_device(&file)?) } else { None };
    Ok(Some((file.into(), size)))
}

/// Makes sure that a part of a file has space on the disk, and that the file reaches as far; what is in it stays.
///
/// # Errors
/// ENOSPC ([`io::ErrorKind::StorageFull`]) and its like. A file system that cannot promise space is no error: the file
/// is made longer where that is needed, and a write may meet a full disk.
pub fn preallocate(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    let too_large = || io::Error::from_raw_os_error(libc::EFBIG);
    let end = offset.checked_add(len).and_then(|end| libc::off_t::try_from(end).ok()).ok_or_else(too_large)?;
    loop {
        // SAFETY: takes numbers.
        match check(unsafe { libc::syscall(libc::SYS_fallocate, fd, 0, offset, len) }) {
            Ok(_) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                // SAFETY: takes numbers; where the descriptor stands is of no meaning to anybody.
                let size = check(unsafe { libc::lseek(fd, 0, libc::SEEK_END) })?;
                if size as u64 >= end as u64 {
                    return Ok(());
                }
                // SAFETY: takes numbers.
                return check(unsafe { libc::ftruncate(fd, end) }.into()).map(drop);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives a part of a file back to the file system, or a part of a block device to the device; it reads as zeros. One
/// that cannot do that keeps it: no error.
///
/// # Errors
/// What the kernel says.
pub fn punch_hole(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes numbers.
    match check(unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, len) }) {
        Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(error),
        _ => Ok(()),
    }
}

/// Reads all of `bytes` at `offset`. The buffer may be memory that the engine owns; it must be present. With O_DIRECT
/// address, length and offset are multiples of the device's block.
///
/// # Errors
/// What the device says; [`io::ErrorKind::UnexpectedEof`] when it ends before.
pub fn pread_exact(fd: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    exactly(bytes.len(), io::ErrorKind::UnexpectedEof, |done| {
        let rest = &mut bytes[done..];
        // SAFETY: the kernel writes at most as many bytes as `rest` has.
        unsafe { libc::syscall(libc::SYS_pread64, fd, rest.as_mut_ptr(), rest.len(), offset + done as u64) }
    })
}

/// Writes all of `bytes` at `offset`, as [`pread_exact`] reads.
///
/// # Errors
/// What the device says; [`io::ErrorKind::WriteZero`] when it takes nothing more.
pub fn pwrite_exact(fd: RawFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    exactly(bytes.len(), io::ErrorKind::WriteZero, |done| {
        let rest = &bytes[done..];
        // SAFETY: the kernel reads at most as many bytes as `rest` has.
        unsafe { libc::syscall(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), offset + done as u64) }
    })
}

/// The most pieces that one system call takes (`IOV_MAX`).
const MOST_PIECES: usize = 1024;

/// Fills several pieces of memory, one after the other, from `offset` on, as [`pread_exact`] fills one. The pieces are
/// used up.
///
/// # Errors
/// As [`pread_exact`].
pub fn preadv_exact(fd: RawFd, mut pieces: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
    while !pieces.is_empty() {
        let count = pieces.len().min(MOST_PIECES);
        // SAFETY: the kernel writes within the pieces, whose layout is that of iovec.
        let done = unsafe { libc::syscall(libc::SYS_preadv, fd, pieces.as_mut_ptr(), count, offset, 0) };
        match done {
            -1 if errno() == libc::EINTR => {}
            -1 => return Err(io::Error::last_os_error()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => {
                IoSliceMut::advance_slices(&mut pieces, more as usize);
                offset += more as u64;
            }
        }
    }
    Ok(())
}

/// Repeats `step` from where it came to until `len` bytes are done.
fn exactly(len: usize, at_end: io::ErrorKind, mut step: impl FnMut(usize) -> libc::c_long) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match step(done) {
            -1 if errno() == libc::EINTR => {}
            -1 => return Err(io::Error::last_os_error()),
            0 => return Err(at_end.into()),
            more => done += more as usize,
        }
    }
    Ok(())
}

/// What `path` lies on.
///
/// # Errors
/// What the kernel says.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    let magic = statfs(path)?.f_type;
    Ok(if magic == libc::TMPFS_MAGIC { FileSystem::Tmpfs } else { FileSystem::Other })
}

/// Bytes that this user may still use on the file system that `path` lies on.
///
/// # Errors
/// What the kernel says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = statfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_bsize as u64))
}

fn statfs(path: &Path) -> io::Result<libc::statfs> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::uninit();
    // SAFETY: the path ends in 0, and the kernel fills a structure of this frame's own.
    check(unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) }.into())?;
    // SAFETY: filled, since the call succeeded.
    Ok(unsafe { found.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use std::os::unix::fs::MetadataExt;

    const LEN: usize = 1 << 20;

    fn swap_file() -> Option<File> {
        match unlinked_file(Path::new("/var/tmp")) {
            Ok(fd) => Some(fd.into()),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn blocks_survive_the_file_and_a_hole_reads_as_zeros() {
        let Some(file) = swap_file() else { return };
        let fd = file.as_raw_fd();
        preallocate(fd, 0, LEN as u64).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.mode() & 0o777, meta.size()), (0, 0o600, LEN as u64));
        let area = memory::anonymous_huge(2 * LEN).unwrap();
        // SAFETY: readable and writable memory of the test's own, and no other reference to it.
        let (out, back) = unsafe { std::slice::from_raw_parts_mut(area.addr() as *mut u8, 2 * LEN) }.split_at_mut(LEN);
        out.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        pwrite_exact(fd, out, 0).unwrap();
        pread_exact(fd, back, 0).unwrap();
        assert!(out == back);
        punch_hole(fd, 0, LEN as u64 / 2).unwrap();
        pread_exact(fd, back, 0).unwrap();
        assert!(back[LEN / 2..] == out[LEN / 2..]);
        if file.metadata().unwrap().blocks() < meta.blocks() {
            assert!(back[..LEN / 2].iter().all(|&byte| byte == 0));
        }
        preallocate(fd, 0, LEN as u64).unwrap();
        assert_eq!(file.metadata().unwrap().size(), LEN as u64, "what is reserved again is no longer than before");
        assert_eq!(pread_exact(fd, back, 4096).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn refusals_have_names() {
        assert!(matches!(unlinked_file(Path::new("/nowhere")), Err(OpenError::NotFound)));
        assert!(matches!(block_device(Path::new("/etc/passwd")), Err(OpenError::NotBlockDevice)));
        assert!(matches!(block_device(Path::new("/nowhere")), Err(OpenError::NotFound)));
        let error = preallocate(swap_file().map_or(-1, |file| file.as_raw_fd()), 0, 1 << 62).unwrap_err();
        assert!(error.raw_os_error().is_some());
    }

    #[test]
    fn the_fallback_leaves_no_name() {
        let directory = std::env::temp_dir().join(format!("folioswap-sys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        match named_and_unlinked(&directory) {
            Ok(_) | Err(OpenError::NoDirectIo) => {}
            Err(error) => panic!("{error}"),
        }
        std::fs::remove_dir(&directory).unwrap(); // fails when a name is left
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert!(free_bytes(Path::new("/var/tmp")).unwrap() > 0);
        assert_eq!(file_system(Path::new("/proc")).unwrap(), FileSystem::Other);
        match file_system(Path::new("/dev/shm")) {
            Ok(found) => assert_eq!(found, FileSystem::Tmpfs),
            Err(error) => println!("skipped: /dev/shm: {error}"),
        }
    }
}
