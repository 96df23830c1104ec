//! A descriptor table for the engine's threads, which the program's threads do not share.
//!
//! Daemons and shells close, replace or list all descriptors of their table, even those that they did not open. So the
//! engine's threads have a table of their own. It inherits none of the program's descriptors: an inherited pipe end
//! would delay EOF for its reader. One thread, the *keeper*, creates that table and all threads that share it, and
//! makes calls for the program's threads that need its table ([`run`]) or are not to use theirs ([`briefly`]).
//!
//! There is one keeper for each process, from its first use on. A forked child has none, and starts its own. [`run`]
//! itself allocates only to start threads: it is called in signal handlers.

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::static_tls::StaticTls;
use crate::{
    check, fault_stack, futex, hidden_numbers, memory, open_at, own_calls, seat, signals, static_tls, taken, vforked,
};

static_tls! {
    static INSIDE: bool = "folioswap_inside";
}

/// Whether the calling thread uses the keeper's table. Such threads are the engine's own.
pub fn inside() -> bool {
    INSIDE.get()
}

/// Starts a thread with the keeper's table, and with signals blocked (see [`signals::block_all`]).
///
/// # Errors
/// EAGAIN: too many threads. The kernel's error if the keeper could not start.
pub fn spawn(name: &str, stack_bytes: usize, body: impl FnOnce() + Send + 'static) -> io::Result<seat::Thread> {
    let body = move || {
        INSIDE.set(true);
        body();
    };
    run(|| seat::spawn(name, stack_bytes, Box::new(body)))?
}

/// Lets the keeper make a call, with its own table, and waits for it. Calls are serialised.
///
/// # Errors
/// The kernel's error if the keeper could not start.
pub fn run<R: Send>(call: impl FnOnce() -> R + Send) -> io::Result<R> {
    if inside() {
        return Ok(call());
    }
    // A handler of the program must not fault while this thread occupies the keeper.
    let _blocked = signals::block_all();
    keeper()?.run(call)
}

/// Makes a call that opens a descriptor and closes it again, in the keeper's table once the keeper has begun. In the
/// program's it would take the lowest free number, which another thread may be about to get or to replace. If one table
/// has no room, the other one may have.
///
/// The closure and its result own what they refer to: the caller's stack may be memory that the keeper must not touch.
///
/// # Errors
/// The call's; as [`run`].
pub fn briefly<R: Send + 'static>(mut call: impl FnMut() -> io::Result<R> + Send + 'static) -> io::Result<R> {
    let is_full = |made: &io::Result<R>| made.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE));
    // A child of vfork has a table of its own. A filter of the program's might end the keeper.
    let is_keepers = has_begun() && !vforked::is_child() && !own_calls::is_used();
    if !is_keepers {
        let made = call();
        if !is_full(&made) {
            return made;
        }
    }
    fault_stack::run(move || {
        let made = run(&mut call)?;
        if is_keepers && is_full(&made) { call() } else { made }
    })
}

/// Copies a hidden descriptor of the program's table into the keeper's, and returns its number there. A keeper that has
/// not begun will have it with the same number.
///
/// # Errors
/// EMFILE. The kernel's error if the keeper could not start, or if the program has closed its socket.
pub fn import(fd: BorrowedFd<'_>) -> io::Result<RawFd> {
    let _blocked = signals::block_all();
    let keeper = keeper()?;
    let _alone = keeper.importing.lock().expect("nothing panics under this lock");
    let Some([ours, theirs]) = keeper.sockets() else { return Ok(fd.as_raw_fd()) };
    send(ours, fd.as_raw_fd())?;
    keeper.run(|| receive(theirs, libc::MSG_DONTWAIT))?
}

/// Copies a descriptor of the keeper's table, which is open for reading and writing, into the calling thread's.
///
/// # Errors
/// EMFILE. The kernel's error if the keeper could not start, or if neither Linux is 6.9 nor there is `/proc`.
pub fn export(number: RawFd) -> io::Result<OwnedFd> {
    const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
    // SAFETY: takes no pointers.
    let flags = || unsafe { libc::syscall(libc::SYS_fcntl, number, libc::F_GETFL) };
    let (keeper, flags) = run(|| (signals::thread_id(), flags()))?;
    copy_of(keeper, PIDFD_THREAD, number).or_else(|_| {
        let path = CString::new(format!("/proc/self/task/{keeper}/fd/{number}")).expect("no NUL");
        open_at(libc::AT_FDCWD, &path, libc::O_RDWR | flags as libc::c_int & libc::O_DIRECT)
    })
}

/// Writes text to the program's standard error in one call, from any thread. Bypasses all buffers and locks of the
/// process, which the interrupted code may hold. A failure cannot be reported anywhere.
pub fn write_to_stderr(parts: [&str; 3]) {
    if HAS_NO_STDERR.load(Ordering::Relaxed) {
        return;
    }
    let parts = parts.map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
    // SAFETY: the kernel reads the bytes of borrowed strings.
    let write = |number: RawFd| unsafe { libc::syscall(libc::SYS_writev, number, parts.as_ptr(), parts.len()) };
    if !inside() {
        write(libc::STDERR_FILENO);
    } else if let Some(number) = kept_stderr() {
        write(number);
    } else if let Ok(stderr) = program_stderr() {
        write(stderr.as_raw_fd());
    }
}

/// The program was started without a standard error. The number may have become that of a file of its own.
static HAS_NO_STDERR: AtomicBool = AtomicBool::new(false);

/// Notes whether the program was started without a standard error. Called before it opens files.
pub fn note_stderr() {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, libc::STDERR_FILENO, libc::F_GETFD) };
    HAS_NO_STDERR.store(flags == -1, Ordering::Relaxed);
}

/// Keeps the program's standard error open in the keeper's table: soon the program's filter may refuse what
/// [`write_to_stderr`] does otherwise.
///
/// # Errors
/// As [`import`].
pub fn keep_stderr() -> io::Result<()> {
    // SAFETY: a number of this process's table. If nothing is open there, the kernel says so.
    let number = import(unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) })?;
    keeper()?.stderr.store(number, Ordering::Relaxed);
    Ok(())
}

fn kept_stderr() -> Option<RawFd> {
    let known = known().ok()?;
    // SAFETY: null, or a keeper that was leaked.
    let keeper = unsafe { known.keeper.load(Ordering::Acquire).as_ref() }?;
    let number = keeper.stderr.load(Ordering::Relaxed);
    (number >= 0).then_some(number)
}

/// A copy of the program's current standard error, for a thread whose own table has none. Nothing is kept open, so a
/// reader of a stream that the program has closed sees its end.
fn program_stderr() -> io::Result<OwnedFd> {
    // A pidfd of the process stands for its first thread, whose table is the program's.
    let copied = copy_of(std::process::id(), 0, libc::STDERR_FILENO);
    // A sandbox may forbid that. A path gives the same file, except for a socket.
    copied.or_else(|_| open_at(libc::AT_FDCWD, c"/proc/self/fd/2", libc::O_WRONLY | libc::O_APPEND))
}

/// A copy of a descriptor of a thread of this process. The flags are those of `pidfd_open`.
fn copy_of(thread: u32, flags: libc::c_int, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let pidfd = taken(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) })?;
    // SAFETY: takes no pointers.
    taken(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) })
}

/// A call to be made. Lives on the stack of the thread that waits for it.
struct Job {
    call: unsafe fn(*mut ()),
    data: *mut (),
}

/// The process's keeper.
struct Keeper {
    /// Held from posting a job until it is done.
    turn: Mutex<()>,
    /// Held from sending a descriptor until it has arrived.
    importing: Mutex<()>,
    job: AtomicPtr<Job>,
    /// Jobs posted so far. The keeper sleeps on it.
    nr_posted: AtomicU32,
    /// Jobs done so far. The thread that waits for one sleeps on it.
    nr_done: AtomicU32,
    /// The socket that descriptors travel through: its end in the program's table, and its end in the keeper's. -1: the
    /// thread has not begun.
    sockets: [AtomicI32; 2],
    /// The program's standard error in the keeper's table, if it is kept; else negative.
    stderr: AtomicI32,
}

/// What a process knows about its keeper.
struct Known {
    keeper: AtomicPtr<Keeper>,
    /// Whether a thread is starting one now.
    starting: AtomicU32,
}

/// The page is zeroed in every child with a copy of the memory, however the child was created: such a child has no
/// keeper. A vfork child shares the memory, and its parent's keeper serves it.
fn known() -> io::Result<&'static Known> {
    static PAGE: OnceLock<usize> = OnceLock::new();
    let page = match PAGE.get() {
        Some(&page) => page,
        None => {
            let made = memory::wiped_on_fork()?;
            let addr = made.addr();
            let page = *PAGE.get_or_init(|| addr);
            if page == addr {
                made.leak(); // otherwise another thread was faster
            }
            page
        }
    };
    // SAFETY: the page is never unmapped, large enough and aligned. Zeros are a valid `Known`, and its fields are
    // atomics.
    Ok(unsafe { &*(page as *const Known) })
}

fn keeper() -> io::Result<&'static Keeper> {
    let known = known()?;
    loop {
        // SAFETY: null, or a keeper that was leaked.
        if let Some(keeper) = unsafe { known.keeper.load(Ordering::Acquire).as_ref() } {
            return Ok(keeper);
        }
        if known.starting.swap(1, Ordering::Acquire) == 0 {
            // SAFETY: as above. Another thread may have been faster since the check.
            let started = unsafe { known.keeper.load(Ordering::Acquire).as_ref() }.map_or_else(start, Ok);
            if let Ok(keeper) = &started {
                known.keeper.store(ptr::from_ref(*keeper).cast_mut(), Ordering::Release);
            }
            known.starting.store(0, Ordering::Release);
            futex::wake_all(&known.starting);
            return started;
        }
        futex::wait(&known.starting, 1);
    }
}

/// Whether the keeper's thread has begun. Until then its table will be a copy of the program's.
pub(crate) fn has_begun() -> bool {
    // SAFETY: null, or a keeper that was leaked.
    let keeper = known().ok().and_then(|known| unsafe { known.keeper.load(Ordering::Acquire).as_ref() });
    keeper.is_some_and(|keeper| keeper.sockets().is_some())
}

/// Identifies this process's keeper by a number that no other keeper has; 0 if there is none.
pub(crate) fn current() -> usize {
    known().map_or(0, |known| known.keeper.load(Ordering::Acquire) as usize) // keepers are never freed
}

const KEEPER_STACK_BYTES: usize = 128 << 10;

/// The numbers of the standard streams. None of the engine's descriptors may have one, because the process prints
/// there.
const NR_STREAMS: RawFd = 3;

/// Makes this process's keeper. Its thread begins at once, but in a forked child only when it is needed: many children
/// never need it.
fn start() -> io::Result<&'static Keeper> {
    seat::inherit();
    let keeper: &'static Keeper = Box::leak(Box::new(Keeper {
        turn: Mutex::new(()),
        importing: Mutex::new(()),
        job: AtomicPtr::new(null_mut()),
        nr_posted: AtomicU32::new(0),
        nr_done: AtomicU32::new(0),
        sockets: [const { AtomicI32::new(-1) }; 2],
        stderr: AtomicI32::new(-1),
    }));
    if !seat::are_inherited() {
        keeper.begin()?;
    }
    Ok(keeper)
}

/// What a new keeper says of its table.
const LEAVES: u32 = 0;
const HAS_LEFT: u32 = 1;

/// Gives the calling thread a table of its own that holds only `kept`, in ascending order, and fills the places of the
/// standard streams. `has_copy`: the thread's table is a copy already.
fn leave_table(kept: &[RawFd], has_copy: bool) -> io::Result<()> {
    let flags = if has_copy { 0 } else { libc::CLOSE_RANGE_UNSHARE };
    close_range(kept.last().map_or(0, |last| last + 1), RawFd::MAX, flags)?;
    let mut first = 0;
    for &number in kept {
        if number > first {
            close_range(first, number - 1, 0)?;
        }
        first = number + 1;
    }
    // Text printed there by mistake is lost without an error. If there is no /dev/null, an eventfd fills the place.
    for _ in 0..NR_STREAMS {
        // SAFETY: the path is NUL-terminated. No other code owns this table, and the three stay open for good.
        let opened = check(unsafe {
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)
        });
        // SAFETY: takes no pointers.
        opened.or_else(|_| check(unsafe { libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC) }))?;
    }
    Ok(())
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: takes no pointers. Only the keeper calls this, and its table is its own from the first call on.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

impl Keeper {
    /// The sockets, if its thread has begun.
    fn sockets(&self) -> Option<[RawFd; 2]> {
        let sockets = [&self.sockets[0], &self.sockets[1]].map(|socket| socket.load(Ordering::Acquire));
        (sockets[1] >= 0).then_some(sockets)
    }

    /// As [`Keeper::try_begin`], also if the program uses all of its descriptors.
    fn begin(&'static self) -> io::Result<()> {
        self.try_begin().or_else(|error| match error.raw_os_error() {
            Some(libc::EMFILE) => {
                let _raised = hidden_numbers::raise_limit(); // for a moment
                self.try_begin()
            }
            _ => Err(error),
        })
    }

    /// Starts its thread, which takes a table of its own, and waits for that.
    fn try_begin(&'static self) -> io::Result<()> {
        let (ours, theirs) = socket_pair()?;
        let ours = hidden_numbers::hide_number(ours)?;
        let number = theirs.as_raw_fd();
        // The outcome is an error number, or 0, and comes before the state.
        let said: &'static [AtomicU32; 2] = Box::leak(Box::new([const { AtomicU32::new(LEAVES) }; 2]));
        let has_copy = seat::are_inherited();
        let mut kept = vec![number];
        if has_copy {
            kept.extend(hidden_numbers::all());
            kept.sort_unstable();
        }
        let body = move || {
            INSIDE.set(true);
            seat::leave_model();
            let left = leave_table(&kept, has_copy);
            let has_left = left.is_ok();
            said[0].store(
                left.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO) as u32),
                Ordering::Relaxed,
            );
            said[1].store(HAS_LEFT, Ordering::Release);
            futex::wake_all(&said[1]);
            if has_left {
                self.serve();
            }
        };
        let name = "folioswap-keeper";
        let started = if has_copy {
            seat::spawn_with_own_table(name, Box::new(body))
        } else {
            seat::spawn(name, KEEPER_STACK_BYTES, Box::new(body))
        };
        drop(started.inspect_err(|_| hidden_numbers::close_hidden(ours))?);
        while said[1].load(Ordering::Acquire) == LEAVES {
            futex::wait(&said[1], LEAVES);
        }
        if let number @ 1.. = said[0].load(Ordering::Relaxed) {
            hidden_numbers::close_hidden(ours);
            return Err(io::Error::from_raw_os_error(number as i32));
        }
        self.sockets[0].store(ours, Ordering::Relaxed);
        self.sockets[1].store(number, Ordering::Release);
        Ok(())
    }

    fn serve(&self) -> ! {
        loop {
            let seen = self.nr_posted.load(Ordering::Acquire);
            let job = self.job.swap(null_mut(), Ordering::AcqRel);
            if job.is_null() {
                futex::wait(&self.nr_posted, seen);
                continue;
            }
            // SAFETY: the thread that posted the job keeps it alive until it is counted as done, and nobody else takes
            // it.
            unsafe { ((*job).call)((*job).data) };
            self.nr_done.fetch_add(1, Ordering::Release);
            futex::wake_all(&self.nr_done);
        }
    }

    fn run<R: Send>(&'static self, call: impl FnOnce() -> R + Send) -> io::Result<R> {
        let mut work = (Some(call), None::<R>);
        let call = make(&work);
        let job = Job { call, data: (&raw mut work).cast() };
        let turn = self.turn.lock().expect("nothing panics under this lock");
        if self.sockets().is_none() {
            self.begin()?;
        }
        self.job.store((&raw const job).cast_mut(), Ordering::Release);
        let number = self.nr_posted.fetch_add(1, Ordering::Release).wrapping_add(1);
        futex::wake_all(&self.nr_posted);
        loop {
            let nr_done = self.nr_done.load(Ordering::Acquire);
            if nr_done == number {
                break;
            }
            futex::wait(&self.nr_done, nr_done);
        }
        drop(turn);
        Ok(work.1.expect("the keeper has made the call"))
    }
}

/// The function that makes the call stored in `work`, given the address of `work`.
fn make<R, F: FnOnce() -> R>(_work: &(Option<F>, Option<R>)) -> unsafe fn(*mut ()) {
    /// # Safety
    /// `data` is the address of such a pair, which nobody else uses meanwhile.
    unsafe fn call<R, F: FnOnce() -> R>(data: *mut ()) {
        // SAFETY: the caller upholds this function's own contract.
        let work = unsafe { &mut *data.cast::<(Option<F>, Option<R>)>() };
        // A panic ends the process: another thread waits for the result, perhaps with locks held.
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.0.take().map(|call| call())));
        work.1 = made.unwrap_or_else(|_| std::process::abort());
    }
    call::<R, F>
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel fills in two numbers of this frame.
    check(unsafe {
        libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
    })?;
    // SAFETY: the kernel just created these descriptors, and nothing else owns them.
    let [ours, theirs] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // Not among the standard streams, whose places the keeper fills.
    // SAFETY: takes no pointers.
    let theirs =
        taken(unsafe { libc::syscall(libc::SYS_fcntl, theirs.as_raw_fd(), libc::F_DUPFD_CLOEXEC, NR_STREAMS) })?;
    Ok((ours, theirs))
}

const CONTROL_BYTES: usize = 64;

/// A message of one byte, with room for one descriptor.
struct Message {
    byte: u8,
    part: libc::iovec,
    control: [u64; CONTROL_BYTES / 8],
}

impl Message {
    fn new() -> Self {
        Message { byte: 0, part: libc::iovec { iov_base: null_mut(), iov_len: 1 }, control: [0; CONTROL_BYTES / 8] }
    }

    /// The message's header, which points into the message.
    fn header(&mut self) -> libc::msghdr {
        self.part.iov_base = (&raw mut self.byte).cast();
        // SAFETY: all zeroes is a valid header: no name, no buffers.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut self.part;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr().cast();
        // SAFETY: only computes a length.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
        header
    }
}

pub(crate) fn send(socket: RawFd, fd: RawFd) -> io::Result<()> {
    let mut message = Message::new();
    let header = message.header();
    // SAFETY: the header's control data is in this frame, and has room for one control message with a number (64
    // bytes). The kernel reads the header and what it points to.
    check(unsafe {
        let control = libc::CMSG_FIRSTHDR(&header);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(fd);
        libc::syscall(libc::SYS_sendmsg, socket, &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
    .map(drop)
}

/// `flags`: of the call.
pub(crate) fn receive(socket: RawFd, flags: libc::c_int) -> io::Result<RawFd> {
    let mut message = Message::new();
    let mut header = message.header();
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes only where the header points, all within this frame.
    check(unsafe { libc::syscall(libc::SYS_recvmsg, socket, &raw mut header, flags) })?;
    // SAFETY: the header as the kernel filled it in. A control message, if present, holds a number.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(&header);
        if control.is_null() || (*control).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::from_raw_os_error(libc::EMFILE)); // the kernel drops a descriptor without a number
        }
        Ok(libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned())
    }
}
