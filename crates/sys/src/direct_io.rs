//! Direct I/O on files and block devices, and allocation of file space.

use std::fs::{File, TryLockError};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{check, errno, file_limit, said};

/// Why a swap device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// EINVAL from O_DIRECT.
    #[error("its file system has no direct I/O (O_DIRECT): use another disk")]
    NoDirectIo,
    /// EACCES, EPERM, EROFS.
    #[error("is not writable: {0}")]
    NotPermitted(io::Error),
    /// ENOENT.
    #[error("its directory does not exist")]
    NotFound,
    /// ENOTDIR.
    #[error("a part of its path is no directory")]
    NotDirectory,
    /// A regular file, a directory or something else that must not be overwritten.
    #[error("exists and is no block device: name a file that does not exist yet")]
    NotBlockDevice,
    /// Blocks of more than 4 KiB.
    #[error("its smallest block is {0} bytes; folioswap needs 4096 or less: use another disk")]
    Coarse(u32),
    /// EBUSY: claimed by the kernel.
    #[error("in use: mounted, swap of the kernel, a part of a RAID or volume, or another program's")]
    InUse,
    /// ENOSPC, EDQUOT.
    #[error("the disk is full")]
    NoSpace,
    /// Any other error.
    #[error("{0}")]
    System(io::Error),
}

impl OpenError {
    /// The kernel's error number. A file system without direct I/O has its EINVAL, a file that is no device ENOTBLK.
    pub fn number(&self) -> Option<i32> {
        match self {
            OpenError::NoDirectIo | OpenError::Coarse(_) => Some(libc::EINVAL),
            OpenError::NotFound => Some(libc::ENOENT),
            OpenError::NotDirectory => Some(libc::ENOTDIR),
            OpenError::NotBlockDevice => Some(libc::ENOTBLK),
            OpenError::InUse => Some(libc::EBUSY),
            OpenError::NoSpace => Some(libc::ENOSPC),
            OpenError::NotPermitted(error) | OpenError::System(error) => error.raw_os_error(),
        }
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINVAL) => OpenError::NoDirectIo,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => OpenError::NotPermitted(error),
            Some(libc::ENOENT) => OpenError::NotFound,
            Some(libc::ENOTDIR) => OpenError::NotDirectory,
            Some(libc::EBUSY) => OpenError::InUse,
            Some(libc::ENOSPC | libc::EDQUOT) => OpenError::NoSpace,
            _ => OpenError::System(error),
        }
    }
}

/// Creates an unnamed file in `directory` for direct I/O, mode 0600. It disappears when the descriptor is closed,
/// however the process ends.
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
    let fd: OwnedFd = match made {
        Ok(file) => file.into(),
        // EOPNOTSUPP from a file system without O_TMPFILE, EISDIR from a kernel without it.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            named_and_unlinked(directory)?
        }
        Err(error) => return Err(error.into()),
    };
    let alignment = alignment(&fd);
    if alignment > FINEST_BYTES {
        return Err(OpenError::Coarse(alignment));
    }
    write_in_place(&fd);
    Ok(fd)
}

/// What a folio is at least, and so a read.
const FINEST_BYTES: u32 = 4096;

/// How direct I/O on a file must be aligned; 0: that is not known (before Linux 6.1, or with some file systems).
fn alignment(fd: &OwnedFd) -> u32 {
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an empty path names the descriptor. The kernel fills in the local, for which zeros are valid.
    unsafe {
        let asked =
            libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, about.as_mut_ptr());
        let about = about.assume_init();
        if asked == 0 { about.stx_dio_offset_align.max(about.stx_dio_mem_align) } else { 0 }
    }
}

/// Has an empty file written in place, where its file system would else write each change elsewhere (btrfs): space that
/// is allocated ahead holds for the first write only.
fn write_in_place(fd: &OwnedFd) {
    const NO_COPIES: libc::c_int = 0x0080_0000;
    let mut flags: libc::c_int = 0;
    // SAFETY: the kernel reads and writes the local. Other file systems refuse, and need not do it.
    unsafe {
        if libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) == 0 {
            flags |= NO_COPIES;
            libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags);
        }
    }
}

/// The same through a name that is removed at once.
fn named_and_unlinked(directory: &Path) -> Result<OwnedFd, OpenError> {
    let mut path = directory.join("folioswap.XXXXXX").as_os_str().as_bytes().to_vec();
    path.push(0);
    // SAFETY: a NUL-terminated path in our own buffer. The call replaces the six X in place.
    let fd = check(unsafe { libc::mkostemp(path.as_mut_ptr().cast(), libc::O_DIRECT | libc::O_CLOEXEC) }.into());
    // mkostemp creates the file before it finds that O_DIRECT is refused (EINVAL), so the name must be removed then
    // too.
    let refused = fd.as_ref().is_err_and(|error| error.raw_os_error() != Some(libc::EINVAL));
    if !refused {
        // SAFETY: the path that the call has filled in, NUL-terminated.
        unsafe { libc::unlink(path.as_ptr().cast()) };
    }
    // The directory is there, so this file system has no files.
    let fd =
        fd.map_err(|error| if error.kind() == io::ErrorKind::NotFound { OpenError::NoDirectIo } else { error.into() })?;
    // SAFETY: the C library just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Opens a block device exclusively for direct I/O, and returns its size in bytes. Anything else is left untouched.
///
/// # Errors
/// [`OpenError`] by name.
pub fn block_device(path: &Path) -> Result<(OwnedFd, u64), OpenError> {
    if !std::fs::metadata(path)?.file_type().is_block_device() {
        return Err(OpenError::NotBlockDevice);
    }
    // O_EXCL on a block device fails if it is mounted, swap, part of another device, or already open with O_EXCL.
    let flags = libc::O_DIRECT | libc::O_CLOEXEC | libc::O_EXCL;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(OpenError::NotBlockDevice); // replaced meanwhile
    }
    if ask_block_device(&file, BLKROGET)? as u32 != 0 {
        return Err(io::Error::from_raw_os_error(libc::EROFS).into());
    }
    let sector_bytes = ask_block_device(&file, BLKSSZGET)? as u32;
    if sector_bytes > FINEST_BYTES {
        return Err(OpenError::Coarse(sector_bytes));
    }
    let size = ask_block_device(&file, BLKGETSIZE64)?;
    Ok((file.into(), size))
}

/// Answers with four bytes: whether the device is read-only. It can be opened for writing all the same.
const BLKROGET: u64 = 0x125e;
/// Answers with four bytes: the smallest block that it reads and writes.
const BLKSSZGET: u64 = 0x1268;
/// Answers with eight bytes.
const BLKGETSIZE64: u64 = 0x8008_1272;

fn ask_block_device(file: &File, request: u64) -> io::Result<u64> {
    let mut answer = 0u64;
    // SAFETY: these requests write at most eight bytes, into a local of this frame.
    check(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), request, &raw mut answer) })?;
    Ok(answer)
}

/// Calls fcntl with a lock on the whole file, for the calling process.
fn with_lock(fd: RawFd, request: libc::c_int) -> io::Result<libc::flock> {
    // SAFETY: a plain structure of numbers. All zeroes is a valid value, and means the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    // SAFETY: the kernel reads the structure, and may fill it in. It is a local of this frame.
    check(unsafe { libc::syscall(libc::SYS_fcntl, fd, request, &raw mut lock) })?;
    Ok(lock)
}

/// Locks the whole file for this process, for [`locked_of_other`] to see. The lock is lost when the process closes any
/// descriptor of the file.
///
/// # Errors
/// EAGAIN, EACCES: another process holds the lock. Other kernel errors.
pub fn lock_for_process(fd: RawFd) -> io::Result<()> {
    with_lock(fd, libc::F_SETLK).map(drop)
}

/// Locks the file against [`locked_of_other`], until the descriptor is closed.
///
/// # Errors
/// EWOULDBLOCK: a process that got it there has it, or a child of that process. Other kernel errors.
pub fn lock_alone(fd: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) }.into()).map(drop)
}

/// Whether another process holds such a lock on any part of the file.
fn is_locked_by_other(fd: RawFd) -> io::Result<bool> {
    Ok(with_lock(fd, libc::F_GETLK)?.l_type != libc::F_UNLCK as libc::c_short)
}

/// Opens a file that another process has open, through `/proc/<pid>/fd/<n>`, for this process alone among all that open
/// it this way. Also returns the size of a block device. `None`: another process has it.
///
/// Two locks are used. The `fcntl` lock ([`lock_for_process`], which the caller takes on the descriptor that it keeps)
/// ends with the process, so it tells at once whether a living process has the file. The `flock` lock ends with the
/// last use of its descriptor, I/O in flight included, which may be shortly after the process has ended or executed
/// another program. This function waits for that, for at most `patience`.
///
/// # Errors
/// [`OpenError::NotFound`] if the path is another file by now. Other kernel errors.
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
    if is_locked_by_other(file.as_raw_fd())? {
        return Ok(None);
    }
    let begun = Instant::now();
    while let Err(refused) = file.try_lock() {
        match refused {
            TryLockError::WouldBlock if begun.elapsed() > patience => return Ok(None),
            TryLockError::WouldBlock => crate::futex::sleep(Duration::from_millis(1)),
            TryLockError::Error(error) => return Err(error.into()),
        }
    }
    let size = if about.file_type().is_block_device() { Some(ask_block_device(&file, BLKGETSIZE64)?) } else { None };
    Ok(Some((file.into(), size)))
}

/// Allocates disk space for a part of a file, and extends the file to the end of that part if it is shorter. Content
/// stays.
///
/// # Errors
/// ENOSPC ([`io::ErrorKind::StorageFull`]) and the like. A file system that cannot allocate ahead is not an error: the
/// file is extended if necessary, and a later write may find the disk full.
pub fn preallocate(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    let too_large = || io::Error::from_raw_os_error(libc::EFBIG);
    let end = offset.checked_add(len).and_then(|end| libc::off_t::try_from(end).ok()).ok_or_else(too_large)?;
    let limited = file_limit::is_beyond(end as u64);
    if limited && !file_limit::reaches(fd, end as u64) {
        return Err(too_large()); // the call would also send SIGXFSZ
    }
    let mode = if limited { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
    match fallocate(fd, mode, offset, len) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            // SAFETY: takes no pointers. Nobody uses the descriptor's position.
            let size = check(unsafe { libc::lseek(fd, 0, libc::SEEK_END) })?;
            if size as u64 >= end as u64 {
                return Ok(());
            }
            // SAFETY: takes no pointers.
            check(unsafe { libc::ftruncate(fd, end) }.into()).map(drop)
        }
        done => done,
    }
}

/// Makes the call, again after a signal.
fn fallocate(fd: RawFd, mode: libc::c_int, offset: u64, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: takes no pointers.
        match check(unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, len) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// Frees a part of a file, or discards a part of a block device. It reads as zeros then. If the file system or device
/// does not support this, nothing happens, and it is not an error.
pub fn punch_hole(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    match fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        done => done,
    }
}

/// Makes all of a file read as zeros. It keeps its space where the file system can do that. Costs nothing where that
/// knows that nothing was written.
///
/// # Errors
/// EOPNOTSUPP: the file system supports neither this nor holes. Other kernel errors.
pub fn wipe(fd: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers. Nobody uses the descriptor's position.
    let first_written = check(unsafe { libc::lseek(fd, 0, libc::SEEK_DATA) });
    if first_written.is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO)) {
        return Ok(());
    }
    // SAFETY: takes no pointers.
    let len = check(unsafe { libc::lseek(fd, 0, libc::SEEK_END) })?;
    let with = |mode: libc::c_int| fallocate(fd, mode | libc::FALLOC_FL_KEEP_SIZE, 0, len as u64);
    match with(libc::FALLOC_FL_ZERO_RANGE) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => with(libc::FALLOC_FL_PUNCH_HOLE),
        done => done,
    }
}

/// Reads all of `bytes` at `offset`. The buffer may be memory of the engine's, and must be present. With O_DIRECT
/// address, length and offset must be multiples of the device's block size.
///
/// # Errors
/// The device's error; [`io::ErrorKind::UnexpectedEof`] if it ends before.
pub fn pread_exact(fd: RawFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    exactly(bytes.len(), io::ErrorKind::UnexpectedEof, |done| {
        let rest = &mut bytes[done..];
        // SAFETY: the kernel writes at most the length of `rest`.
        unsafe { libc::syscall(libc::SYS_pread64, fd, rest.as_mut_ptr(), rest.len(), offset + done as u64) }
    })
}

/// Writes all of `bytes` at `offset`, under the conditions of [`pread_exact`].
///
/// # Errors
/// The device's error; [`io::ErrorKind::WriteZero`] if it accepts no more.
pub fn pwrite_exact(fd: RawFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    if file_limit::is_beyond(offset + bytes.len() as u64) {
        return file_limit::write_mapped(fd, bytes, offset);
    }
    exactly(bytes.len(), io::ErrorKind::WriteZero, |done| {
        let rest = &bytes[done..];
        // SAFETY: the kernel reads at most the length of `rest`.
        unsafe { libc::syscall(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), offset + done as u64) }
    })
}

/// The most pieces that one system call takes (`IOV_MAX`).
const MOST_PIECES: usize = 1024;

/// Fills several pieces of memory in order, from `offset` on, like [`pread_exact`]. The pieces are consumed.
///
/// # Errors
/// As [`pread_exact`].
pub fn preadv_exact(fd: RawFd, mut pieces: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
    while !pieces.is_empty() {
        let count = pieces.len().min(MOST_PIECES);
        // SAFETY: the kernel writes within the pieces, which have the layout of iovec.
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

/// Repeats `step`, with the bytes done so far, until `len` bytes are done.
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

/// Whether what is written to `path` is kept in RAM: swapping out to it saves none. An overlay keeps it where its upper
/// layer lies, if that can be found by its name.
pub fn is_tmpfs(path: &Path) -> io::Result<bool> {
    let is = |found: libc::statfs| found.f_type == libc::TMPFS_MAGIC;
    let found = statfs(path)?;
    let upper = if found.f_type == libc::OVERLAYFS_SUPER_MAGIC { upper_layer(path) } else { None };
    Ok(is(found) || upper.is_some_and(|upper| statfs(&upper).is_ok_and(is)))
}

fn upper_layer(path: &Path) -> Option<PathBuf> {
    let device = std::fs::metadata(path).ok()?.dev();
    let mounts = said::read("/proc/self/mountinfo").ok()?;
    upper_layer_in(&mounts, &format!("{}:{}", libc::major(device), libc::minor(device)))
}

/// The upper layer of the overlay with this number of a device.
fn upper_layer_in(mounts: &str, device: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let options = mount.rsplit_once(' ')?.1;
    let mut upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="))?.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        upper = upper.replace(escape, character);
    }
    Some(upper.into())
}

/// Bytes that this user may still use on the file system of `path`: root also those that it keeps for root.
///
/// # Errors
/// Kernel errors; Unsupported: the file system does not tell, as some of FUSE do not.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = statfs(path)?;
    if found.f_blocks == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: takes no pointers.
    let free = if unsafe { libc::geteuid() } == 0 { found.f_bfree } else { found.f_bavail };
    Ok(free.saturating_mul(found.f_bsize as u64))
}

fn statfs(path: &Path) -> io::Result<libc::statfs> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::uninit();
    // SAFETY: the path is NUL-terminated, and the kernel fills in a local of this frame.
    check(unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) }.into())?;
    // SAFETY: filled in, since the call succeeded.
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
        // SAFETY: readable and writable memory of the test's own, to which there is no other reference.
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
        assert!(matches!(unlinked_file(Path::new("/etc/passwd")), Err(OpenError::NotDirectory)));
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
        std::fs::remove_dir(&directory).unwrap(); // fails if a name is left
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert!(free_bytes(Path::new("/var/tmp")).unwrap() > 0);
        assert!(!is_tmpfs(Path::new("/proc")).unwrap());
        let mounts = "36 25 0:32 / /a rw shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/over/other,workdir=/w\n\
            37 25 0:33 / /b\\040c rw - overlay overlay rw,lowerdir=/l,upperdir=/over\\040it/upper,workdir=/w\n\
            38 25 0:34 / /d ro - overlay overlay ro,lowerdir=/l:/m\n";
        assert_eq!(upper_layer_in(mounts, "0:33"), Some("/over it/upper".into()));
        assert_eq!(upper_layer_in(mounts, "0:34"), None, "it has none");
        assert_eq!(upper_layer_in(mounts, "0:3"), None);
        match is_tmpfs(Path::new("/dev/shm")) {
            Ok(is) => assert!(is),
            Err(error) => println!("skipped: /dev/shm: {error}"),
        }
    }
}
