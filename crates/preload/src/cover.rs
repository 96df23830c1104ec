//! System calls in direct mode. The kernel does not wait for a missing page there: the call fails with EFAULT.
//!
//! Three covers, from the strongest to the cheapest:
//! - *bounce*: up to 256 KiB go through memory that is not managed. Nothing can go wrong, not even for a datagram,
//!   which the kernel drops when it cannot deliver it, or for a read that sleeps for hours;
//! - *hold*: larger transfers of regular files and block devices, a few folios at a time, which are kept in RAM
//!   meanwhile. Such calls do not sleep for long;
//! - *touch*: paths and structures are brought in before the call, and again when it failed with EFAULT, which such
//!   calls do before they have done anything (those that do not are in `calls::results`).
//!
//! In monitor mode the kernel waits as for any page, and only what it pins is covered: see [`pins`].

use std::ffi::{c_char, c_int, c_void};

use crate::heap::PRIVATE;
use crate::real::kernel;
use crate::{guard, state};

/// Whether the kernel pins pages of the range while it reads or writes them: a descriptor with O_DIRECT. In monitor mode
/// that is all there is to cover: a buffer larger than the budget could not be in RAM at once, and what is pinned must
/// not be copied away. (In direct mode everything is covered, this too.)
pub fn pins(fd: c_int, addr: usize, len: usize) -> bool {
    if state::space().is_none() || state::direct() || !state::overlaps(addr, len) || guard::inside() {
        return false;
    }
    // SAFETY: takes no pointers.
    let flags = unsafe { kernel!(libc::SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags as c_int & libc::O_DIRECT != 0
}

/// The longest transfer through a bounce buffer.
const BOUNCE_BYTES: usize = 256 << 10;

/// The longest message; a longer one cannot be sent (EMSGSIZE). Linux allows sockets no buffers of this size by far, unless it is told to.
pub const MOST_MESSAGE_BYTES: usize = 16 << 20;

/// The longest transfer that folios are held for at a time.
const PIECE_BYTES: usize = 4 << 20;

const FOLIO_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// How often a call that failed with EFAULT is repeated.
const MOST_REPEATS: usize = 1000;

/// Whether the kernel may find pages of the range missing.
pub fn needed(addr: usize, len: usize) -> bool {
    state::direct() && len > 0 && state::overlaps(addr, len) && !guard::inside()
}

/// Whether it takes more than a bounce buffer: what the descriptor is makes no difference to shorter transfers.
pub fn exceeds_bounce(len: usize) -> bool {
    len > BOUNCE_BYTES
}

/// Brings in what is managed of a range.
pub fn touch<T>(at: *const T, len: usize) {
    if needed(at as usize, len)
        && let Some(space) = state::space()
    {
        let part = state::cut(at as usize, len)[1].clone();
        let _guard = guard::enter();
        space.touch(part.start, part.len());
    }
}

/// Brings in a C string. Null is none.
pub fn text(at: *const c_char) {
    if needed(at as usize, 1) {
        // SAFETY: the caller's caller gives a C string; this reads, and so brings in, all of it.
        let len = unsafe { libc::strlen(at) };
        touch(at, len + 1);
    }
}

/// Brings in one value. Null is none.
pub fn value<T>(at: *const T) {
    touch(at, size_of::<T>());
}

/// Brings in a null-terminated list of C strings, and the strings.
pub fn texts(list: *const *const c_char) {
    if list.is_null() || !state::direct() {
        return;
    }
    let mut at = list;
    loop {
        value(at);
        // SAFETY: the caller's caller gives a list that a null ends.
        let entry = unsafe { *at };
        if entry.is_null() {
            return;
        }
        text(entry);
        // SAFETY: as above: the list goes on.
        at = unsafe { at.add(1) };
    }
}

/// What a call returned.
pub trait Outcome {
    /// Whether it says that errno is set.
    fn is_failure(&self) -> bool;
}

impl Outcome for c_int {
    fn is_failure(&self) -> bool {
        *self < 0
    }
}

impl Outcome for isize {
    fn is_failure(&self) -> bool {
        *self < 0
    }
}

impl Outcome for i64 {
    fn is_failure(&self) -> bool {
        *self < 0
    }
}

impl<T> Outcome for *mut T {
    fn is_failure(&self) -> bool {
        self.is_null()
    }
}

/// Brings in what the call needs, calls, and repeats both while a page is missing after all.
pub fn repeat<R: Outcome>(touch: impl Fn(), call: impl Fn() -> R) -> R {
    if !state::direct() || guard::inside() {
        return call();
    }
    let mut left = MOST_REPEATS;
    loop {
        touch();
        let result = call();
        left -= 1;
        if left == 0 || !result.is_failure() || state::errno() != libc::EFAULT {
            return result;
        }
    }
}

/// Memory that is not managed, at the same place within its page as the buffer that it stands in for: what O_DIRECT
/// asks of the one holds for the other.
pub struct Bounce {
    block: *mut u8,
    offset: usize,
}

impl Bounce {
    pub fn new(stands_for: usize, len: usize) -> Option<Bounce> {
        let _guard = guard::enter();
        let offset = stands_for % PAGE_BYTES;
        let block = PRIVATE.allocate(offset + len, PAGE_BYTES);
        (!block.is_null()).then_some(Bounce { block, offset })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the block is longer than the offset.
        unsafe { self.block.add(self.offset) }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let _guard = guard::enter();
        let errno = state::errno();
        // SAFETY: this bounce's own block.
        unsafe { PRIVATE.release(self.block) };
        state::fail(errno);
    }
}

/// Keeps the folios of a range in RAM until dropped.
pub struct Held(std::ops::Range<usize>);

impl Held {
    /// Holds what is managed of a range of [`PIECE_BYTES`] at most.
    pub fn new(addr: usize, len: usize) -> Held {
        let ours = len > 0 && state::overlaps(addr, len) && !guard::inside();
        let part = if ours { state::cut(addr, len)[1].clone() } else { 0..0 };
        if let Some(space) = state::space().filter(|_| !part.is_empty()) {
            let _guard = guard::enter();
            // SAFETY: memory that the program has mapped: it is in use by the call that this is for.
            unsafe { space.hold(part.start, part.len()) };
        }
        Held(part)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(space) = state::space().filter(|_| !self.0.is_empty()) {
            let errno = state::errno();
            let _guard = guard::enter();
            // SAFETY: held by `new`.
            unsafe { space.release_hold(self.0.start, self.0.len()) };
            state::fail(errno);
        }
    }
}

/// The next piece of a range that folios are held for: it ends with a folio.
pub fn piece(addr: usize, left: usize) -> usize {
    left.min(PIECE_BYTES - addr % FOLIO_BYTES)
}

/// What a descriptor is, as far as long transfers differ.
pub enum Kind {
    /// Calls do not sleep for long, and give all that is asked for but at the end.
    Storage,
    /// A character device: it gives what it has, which may be all that is asked for.
    Characters,
    /// A socket on which a call is a message.
    Datagrams,
    /// Bytes in a row, of which a call may take any part.
    Stream,
}

pub fn kind(fd: c_int) -> Kind {
    // SAFETY: all zero is a valid value, and the kernel fills in the locals.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if kernel!(libc::SYS_fstat, fd, &raw mut about) != 0 {
            return Kind::Stream;
        }
        let (mut socket, mut len) = (libc::SOCK_STREAM, size_of::<c_int>() as u32);
        match about.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFBLK => Kind::Storage,
            libc::S_IFCHR => Kind::Characters,
            libc::S_IFSOCK => {
                let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
                kernel!(libc::SYS_getsockopt, fd, level, name, &raw mut socket, &raw mut len);
                if socket == libc::SOCK_STREAM { Kind::Stream } else { Kind::Datagrams }
            }
            _ => Kind::Stream,
        }
    }
}

/// How a transfer of several pieces goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// The kernel gives or takes all at once where it can; folios are held. For what exceeds a bounce buffer.
    Storage,
    /// The kernel pins what it reads and writes; folios are held, however short the transfer.
    Pinned,
    /// Go on until all is done; through a bounce buffer.
    All,
    /// What the first piece gives is enough; through a bounce buffer.
    First,
    /// One call for all of it, a message; through a bounce buffer of [`MOST_MESSAGE_BYTES`] at most.
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
        if held {
            return call(at as *mut c_void, len, done);
        }
        let Some(bounce) = Bounce::new(at, len) else { return no_memory() };
        let result = call(bounce.as_ptr().cast(), len, done);
        if result > 0 {
            // SAFETY: the kernel has filled in that many bytes of the one (never more than its length), and the other
            // is the program's buffer. No lock is held.
            unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), at as *mut u8, len.min(result as usize)) };
        }
        result
    })
}

/// Sends from a buffer; as [`receive`].
pub fn send(
    buffer: *const c_void,
    len: usize,
    pieces: Pieces,
    call: impl Fn(*const c_void, usize, usize) -> isize,
) -> isize {
    if pieces != Pieces::Pinned && !needed(buffer as usize, len) {
        return call(buffer, len, 0);
    }
    if pieces == Pieces::Whole && len > MOST_MESSAGE_BYTES {
        state::fail(libc::EMSGSIZE);
        return -1;
    }
    transfer(buffer as usize, len, pieces, |at, len, done, held| {
        if held {
            return call(at as *const c_void, len, done);
        }
        let Some(bounce) = Bounce::new(at, len) else { return no_memory() };
        // SAFETY: the program's buffer, and a fresh block. No lock is held.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, bounce.as_ptr(), len) };
        call(bounce.as_ptr().cast_const().cast(), len, done)
    })
}

fn no_memory() -> isize {
    state::fail(libc::ENOMEM);
    -1
}

fn transfer(buffer: usize, len: usize, pieces: Pieces, one: impl Fn(usize, usize, usize, bool) -> isize) -> isize {
    let mut done = 0;
    loop {
        let at = buffer + done;
        let held = matches!(pieces, Pieces::Storage | Pieces::Pinned);
        let want = match pieces {
            Pieces::Storage | Pieces::Pinned => piece(at, len - done),
            Pieces::Whole => MOST_MESSAGE_BYTES.min(len),
            Pieces::All | Pieces::First => BOUNCE_BYTES.min(len - done),
        };
        let result = {
            let _held = held.then(|| Held::new(at, want));
            one(at, want, done, held)
        };
        if result < 0 {
            return if done > 0 { done as isize } else { result };
        }
        if result as usize > want {
            return result; // MSG_TRUNC tells how long the datagram was
        }
        done += result as usize;
        if (result as usize) < want || done == len || matches!(pieces, Pieces::First | Pieces::Whole) {
            return done as isize;
        }
    }
}
