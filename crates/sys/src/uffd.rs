//! userfaultfd, typed: opening it by the door that is open, registering ranges, resolving faults, moving pages.
//!
//! Kernel error numbers become named meanings. Nothing here allocates or locks but [`Userfaultfd::open`]: the rest runs
//! in signal handlers.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const UFFD_API: u64 = 0xaa;
const USER_MODE_ONLY: libc::c_long = 1;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MOVE: u64 = 1 << 16;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_WRITE: u64 = 1;
const PAGEFAULT_WP: u64 = 2;

/// Attempts that a move or copy makes no headway in before it is given up.
const FRUITLESS_ATTEMPTS: u32 = 200;

/// The number of an ioctl that reads and writes its argument.
const fn iowr<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | 0xaa << 8 | number
}

/// The number of an ioctl that reads its argument.
const fn ior<T>(number: u64) -> u64 {
    2 << 30 | (size_of::<T>() as u64) << 16 | 0xaa << 8 | number
}

#[repr(C)]
struct ApiArgs {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArgs {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArgs {
    range: RangeArgs,
    mode: u64,
    ioctls: u64,
}

/// `uffdio_copy` and `uffdio_move` have the same shape: the last field is the result, bytes done or a negated errno.
#[repr(C)]
struct TransferArgs {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtectArgs {
    range: RangeArgs,
    mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Message>() == 32 && size_of::<TransferArgs>() == 40);

const IOCTL_API: u64 = iowr::<ApiArgs>(0x3f);
const IOCTL_REGISTER: u64 = iowr::<RegisterArgs>(0x00);
const IOCTL_WAKE: u64 = ior::<RangeArgs>(0x02);
const IOCTL_COPY: u64 = iowr::<TransferArgs>(0x03);
const IOCTL_MOVE: u64 = iowr::<TransferArgs>(0x05);
const IOCTL_WRITE_PROTECT: u64 = iowr::<WriteProtectArgs>(0x06);
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const IOCTL_NEW: u64 = 0xaa00;

/// How faults are to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// To the faulting thread, as SIGBUS. Any user may; faults inside system calls fail with EFAULT.
    Sigbus,
    /// To whoever reads the descriptor, those inside system calls too.
    Monitor,
}

/// By which way the descriptor was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The system call, with privilege or by `vm.unprivileged_userfaultfd`.
    Syscall,
    /// `/dev/userfaultfd`.
    Device,
    /// The system call, for faults in user mode only.
    UserModeOnly,
}

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `UFFDIO_MOVE`.
    pub has_move: bool,
    /// Events name the thread that faulted.
    pub has_thread_id: bool,
}

/// Why there is no descriptor, or a call on it failed.
#[derive(Debug, thiserror::Error)]
pub enum UffdError {
    /// The kernel has no userfaultfd.
    #[error("this kernel has no userfaultfd")]
    Unsupported,
    /// This user may not.
    #[error("permission denied")]
    NotPermitted,
    /// Anything else.
    #[error("{0}")]
    Other(#[from] io::Error),
}

impl From<UffdError> for io::Error {
    fn from(error: UffdError) -> io::Error {
        match error {
            UffdError::Unsupported => io::Error::from_raw_os_error(libc::ENOSYS),
            UffdError::NotPermitted => io::Error::from_raw_os_error(libc::EPERM),
            UffdError::Other(error) => error,
        }
    }
}

/// Why pages were not moved or copied. Nothing has changed, except where it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// A page is pinned, in use by a system call, or shared with another process.
    #[error("a page is in use")]
    Busy,
    /// The first `moved` bytes are done; then a page was busy, missing or present.
    #[error("only a part could be moved")]
    Partial {
        /// Bytes that are at the target now.
        moved: usize,
    },
    /// A page of the target is there already.
    #[error("a page of the target is there already")]
    Present,
    /// A page of the source is not there.
    #[error("a page of the source is missing")]
    Missing,
    /// The ranges differ in protection or locking, or are not registered.
    #[error("the ranges do not fit each other")]
    Invalid,
    /// The process is going.
    #[error("the process is going")]
    ProcessGone,
    /// Another error number.
    #[error("error {0}")]
    Other(i32),
}

impl MoveError {
    fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EBUSY | libc::EAGAIN => MoveError::Busy,
            libc::EEXIST => MoveError::Present,
            libc::ENOENT => MoveError::Missing,
            libc::EINVAL => MoveError::Invalid,
            libc::ESRCH => MoveError::ProcessGone,
            other => MoveError::Other(other),
        }
    }
}

/// Which faults of a range are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Those of pages that are not there.
    Missing,
    /// These, and writes to pages that are write-protected.
    MissingAndWriteProtect,
}

/// What was read from the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A thread waits for a page.
    Pagefault {
        /// Where; a multiple of the page size.
        addr: usize,
        /// It wants to write.
        write: bool,
        /// The page is there, and write-protected.
        write_protected: bool,
        /// The thread's id; 0 when the kernel does not tell.
        thread: u32,
    },
    /// Anything else; none is asked for.
    Other,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// There may be an event to read; another thread may have taken it.
    Event,
    /// The stop descriptor was signalled.
    Stopped,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
}

impl Userfaultfd {
    /// Opens one for the wanted delivery, by the first door that lets this process in.
    ///
    /// # Errors
    /// [`UffdError`].
    pub fn open(delivery: Delivery) -> Result<(Self, Features, Door), UffdError> {
        let (fd, door) = match delivery {
            Delivery::Sigbus => (by_syscall(USER_MODE_ONLY)?, Door::UserModeOnly),
            Delivery::Monitor => match by_syscall(0) {
                Ok(fd) => (fd, Door::Syscall),
                Err(error) => (by_device().map_err(|_| error)?, Door::Device),
            },
        };
        let uffd = Userfaultfd { fd };
        let offered = probe_features()?;
        let mut wanted = offered & (FEATURE_MOVE | FEATURE_THREAD_ID | FEATURE_PAGEFAULT_FLAG_WP);
        if delivery == Delivery::Sigbus {
            wanted |= FEATURE_SIGBUS;
        }
        handshake(uffd.fd.as_raw_fd(), wanted)?;
        let features =
            Features { has_move: offered & FEATURE_MOVE != 0, has_thread_id: offered & FEATURE_THREAD_ID != 0 };
        Ok((uffd, features, door))
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        ioctl(self.fd.as_raw_fd(), request, argument)
    }

    /// Has the faults of a range delivered here.
    ///
    /// # Errors
    /// [`UffdError::Other`] with the kernel's reason.
    pub fn register(&self, addr: usize, len: usize, mode: Mode) -> Result<(), UffdError> {
        let mode = match mode {
            Mode::Missing => REGISTER_MISSING,
            Mode::MissingAndWriteProtect => REGISTER_MISSING | REGISTER_WP,
        };
        let mut args = RegisterArgs { range: RangeArgs { start: addr as u64, len: len as u64 }, mode, ioctls: 0 };
        Ok(self.ioctl(IOCTL_REGISTER, &mut args)?)
    }

    /// Moves pages from `src` to `dst` without copying them; whole huge pages stay huge. Wakes who waits for them.
    ///
    /// # Errors
    /// [`MoveError`]; nothing was moved unless it is [`MoveError::Partial`].
    pub fn move_pages(&self, dst: usize, src: usize, len: usize) -> Result<(), MoveError> {
        self.transfer(IOCTL_MOVE, dst, src, len)
    }

    /// Copies memory at `src` into new pages at `dst`. Wakes who waits for them.
    ///
    /// # Errors
    /// As [`Userfaultfd::move_pages`].
    pub fn copy(&self, dst: usize, src: usize, len: usize) -> Result<(), MoveError> {
        self.transfer(IOCTL_COPY, dst, src, len)
    }

    fn transfer(&self, request: u64, dst: usize, src: usize, len: usize) -> Result<(), MoveError> {
        let (mut done, mut fruitless) = (0, 0);
        loop {
            let (to, from, rest) = ((dst + done) as u64, (src + done) as u64, (len - done) as u64);
            let mut args = TransferArgs { dst: to, src: from, len: rest, mode: 0, done: 0 };
            let errno = match self.ioctl(request, &mut args) {
                Ok(()) => return Ok(()),
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            // The result is signed: bytes done, or the negated error, and it must not be taken for a length.
            if args.done > 0 {
                done += args.done as usize;
                if done >= len {
                    return Ok(());
                }
            } else {
                fruitless += 1;
            }
            if errno != libc::EAGAIN || fruitless > FRUITLESS_ATTEMPTS {
                return Err(if done > 0 { MoveError::Partial { moved: done } } else { MoveError::from_errno(errno) });
            }
        }
    }

    /// Protects present pages against writing, or ends that and wakes who waits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_protect(&self, addr: usize, len: usize, on: bool) -> io::Result<()> {
        let range = RangeArgs { start: addr as u64, len: len as u64 };
        let mut args = WriteProtectArgs { range, mode: u64::from(on) };
        loop {
            match self.ioctl(IOCTL_WRITE_PROTECT, &mut args) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                other => return other,
            }
        }
    }

    /// Wakes the threads that wait for pages of a range; those that still miss theirs fault again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wake(&self, addr: usize, len: usize) -> io::Result<()> {
        self.ioctl(IOCTL_WAKE, &mut RangeArgs { start: addr as u64, len: len as u64 })
    }

    /// The next event; `None` when there is none now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_event(&self) -> io::Result<Option<Event>> {
        let mut message = Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0, padding: 0 };
        // SAFETY: the buffer is a Message, valid for any bytes, as long as the length says.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut message).cast(), size_of::<Message>()) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        Ok(Some(match message.event {
            EVENT_PAGEFAULT => Event::Pagefault {
                addr: message.address as usize,
                write: message.flags & PAGEFAULT_WRITE != 0,
                write_protected: message.flags & PAGEFAULT_WP != 0,
                thread: message.thread,
            },
            _ => Event::Other,
        }))
    }

    /// Sleeps until there is an event or `stop` is signalled.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, stop: &EventFd) -> io::Result<Woken> {
        let poll = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [poll(self.fd.as_raw_fd()), poll(stop.fd.as_raw_fd())];
        loop {
            // SAFETY: an array of two pollfd, as the length says.
            if unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } >= 0 {
                return Ok(if fds[1].revents != 0 { Woken::Stopped } else { Woken::Event });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(error);
            }
        }
    }
}

/// A descriptor that threads can wait for along with others.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A new one, not signalled.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just opened and that nobody else knows.
        Ok(EventFd { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Signals it, for good.
    pub fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight bytes from a u64. It can only fail when the counter is full: it is signalled then.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

fn ioctl<T>(fd: RawFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request above is made for the type that it is called with, whose size its number carries; the
    // kernel reads and writes no more than that. What the calls do to mapped memory is the caller's own range.
    if unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(argument)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn by_syscall(flags: libc::c_long) -> Result<OwnedFd, UffdError> {
    let flags = libc::c_long::from(libc::O_CLOEXEC | libc::O_NONBLOCK) | flags;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    owned(fd)
}

fn by_device() -> Result<OwnedFd, UffdError> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: this request takes flags in place of a pointer.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_NEW as _, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    owned(fd.into())
}

fn owned(fd: libc::c_long) -> Result<OwnedFd, UffdError> {
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOSYS) => UffdError::Unsupported,
            Some(libc::EPERM | libc::EACCES) => UffdError::NotPermitted,
            _ => UffdError::Other(error),
        });
    }
    // SAFETY: a descriptor that was just opened and that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// What this kernel offers; asked on a descriptor of its own, since asking settles it.
fn probe_features() -> Result<u64, UffdError> {
    let fd = by_syscall(USER_MODE_ONLY).or_else(|_| by_syscall(0)).or_else(|_| by_device())?;
    handshake(fd.as_raw_fd(), 0)
}

fn handshake(fd: RawFd, features: u64) -> Result<u64, UffdError> {
    let mut args = ApiArgs { api: UFFD_API, features, ioctls: 0 };
    ioctl(fd, IOCTL_API, &mut args)?;
    Ok(args.features)
}
