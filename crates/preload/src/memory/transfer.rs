//! Transfers of one buffer, through a bounce buffer or held, in one call or several, by the kind of its descriptor.

use std::ffi::{c_int, c_void};

use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access::Access;
use crate::memory::bounce::Bounce;
use crate::memory::cover::needed;
use crate::memory::held::{Grant, Held, piece, span};
use crate::memory::size_limit;

/// The longest transfer through a bounce buffer.
const BOUNCE_BYTES: usize = 256 << 10;

/// The longest record of a character device that is transferred in one call.
const RECORD_BYTES: usize = 4 << 20;

/// The longest message. A longer one fails with EMSGSIZE. Linux does not allow socket buffers of this size by default.
pub const MOST_MESSAGE_BYTES: usize = 16 << 20;

/// Whether the kernel pins the pages of the range during a transfer, as it does for O_DIRECT. Only such transfers need
/// a cover in monitor mode: a buffer larger than the budget cannot be in RAM at once, and a pinned page must not be
/// moved. False in direct mode, where everything is covered anyway.
pub fn pins(fd: c_int, addr: usize, len: usize) -> bool {
    if state::space().is_none() || state::direct() || !state::overlaps(addr, len) || guard::inside() {
        return false;
    }
    // SAFETY: takes no pointers.
    let flags = unsafe { own!(libc::SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags as c_int & libc::O_DIRECT != 0 && matches!(kind(fd), Kind::Storage)
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
    // SAFETY: all zeroes is a valid `stat`, and the kernel fills in the locals.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if own!(libc::SYS_fstat, fd, &raw mut about) != 0 {
            return Kind::Stream;
        }
        let (mut socket, mut len) = (libc::SOCK_STREAM, size_of::<c_int>() as u32);
        match about.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFBLK => Kind::Storage,
            libc::S_IFCHR => Kind::Characters,
            libc::S_IFSOCK => {
                let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
                own!(libc::SYS_getsockopt, fd, level, name, &raw mut socket, &raw mut len);
                if socket == libc::SOCK_STREAM { Kind::Stream } else { Kind::Datagrams }
            }
            _ => Kind::Stream,
        }
    }
}

/// How a transfer of several pieces proceeds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// The kernel transfers everything where it can. Folios are held. For lengths above a bounce buffer's.
    Storage,
    /// The kernel pins the buffer. Folios are held, however short the transfer is.
    Pinned,
    /// Continue until everything is transferred, through a bounce buffer.
    All,
    /// The same through a large one: a device may take each call for a record.
    Records,
    /// As [`Pieces::All`], but only what is there: a call for a piece after the first is not to wait.
    Available,
    /// One call for the whole message, through a bounce buffer of at most [`MOST_MESSAGE_BYTES`].
    Whole,
}

/// Receives into a buffer. `call(at, len, done)` is the system call for a piece that begins `done` bytes in.
pub fn receive(
    buffer: *mut c_void,
    len: usize,
    pieces: Pieces,
    call: impl Fn(*mut c_void, usize, usize) -> isize,
) -> isize {
    if pieces != Pieces::Pinned && !needed(buffer as usize, len) {
        return call(buffer, len, 0);
    }
    transfer(buffer as usize, len, pieces, |at, len, done, held| {
        if held || !needed(at, len) {
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
    if pieces != Pieces::Pinned && !needed(buffer as usize, len) {
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
    transfer(buffer as usize, len, pieces, |at, len, done, held| {
        if held || !needed(at, len) {
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

fn no_memory() -> isize {
    state::fail(libc::ENOMEM);
    -1
}

fn transfer(buffer: usize, len: usize, pieces: Pieces, one: impl Fn(usize, usize, usize, bool) -> isize) -> isize {
    let (mut done, kept) = (0, state::errno());
    loop {
        let at = buffer + done;
        let held = matches!(pieces, Pieces::Storage | Pieces::Pinned);
        let _kept_out = if held { guard::keep_handlers_out() } else { None }; // one could leave the hold by a jump
        let rest = at..buffer.saturating_add(len);
        let grant = if held { Grant::of(span(&rest)) } else { None };
        let want = match pieces {
            Pieces::Storage | Pieces::Pinned if grant.is_some() => rest.len(),
            Pieces::Storage | Pieces::Pinned => piece(at, len - done),
            Pieces::Records => RECORD_BYTES.min(len - done),
            Pieces::Whole => MOST_MESSAGE_BYTES.min(len),
            Pieces::All | Pieces::Available => BOUNCE_BYTES.min(len - done),
        };
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
