//! Transfers of one buffer, through a bounce buffer or held, in one call or several, by the kind of its descriptor.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null;

use folioswap::PAGE_SIZE;
use libc::{nfds_t, pollfd, sigset_t, timespec};

use crate::ground::export::real;
use crate::ground::real::{By, kernel, own};
use crate::ground::{guard, state};
use crate::memory::access::Access;
use crate::memory::bounce::Bounce;
use crate::memory::cover::needed;
use crate::memory::held::{Grant, Held, piece, span};
use crate::memory::size_limit;
use crate::memory::uncached::{self, File};
use folioswap_sys::own_calls::SIOCATMARK;

/// What the kernel transfers at most in one call.
pub const MOST_BYTES: usize = i32::MAX as usize & !(PAGE_SIZE - 1);

/// Whether a buffer reaches beyond all addresses. The kernel refuses it whatever is there.
pub fn is_impossible(addr: usize, len: usize) -> bool {
    /// Where the addresses of some processors end, as some kernels know.
    const END: usize = (1 << 47) - PAGE_SIZE;
    match addr.checked_add(len) {
        Some(end @ ..=LAST) => end > END && is_refused(addr & !(PAGE_SIZE - 1), end),
        _ => true,
    }
}

/// The last address that a program may have.
const LAST: usize = isize::MAX as usize;

/// Whether the kernel refuses a range for its addresses. The range begins with a page.
fn is_refused(start: usize, end: usize) -> bool {
    // It looks at the range, and then at where the result should go.
    state::keeping_errno(|| {
        // SAFETY: the kernel writes nothing, as no result can go there.
        unsafe { own!(libc::SYS_mincore, start, end - start, usize::MAX) < 0 && state::errno() == libc::ENOMEM }
    })
}

/// The length that a call gets which refuses what no process can have, as far as the kernel takes it into account.
pub fn at_most(buffer: *const c_void, len: usize) -> usize {
    if is_impossible(buffer as usize, len) { len } else { len.min(MOST_BYTES) }
}

/// The longest transfer through a bounce buffer.
const BOUNCE_BYTES: usize = 256 << 10;

/// The longest record of a character device that is transferred in one call.
const RECORD_BYTES: usize = 4 << 20;

/// The longest message. A longer one fails with EMSGSIZE. Linux does not allow socket buffers of this size by default.
pub const MOST_MESSAGE_BYTES: usize = 16 << 20;

/// How a range is transferred whose pages the kernel keeps meanwhile, as it does for O_DIRECT, and on some file systems
/// without it. Only such transfers need a cover in monitor mode: a buffer larger than the budget cannot be in RAM at
/// once, and such a page must not be moved. `None` in direct mode, where everything is covered anyway.
pub fn pins(fd: c_int, addr: usize, len: usize) -> Option<Pieces> {
    if state::space().is_none() || state::direct() || !state::overlaps(addr, len) || guard::inside() {
        return None;
    }
    state::keeping_errno(|| {
        let file = uncached::of(fd);
        // SAFETY: takes no pointers.
        let is_direct = || unsafe { own!(libc::SYS_fcntl, fd, libc::F_GETFL) } as c_int & libc::O_DIRECT != 0;
        match file {
            File::Other => None,
            File::Cached => is_direct().then_some(Pieces::Pinned),
            File::Uncached if is_direct() || exceeds_bounce(len) => Some(Pieces::Pinned),
            File::Uncached => Some(Pieces::Bounced), // a signal may interrupt it
        }
    })
}

/// Whether a transfer is too long for one bounce buffer. The kind of descriptor matters only then.
pub fn exceeds_bounce(len: usize) -> bool {
    len > BOUNCE_BYTES
}

/// Kinds of descriptors that long transfers treat differently.
pub enum Kind {
    /// A regular file or block device. Calls do not sleep for long, and transfer everything up to the end of the file.
    Storage,
    /// A character device. It gives what it has, which may be everything asked for.
    Characters,
    /// A socket on which each call is one message.
    Datagrams,
    /// A byte stream, of which a call may transfer any part.
    Stream,
}

pub fn kind(fd: c_int) -> Kind {
    kind_and_length(fd).0
}

/// The same for a read. A regular file without a length, as procfs and tracefs have, may let its reader wait.
pub fn kind_for_read(fd: c_int) -> Kind {
    match kind_and_length(fd) {
        (Kind::Storage, Some(0)) => Kind::Stream,
        (kind, _) => kind,
    }
}

/// The length is a regular file's.
fn kind_and_length(fd: c_int) -> (Kind, Option<i64>) {
    let Some(about) = about(fd) else { return (Kind::Stream, None) };
    let kind = match about.st_mode & libc::S_IFMT {
        libc::S_IFREG => return (Kind::Storage, Some(about.st_size)),
        libc::S_IFBLK => Kind::Storage,
        libc::S_IFCHR => Kind::Characters,
        libc::S_IFSOCK if number_of(fd, libc::SO_TYPE).is_some_and(|is| is != libc::SOCK_STREAM) => Kind::Datagrams,
        _ => Kind::Stream,
    };
    (kind, None)
}

/// What the kernel says of a descriptor.
fn about(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zeroes is a valid `stat`, which the kernel fills in.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        (own!(libc::SYS_fstat, fd, &raw mut about) == 0).then_some(about)
    }
}

/// How a transfer of several pieces proceeds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// The kernel transfers everything where it can. Folios are held. For lengths above a bounce buffer's.
    Storage,
    /// The kernel pins the buffer. Folios are held, however short the transfer is.
    Pinned,
    /// The kernel would keep the buffer. All of it goes through a bounce buffer.
    Bounced,
    /// Continue until everything is transferred, through a bounce buffer.
    All(Awaits),
    /// The same through a large one: a device may take each call for a record.
    Records,
    /// In the same way, but only what is there: a call for a piece after the first is not to wait.
    Available,
    /// One call for the whole message, through a bounce buffer of at most [`MOST_MESSAGE_BYTES`].
    Whole,
}

/// What is waited for before a later piece ([`goes_on`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Awaits {
    /// Nothing: no signal is to interrupt a transfer between its pieces, or it is not to wait.
    Nothing,
    /// More of this descriptor. This is a cancellation point, if the call for a piece is.
    More(By, c_int),
}

/// Waits until a socket gives, or a pipe takes, more after a first piece.
/// `false`: a signal has interrupted that, or it takes longer than the socket permits. The kernel's own call would have
/// ended there with a part, even if the handler's calls are restarted; one for the next piece would not. A socket is
/// not waited for until it takes more: it may take a part before poll says so.
pub fn goes_on(awaits: Awaits, events: i16) -> bool {
    real!(PPOLL = c"ppoll": fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int);
    let Awaits::More(by, fd) = awaits else { return true };
    if events == libc::POLLOUT && about(fd).is_none_or(|about| about.st_mode & libc::S_IFMT != libc::S_IFIFO) {
        return true;
    }
    if events == libc::POLLIN && is_at_mark(fd) {
        return false;
    }
    // SAFETY: the kernel reads and fills in locals of their sizes.
    unsafe {
        let flags = own!(libc::SYS_fcntl, fd, libc::F_GETFL);
        if flags < 0 || flags as c_int & libc::O_NONBLOCK != 0 {
            return true;
        }
        let (mut limit, mut len) = (libc::timeval { tv_sec: 0, tv_usec: 0 }, size_of::<libc::timeval>() as u32);
        own!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &raw mut limit, &raw mut len);
        let time = timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_usec * 1000 };
        let limit = if time.tv_sec == 0 && time.tv_nsec == 0 { null() } else { &raw const time };
        let mut polled = pollfd { fd, events, revents: 0 };
        let result = match by {
            By::Name => PPOLL.get()(&mut polled, 1, limit, null()),
            By::Number => kernel!(libc::SYS_ppoll, &raw mut polled, 1, limit, 0, 0) as c_int,
        };
        match result {
            0 => false,
            1.. => true,
            _ => state::errno() != libc::EINTR,
        }
    }
}

/// Whether SO_RCVLOWAT of a socket is larger than a bounce buffer.
pub fn awaits_much(fd: c_int) -> bool {
    number_of(fd, libc::SO_RCVLOWAT).is_some_and(|least| least as usize > BOUNCE_BYTES)
}

/// Whether a socket's urgent data is next.
pub fn is_at_mark(fd: c_int) -> bool {
    let mut is = 0 as c_int;
    // SAFETY: the kernel fills in the local.
    let asked = || unsafe { own!(libc::SYS_ioctl, fd, SIOCATMARK, &raw mut is) == 0 };
    number_of(fd, libc::SO_TYPE).is_some() && state::keeping_errno(asked) && is != 0
}

/// An option of a socket that is a number. `None`: it is no socket.
pub fn number_of(fd: c_int, option: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0 as c_int, size_of::<c_int>() as u32);
    // SAFETY: the kernel fills in locals of their sizes.
    let asked = || unsafe { own!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, option, &raw mut value, &raw mut len) };
    (state::keeping_errno(asked) == 0).then_some(value)
}

/// Receives into a buffer. `call(at, len, done)` is the system call for a piece that begins `done` bytes in.
pub fn receive(
    buffer: *mut c_void,
    len: usize,
    pieces: Pieces,
    call: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    let is_covered = matches!(pieces, Pieces::Pinned | Pieces::Bounced) || needed(buffer as usize, len);
    if !is_covered || is_impossible(buffer as usize, len) {
        return call(buffer, len, 0);
    }
    transfer(buffer as usize, len, (pieces, libc::POLLIN), |at, len, done, held| {
        if held || pieces != Pieces::Bounced && !needed(at, len) {
            return call(at as *mut c_void, len, done);
        }
        let bounce = match Bounce::fitting(at, len, Access::Write) {
            Ok(Some(bounce)) => bounce,
            Ok(None) => return call(at as *mut c_void, len, done),
            Err(()) => return no_memory(),
        };
        let result = call(bounce.as_ptr().cast(), len, done);
        // SAFETY: this piece of the program's buffer, of which the bounce buffer covers what may be written.
        unsafe { bounce.empty_result(at, len, result) }
    })
}

/// Sends from a buffer. See [`receive`] for the arguments.
pub fn send(
    buffer: *const c_void,
    len: usize,
    pieces: Pieces,
    call: impl Fn(*const c_void, usize, usize) -> isize,
) -> isize {
    let is_covered = matches!(pieces, Pieces::Pinned | Pieces::Bounced) || needed(buffer as usize, len);
    if !is_covered || is_impossible(buffer as usize, len) {
        return call(buffer, len, 0);
    }
    let has_limit = matches!(pieces, Pieces::Storage | Pieces::Pinned);
    let call = |at, len, done| match done {
        1.. if has_limit => size_limit::go_on(|| call(at, len, done)),
        _ => call(at, len, done),
    };
    if pieces == Pieces::Whole && len > MOST_MESSAGE_BYTES {
        state::fail(libc::EMSGSIZE);
        return -1;
    }
    transfer(buffer as usize, len, (pieces, libc::POLLOUT), |at, len, done, held| {
        if held || pieces != Pieces::Bounced && !needed(at, len) {
            return call(at as *const c_void, len, done);
        }
        let bounce = match Bounce::fitting(at, len, Access::Read) {
            Ok(Some(bounce)) => bounce,
            Ok(None) => return call(at as *const c_void, len, done),
            Err(()) => return no_memory(),
        };
        // SAFETY: this piece of the program's buffer, of which the bounce buffer covers what may be read.
        unsafe { bounce.fill(at) };
        call(bounce.as_ptr().cast_const().cast(), len, done)
    })
}

/// Fails for want of memory.
pub fn no_memory() -> isize {
    state::fail(libc::ENOMEM);
    -1
}

/// Permission to hold a range, or what it begins with, and how much that is.
fn granted(range: &Range<usize>) -> Option<(Grant, usize)> {
    let first = range.start..range.start + piece(range.start, range.len());
    [range.clone(), first].into_iter().find_map(|part| Some((Grant::of(span(&part))?, part.len())))
}

fn transfer(
    buffer: usize,
    len: usize,
    (pieces, events): (Pieces, i16),
    one: impl Fn(usize, usize, usize, bool) -> isize,
) -> isize {
    let (mut done, kept) = (0, state::errno());
    loop {
        let at = buffer + done;
        let may_hold = matches!(pieces, Pieces::Storage | Pieces::Pinned);
        let _kept_out = if may_hold { guard::keep_handlers_out() } else { None }; // one could leave the hold by a jump
        let grant = if may_hold { granted(&(at..buffer.saturating_add(len))) } else { None };
        let held = grant.is_some() || pieces == Pieces::Pinned;
        let want = match (pieces, &grant) {
            (_, Some((_, granted))) => *granted,
            (Pieces::Records, _) => RECORD_BYTES.min(len - done),
            (Pieces::Whole, _) => MOST_MESSAGE_BYTES.min(len),
            _ => BOUNCE_BYTES.min(len - done),
        };
        if let Pieces::All(awaits) = pieces
            && done > 0
            && !goes_on(awaits, events)
        {
            state::fail(kept);
            return done as isize;
        }
        let result = {
            let _held = held.then(|| Held::new(at, want));
            one(at, want, done, held)
        };
        if result < 0 && done > 0 {
            state::fail(kept);
            return done as isize;
        }
        if result < 0 {
            return result;
        }
        if result as usize > want {
            return result; // MSG_TRUNC returns the datagram's full length
        }
        done += result as usize;
        if (result as usize) < want || done == len || pieces == Pieces::Whole {
            return done as isize;
        }
    }
}
