//! userfaultfd: opening it in whichever way is permitted, and its ioctls with named errors.
//!
//! [`Userfaultfd::move_pages`], [`Userfaultfd::copy`], [`Userfaultfd::zeropage`] and [`Userfaultfd::wake`] neither
//! allocate nor lock, because they run in a SIGBUS handler. Any number of threads may make calls at once. Calls that
//! take content from an address or place some there are `unsafe fn`. The others only select where faults are delivered,
//! and change no page.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::descriptor::Descriptor;
pub use crate::uffd_abi::Transfer;
use crate::uffd_abi::{self as abi, Range};
use crate::{check, cpu, errno, futex, kept, own_table, taken};

/// How faults are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The faulting thread gets SIGBUS. A system call that accesses a missing page fails with EFAULT.
    Sigbus,
    /// A thread reads the descriptor. The faulting thread sleeps meanwhile, in system calls too.
    Monitor,
}

/// How the descriptor was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The system call: needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1.
    Syscall,
    /// `/dev/userfaultfd`.
    Device,
    /// The system call, for user-mode faults only. Needs no privilege.
    UserModeOnly,
}

/// Features that the kernel offers and that are enabled on the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `UFFDIO_MOVE` (Linux 6.8).
    pub has_move: bool,
    /// Events name the faulting thread.
    pub has_thread_id: bool,
}

/// Why no userfaultfd could be opened, or a range could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum UffdError {
    /// This process may not open one of the wanted kind.
    #[error("not permitted")]
    NotPermitted,
    /// The kernel or the sandbox has no userfaultfd.
    #[error("this kernel or sandbox has no userfaultfd")]
    NotSupported,
    /// The kernel's userfaultfd lacks this feature.
    #[error("this kernel's userfaultfd has no {0}")]
    NoFeature(&'static str),
    /// Any other error.
    #[error("{what}: {error}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl From<UffdError> for io::Error {
    fn from(error: UffdError) -> Self {
        match error {
            UffdError::NotPermitted => io::Error::from_raw_os_error(libc::EPERM),
            UffdError::NotSupported => io::Error::from_raw_os_error(libc::ENOSYS),
            UffdError::NoFeature(_) => io::Error::new(io::ErrorKind::Unsupported, error),
            UffdError::System { error, .. } => error,
        }
    }
}

/// Why pages were not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// EBUSY, or EAGAIN repeatedly: a page is pinned, in use by a system call, or shared by fork. Nothing moved.
    #[error("a page is pinned, in use, or shared with another process")]
    Busy,
    /// The first `moved` bytes (more than 0, less than all) are at the target, the rest where they were.
    #[error("only the first {moved} bytes could be moved")]
    Partial {
        /// Bytes moved, a multiple of the page size.
        moved: usize,
    },
    /// EEXIST: a page of the target is present.
    #[error("a page of the target is present")]
    Present,
    /// ENOENT: a page of the source is missing, or the target is not registered.
    #[error("a page of the source is missing, or the target is not registered")]
    Missing,
    /// EINVAL: unaligned, or source and target differ in protection, locking or kind.
    #[error("source and target do not fit each other")]
    Invalid,
    /// Another error number.
    #[error("error {0}")]
    Other(i32),
}

impl MoveError {
    fn from_errno(number: i32) -> Self {
        match number {
            libc::EBUSY | libc::EAGAIN => MoveError::Busy,
            libc::EEXIST => MoveError::Present,
            libc::ENOENT => MoveError::Missing,
            libc::EINVAL => MoveError::Invalid,
            number => MoveError::Other(number),
        }
    }
}

/// An event that the descriptor reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A thread accessed a missing page, and sleeps.
    Pagefault {
        /// The address accessed; before Linux 5.18 that of its page.
        addr: usize,
        /// Whether it was a write.
        write: bool,
        /// The thread's id; 0 if [`Features::has_thread_id`] is false.
        thread: u32,
    },
    /// Another event (fork, remap, remove, unmap). [`Userfaultfd::open`] enables none of them.
    Other {
        /// The kernel's number for it.
        event: u8,
    },
}

/// Why [`Waiter::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// There is, or was, an event to read, or another reason to look.
    Event,
    /// The same, and something has arrived at the second of the other descriptors.
    Told,
    /// The stop descriptor is signalled.
    Stopped,
}

/// Consecutive calls without progress (EAGAIN) before a range counts as busy.
const MOST_RETRIES: u32 = 100;

/// A userfaultfd of the calling process.
#[derive(Debug)]
pub struct Userfaultfd {
    descriptor: Descriptor,
    /// Only [`Userfaultfd::wake`] wakes threads.
    wakes_late: AtomicBool,
}

impl From<Descriptor> for Userfaultfd {
    fn from(descriptor: Descriptor) -> Self {
        Userfaultfd { descriptor, wakes_late: AtomicBool::new(false) }
    }
}

impl Userfaultfd {
    /// The same descriptor, hidden from the program ([`Descriptor::hidden`]).
    pub fn hide(self) -> io::Result<Self> {
        self.descriptor.hide().map(Self::from)
    }

    /// In a forked child, before it has another thread: opens one for the child's memory in place of the parent's,
    /// hidden like that.
    ///
    /// # Errors
    /// As [`Userfaultfd::open`] and [`Descriptor::renew`].
    pub fn renew(&self, delivery: Delivery) -> io::Result<()> {
        let (fresh, ..) = Userfaultfd::open(delivery)?;
        self.descriptor.renew(fresh.descriptor.into_fd())
    }

    /// Opens a userfaultfd with MOVE, write protection and thread ids where the kernel offers them.
    ///
    /// For [`Delivery::Monitor`]: by the system call, else through `/dev/userfaultfd`. User mode only is not enough
    /// there, since a system call that accesses a missing page would fail. For [`Delivery::Sigbus`] user mode only is
    /// tried first: it behaves the same there, and needs no privilege.
    ///
    /// # Errors
    /// [`UffdError`] by name, from the first way that failed.
    pub fn open(delivery: Delivery) -> Result<(Self, Features, Door), UffdError> {
        let doors: &[Door] = match delivery {
            Delivery::Monitor => &[Door::Syscall, Door::Device],
            Delivery::Sigbus => &[Door::UserModeOnly, Door::Syscall, Door::Device],
        };
        let mut refused = None;
        for &door in doors {
            match pass(door) {
                Ok(asked) => {
                    // The first handshake only queries: features can be enabled once per descriptor.
                    let offered = shake_hands(&asked, 0)?;
                    let wanted = wanted_features(delivery, offered)?;
                    let uffd = pass(door)?;
                    shake_hands(&uffd, wanted)?;
                    let uffd = Userfaultfd::from(Descriptor::from(uffd));
                    let features = Features {
                        has_move: wanted & abi::FEATURE_MOVE != 0,
                        has_thread_id: wanted & abi::FEATURE_THREAD_ID != 0,
                    };
                    return Ok((uffd, features, door));
                }
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        Err(refused.unwrap_or(UffdError::NotSupported))
    }

    /// Delivers faults of a range, which must be page-aligned, private and anonymous.
    ///
    /// # Errors
    /// Kernel errors: EBUSY if another userfaultfd has the range, EINVAL for other kinds of memory.
    pub fn register(&self, addr: usize, len: usize) -> Result<(), UffdError> {
        let mut register = abi::Register { range: range(addr, len), mode: abi::REGISTER_MISSING, ioctls: 0 };
        self.ioctl(abi::UFFDIO_REGISTER, &mut register).map_err(system("UFFDIO_REGISTER"))
    }

    /// Ends delivery for a range, and wakes the threads that sleep in it.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<(), UffdError> {
        self.ioctl(abi::UFFDIO_UNREGISTER, &mut range(addr, len)).map_err(system("UFFDIO_UNREGISTER"))
    }

    /// Moves the pages at `src` to `dst`, where none may be present, and wakes the threads that wait for them. No byte
    /// is copied, and a huge page that moves whole and aligned stays one. `dst` must be registered with this
    /// descriptor.
    ///
    /// # Errors
    /// [`MoveError`]. Unless it is `Partial`, nothing has moved.
    ///
    /// # Safety
    /// Both ranges are the caller's own mappings. Nobody uses a reference into the source until it has content again,
    /// unless the caller resolves the fault. Readers of the target accept the new content as a value.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Result<(), MoveError> {
        self.transfer(abi::UFFDIO_MOVE, dst, src, len)
    }

    /// Places pages at `dst` with a copy of the content at `src`, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// As [`Userfaultfd::move_pages`].
    ///
    /// # Safety
    /// The target is the caller's own mapping, whose readers accept the new content as a value. The source may be any
    /// address that the kernel can read. Nobody writes there meanwhile.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize) -> Result<(), MoveError> {
        self.transfer(abi::UFFDIO_COPY, dst, src, len)
    }

    /// Maps zeroed pages at `addr`, where none may be present, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// As [`Userfaultfd::move_pages`].
    ///
    /// # Safety
    /// The range is the caller's own mapping, and its readers accept zeros as a value.
    pub unsafe fn zeropage(&self, addr: usize, len: usize) -> Result<(), MoveError> {
        self.fill(abi::UFFDIO_ZEROPAGE, addr, len)
    }

    /// Poisons the pages at `addr`, where none may be present, and wakes the threads that wait for them. An access
    /// raises SIGBUS, and a system call that accesses such a page fails with EFAULT. `madvise(MADV_DONTNEED)` removes
    /// the poison.
    ///
    /// # Errors
    /// As [`Userfaultfd::move_pages`]; `Invalid` before Linux 6.6.
    ///
    /// # Safety
    /// The range is the caller's own mapping, and the caller handles faults there.
    pub unsafe fn poison(&self, addr: usize, len: usize) -> Result<(), MoveError> {
        self.fill(abi::UFFDIO_POISON, addr, len)
    }

    fn fill(&self, request: u64, addr: usize, len: usize) -> Result<(), MoveError> {
        stepwise(len, |done| {
            let mut fill = abi::InPlace { range: range(addr + done, len - done), mode: self.mode(), done: 0 };
            let result = self.raw_ioctl(request, &mut fill);
            (result, fill.done)
        })
    }

    /// Sets whether only [`Userfaultfd::wake`] wakes the threads that wait for a page, and not the call that makes it
    /// present.
    pub fn wake_late(&self, late: bool) {
        self.wakes_late.store(late, Ordering::SeqCst);
    }

    /// The mode of a request that makes pages present.
    fn mode(&self) -> u64 {
        if self.wakes_late.load(Ordering::Relaxed) { abi::MODE_DONTWAKE } else { 0 }
    }

    /// Wakes the threads that wait for pages of a range. They repeat the access.
    ///
    /// # Errors
    /// EINVAL for a bad range.
    pub fn wake(&self, addr: usize, len: usize) -> io::Result<()> {
        self.ioctl(abi::UFFDIO_WAKE, &mut range(addr, len))
    }

    /// Reads one event; `None` if there is none (another thread may have read it).
    pub fn read_event(&self) -> io::Result<Option<Event>> {
        let mut message = abi::Message::default();
        let len = size_of::<abi::Message>();
        // SAFETY: the buffer is `len` bytes of this frame, and any bytes are a valid `Message`.
        let read = check(unsafe { libc::syscall(libc::SYS_read, self.descriptor.number(), &raw mut message, len) });
        match read {
            Ok(read) if read == len => Ok(Some(event(&message))),
            Ok(read) => Err(io::Error::other(format!("userfaultfd gave {read} bytes for an event"))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn transfer(&self, request: u64, dst: usize, src: usize, len: usize) -> Result<(), MoveError> {
        stepwise(len, |done| {
            let (dst, src, len) = ((dst + done) as u64, (src + done) as u64, (len - done) as u64);
            let mut transfer = abi::Transfer { dst, src, len, mode: self.mode(), done: 0 };
            let result = self.raw_ioctl(request, &mut transfer);
            (result, transfer.done)
        })
    }

    fn ioctl<T: Send>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        match self.raw_ioctl(request, argument) {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// 0 or the error number. An error that other files than a userfaultfd give may come from a file that the program
    /// has put in its place. The call is then repeated where the number is certainly ours.
    fn raw_ioctl<T: Send>(&self, request: u64, argument: &mut T) -> i32 {
        match raw_ioctl(self.descriptor.number(), request, argument) {
            libc::EBADF | libc::ENOTTY => self.descriptor.elsewhere(|number| raw_ioctl(number, request, argument)),
            libc::EINVAL if !own_table::inside() && !self.descriptor.is_here() => {
                self.descriptor.elsewhere(|number| raw_ioctl(number, request, argument))
            }
            result => result,
        }
    }
}

/// Repeats `step`, with the bytes done so far, until `len` bytes are done. A step returns its error number, and the
/// progress that the kernel reported.
fn stepwise(len: usize, mut step: impl FnMut(usize) -> (i32, i64)) -> Result<(), MoveError> {
    let (mut done, mut idle) = (0, 0);
    loop {
        let (number, progress) = step(done);
        if number == 0 {
            return Ok(());
        }
        if progress > 0 {
            done += progress as usize;
            idle = 0;
            if done >= len {
                return Ok(());
            }
        } else if number == libc::EAGAIN && idle < MOST_RETRIES {
            idle += 1;
            cpu::yield_now();
        } else if done > 0 {
            return Err(MoveError::Partial { moved: done });
        } else {
            return Err(MoveError::from_errno(number));
        }
    }
}

fn range(addr: usize, len: usize) -> Range {
    Range { start: addr as u64, len: len as u64 }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> UffdError {
    move |error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => UffdError::NotPermitted,
        Some(libc::ENOSYS) => UffdError::NotSupported,
        _ => UffdError::System { what, error },
    }
}

/// 0 or the error number. `argument` is the structure of `request`, whose size field is its size.
fn raw_ioctl<T>(fd: RawFd, request: u64, argument: &mut T) -> i32 {
    debug_assert_eq!((request >> 16) as usize & 0x3fff, size_of::<T>());
    // SAFETY: the kernel reads and writes as many bytes at `argument` as the request's size field says, which is the
    // size of T. Each caller in this crate answers for the effect on the ranges named inside (see `memory`).
    match unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &raw mut *argument) } {
        -1 => errno(),
        _ => 0,
    }
}

/// Opens a descriptor that has not done the handshake yet.
fn pass(door: Door) -> Result<OwnedFd, UffdError> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let opened = match door {
        // SAFETY: takes no pointers.
        Door::Syscall => check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) }),
        // SAFETY: takes no pointers.
        Door::UserModeOnly => check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | abi::USER_MODE_ONLY) }),
        Door::Device => {
            let new = |device: RawFd| {
                // SAFETY: this request takes flags, no pointer.
                check(unsafe { libc::syscall(libc::SYS_ioctl, device, abi::USERFAULTFD_IOC_NEW, flags) })
            };
            match kept::userfaultfd() {
                Some(device) => device.with(new),
                None => File::options()
                    .read(true)
                    .write(true)
                    .open("/dev/userfaultfd")
                    .and_then(|device| new(device.as_raw_fd())),
            }
        }
    };
    let fd = opened.map_err(system("opening a userfaultfd"))?;
    // SAFETY: the kernel just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Enables features, and returns those that the kernel offers.
fn shake_hands(fd: &OwnedFd, features: u64) -> Result<u64, UffdError> {
    let mut api = abi::Api { api: abi::API_VERSION, features, ioctls: 0 };
    match raw_ioctl(fd.as_raw_fd(), abi::UFFDIO_API, &mut api) {
        0 => Ok(api.features),
        number => Err(system("UFFDIO_API")(io::Error::from_raw_os_error(number))),
    }
}

fn wanted_features(delivery: Delivery, offered: u64) -> Result<u64, UffdError> {
    let useful = abi::FEATURE_MOVE | abi::FEATURE_THREAD_ID | abi::FEATURE_POISON;
    match delivery {
        Delivery::Monitor => Ok(offered & useful),
        Delivery::Sigbus if offered & abi::FEATURE_SIGBUS == 0 => Err(UffdError::NoFeature("delivery by SIGBUS")),
        Delivery::Sigbus => Ok(offered & useful | abi::FEATURE_SIGBUS),
    }
}

fn event(message: &abi::Message) -> Event {
    match message.event {
        abi::EVENT_PAGEFAULT => Event::Pagefault {
            addr: message.second as usize,
            write: message.first & abi::PAGEFAULT_WRITE != 0,
            thread: message.third as u32,
        },
        event => Event::Other { event },
    }
}

/// Lets several threads sleep until there is an event to read, without an allocation. An event wakes one of them; if
/// they polled or read the userfaultfd itself, it would wake all. That is what they do where no descriptor is left for
/// this, and for a moment.
#[derive(Debug)]
pub struct Waiter<'s> {
    epoll: Option<OwnedFd>,
    stop: &'s EventFd,
    /// Those of the userfaultfd and of the stop, and perhaps others.
    watched: [RawFd; 4],
}

/// What is ready: each descriptor, with its events.
type Ready = [(RawFd, u32); 4];

/// No descriptor. `ppoll` ignores it.
const NONE: RawFd = -1;

impl<'s> Waiter<'s> {
    /// Creates a waiter for events of `uffd` and for `stop`, in the calling thread's descriptor table; and for other
    /// descriptors of that table, while the waiter is used. The second of them is told of once each time that something
    /// arrives there, and not while the thread waits for a moment only.
    pub fn new(uffd: &Userfaultfd, stop: &'s EventFd, others: [Option<RawFd>; 2]) -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let epoll = match taken(unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }) {
            Ok(fd) => Some(fd),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => None,
            Err(error) => return Err(error),
        };
        let [first, second] = others.map(|other| other.unwrap_or(NONE));
        let watched = [uffd.descriptor.number(), stop.number(), first, second];
        if let Some(epoll) = &epoll {
            add(epoll, watched[0], (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32)?;
            for &fd in watched[1..3].iter().filter(|&&fd| fd != NONE) {
                add(epoll, fd, libc::EPOLLIN as u32)?;
            }
            if watched[3] != NONE {
                add(epoll, watched[3], (libc::EPOLLIN | libc::EPOLLET) as u32)?;
            }
        }
        Ok(Waiter { epoll, stop, watched })
    }

    /// Sleeps until there may be an event to read (another thread may be faster), until another descriptor is
    /// readable, for a `moment` if one is given, or until `stop` is signalled, which takes precedence.
    ///
    /// # Errors
    /// Kernel errors. An error condition on a descriptor is one, too.
    pub fn wait(&self, moment: Option<Duration>) -> io::Result<Woken> {
        let ready = match (&self.epoll, moment) {
            (Some(epoll), None) => wait_in(epoll),
            _ => self.poll(moment),
        };
        let ready = match ready {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => return Ok(Woken::Event),
            ready => ready?,
        };
        if self.stop.is_signalled() {
            return Ok(Woken::Stopped);
        }
        if ready.iter().any(|&(fd, events)| fd != NONE && fd == self.watched[3] && events != 0) {
            return Ok(Woken::Told);
        }
        match ready.iter().find(|&&(_, events)| events != 0 && events & libc::EPOLLIN as u32 == 0) {
            Some((_, events)) => Err(io::Error::other(format!("userfaultfd reports poll events {events:#x}"))),
            None => Ok(Woken::Event),
        }
    }

    /// Waits for any of them, without epoll.
    fn poll(&self, moment: Option<Duration>) -> io::Result<Ready> {
        let mut watched = self.watched.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        if moment.is_some() {
            watched[3].fd = NONE;
        }
        let mut limit = moment.map(|moment| libc::timespec {
            tv_sec: moment.as_secs() as libc::time_t,
            tv_nsec: moment.subsec_nanos().into(),
        });
        let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: entries and a time of this frame, which the kernel changes, or no time; and no signal mask.
        let polled = check(unsafe {
            libc::syscall(libc::SYS_ppoll, watched.as_mut_ptr(), watched.len(), limit, 0usize, 0usize)
        });
        unless_limited(polled, moment)?;
        Ok(watched.map(|of| (of.fd, of.revents as u32)))
    }
}

/// How long a thread sleeps at most where it may not poll.
const UNPOLLED: Duration = Duration::from_millis(1);

/// The result of a poll. Where the program's limit of descriptors is below their number, the kernel refuses it: sleeps
/// a moment instead, and the caller has to look.
pub(crate) fn unless_limited(polled: io::Result<usize>, moment: Option<Duration>) -> io::Result<()> {
    match polled {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            futex::sleep(moment.map_or(UNPOLLED, |moment| moment.min(UNPOLLED)));
        }
        other => drop(other?),
    }
    Ok(())
}

/// Adds a descriptor to those that are watched. Its events carry its number.
fn add(epoll: &OwnedFd, fd: RawFd, events: u32) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: fd as u64 };
    // SAFETY: the kernel reads an event of this frame.
    let added =
        unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    check(added).map(drop)
}

fn wait_in(epoll: &OwnedFd) -> io::Result<Ready> {
    let mut ready = [libc::epoll_event { events: 0, u64: NONE as u64 }; 4];
    let (len, forever) = (ready.len(), -1);
    // SAFETY: entries of this frame, no timeout, and no signal mask.
    check(unsafe {
        libc::syscall(libc::SYS_epoll_pwait, epoll.as_raw_fd(), ready.as_mut_ptr(), len, forever, 0usize, 0usize)
    })?;
    Ok(ready.map(|event| (event.u64 as RawFd, event.events)))
}

/// A descriptor that wakes other threads' polls. Once signalled, it stays so.
#[derive(Debug)]
pub struct EventFd {
    descriptor: Descriptor,
    is_signalled: AtomicBool,
}

impl EventFd {
    /// Creates one that is not signalled, hidden from the program ([`Descriptor::hidden`]).
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn new() -> io::Result<Self> {
        let descriptor = Self::open().and_then(Descriptor::hidden)?;
        Ok(EventFd { descriptor, is_signalled: AtomicBool::new(false) })
    }

    fn open() -> io::Result<OwnedFd> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: takes no pointers.
        taken(unsafe { libc::syscall(libc::SYS_eventfd2, 0, flags) })
    }

    /// Its number in the engine's table.
    pub(crate) fn number(&self) -> RawFd {
        self.descriptor.number()
    }

    /// In a forked child, before it has another thread: a descriptor of the child's own in place of the parent's.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn renew(&self) -> io::Result<()> {
        self.is_signalled.store(false, Ordering::SeqCst);
        self.descriptor.renew(Self::open()?)
    }

    /// Signals it, for all present and future waiters.
    pub fn signal(&self) {
        self.is_signalled.store(true, Ordering::SeqCst);
        let one = 1u64;
        let write = |number: RawFd| {
            // SAFETY: eight bytes of this frame. If the counter is full (EAGAIN), it is signalled already.
            unsafe { libc::syscall(libc::SYS_write, number, &raw const one, size_of::<u64>()) }
        };
        // Happens once in an arena's life, so the slower call that certainly hits our file is affordable.
        self.descriptor.elsewhere(write);
    }

    /// Whether it is signalled.
    pub fn is_signalled(&self) -> bool {
        self.is_signalled.load(Ordering::SeqCst)
    }
}
