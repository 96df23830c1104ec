//! Covers for system calls in direct mode, where the kernel cannot fault a page in: the call fails with EFAULT.
//!
//! - *bounce*: up to 256 KiB go through unmanaged memory. Safe for every call, even for a datagram, which the kernel
//!   drops when it cannot copy it out, or for a read that sleeps for hours.
//! - *hold*: longer transfers of files and block devices go a few folios at a time, held in RAM. Such calls do not
//!   sleep long.
//! - *touch*: paths and structures are faulted in before the call, and again if it failed with EFAULT. Such calls fail
//!   before they have any effect. (`calls::results` handles the others.)
//!
//! In monitor mode the kernel waits for a missing page, so only pinned buffers are covered: see [`pins`].

use std::ffi::{c_char, c_int, c_void};

use crate::alloc::heap::PRIVATE;
use crate::real::kernel;
use crate::{guard, state};

/// Whether the kernel pins the pages of the range during a transfer, as it does for O_DIRECT. Only such transfers need
/// a cover in monitor mode: a buffer larger than the budget cannot be in RAM at once, and a pinned page must not be
/// moved. False in direct mode, where everything is covered anyway.
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

/// The longest message. A longer one fails with EMSGSIZE. Linux does not allow socket buffers of this size by default.
pub const MOST_MESSAGE_BYTES: usize = 16 << 20;

/// The longest transfer for which folios are held at a time.
const PIECE_BYTES: usize = 4 << 20;

const BLOCK_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// How often a call that failed with EFAULT is repeated at most.
const MOST_REPEATS: usize = 1000;

/// Whether the kernel may find pages of the range missing.
pub fn needed(addr: usize, len: usize) -> bool {
    state::direct() && len > 0 && state::overlaps(addr, len) && !guard::inside()
}

/// Whether a transfer is too long for one bounce buffer. The kind of descriptor matters only then.
pub fn exceeds_bounce(len: usize) -> bool {
    len > BOUNCE_BYTES
}

/// Faults in the managed part of a range.
pub fn touch<T>(at: *const T, len: usize) {
    if needed(at as usize, len)
        && let Some(space) = state::space()
    {
        let _guard = guard::enter();
        state::keeping_errno(|| space.touch(at as usize, len));
    }
}

/// Faults in a C string. Does nothing for null.
pub fn text(at: *const c_char) {
    if needed(at as usize, 1) {
        // SAFETY: the program passed a C string. Reading it faults all of it in.
        let len = unsafe { libc::strlen(at) };
        touch(at, len + 1);
    }
}

/// Faults in one value. Does nothing for null.
pub fn value<T>(at: *const T) {
    touch(at, size_of::<T>());
}

/// Faults in a null-terminated list of C strings, and the strings.
pub fn texts(list: *const *const c_char) {
    if list.is_null() || !state::direct() {
        return;
    }
    let mut at = list;
    loop {
        value(at);
        // SAFETY: the program passed a list that ends with a null.
        let entry = unsafe { *at };
        if entry.is_null() {
            return;
        }
        text(entry);
        // SAFETY: as above; this entry was not the terminating null.
        at = unsafe { at.add(1) };
    }
}

/// The result of a call.
pub trait Outcome {
    /// Whether the call failed and set errno.
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

/// Runs `touch` and then `call`, and repeats both while `call` fails with EFAULT.
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

/// Unmanaged memory at the same offset in its page as the buffer that it replaces, so that it meets O_DIRECT's
/// alignment whenever that buffer does.
pub struct Bounce {
    block: *mut u8,
    offset: usize,
}

impl Bounce {
    pub fn new(stands_for: usize, len: usize) -> Option<Bounce> {
        let _guard = guard::enter();
        let offset = stands_for % PAGE_BYTES;
        let block = state::keeping_errno(|| PRIVATE.allocate(offset + len, PAGE_BYTES));
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
        // SAFETY: this bounce owns the block.
        state::keeping_errno(|| unsafe { PRIVATE.release(self.block) });
    }
}

/// Keeps the folios of a range in RAM until dropped.
pub struct Held(std::ops::Range<usize>);

impl Held {
    /// Holds the managed part of a range of at most [`PIECE_BYTES`].
    pub fn new(addr: usize, len: usize) -> Held {
        let ours = len > 0 && state::overlaps(addr, len) && !guard::inside();
        let part = if ours { addr..addr + len } else { 0..0 };
        if let Some(space) = state::space().filter(|_| !part.is_empty()) {
            let _guard = guard::enter();
            // SAFETY: the program passes this range to a call, so it has mapped it.
            state::keeping_errno(|| unsafe { space.hold(part.start, part.len()) });
        }
        Held(part)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(space) = state::space().filter(|_| !self.0.is_empty()) {
            let _guard = guard::enter();
            // SAFETY: `new` held this range.
            state::keeping_errno(|| unsafe { space.release_hold(self.0.start, self.0.len()) });
        }
    }
}

/// The length of the next piece to hold. A piece ends at a folio boundary.
pub fn piece(addr: usize, left: usize) -> usize {
    left.min(PIECE_BYTES - addr % BLOCK_BYTES)
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

/// How a transfer of several pieces proceeds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// The kernel transfers everything where it can. Folios are held. For lengths above a bounce buffer's.
    Storage,
    /// The kernel pins the buffer. Folios are held, however short the transfer is.
    Pinned,
    /// Continue until everything is transferred, through a bounce buffer.
    All,
    /// Stop after the first piece, which goes through a bounce buffer.
    First,
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
        if held {
            return call(at as *mut c_void, len, done);
        }
        let Some(bounce) = Bounce::new(at, len) else { return no_memory() };
        let result = call(bounce.as_ptr().cast(), len, done);
        if result > 0 {
            // SAFETY: the copy is no longer than the bounce buffer, which the kernel has filled in, nor than this piece
            // of the program's buffer. No lock is held, so the destination may fault.
            unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), at as *mut u8, len.min(result as usize)) };
        }
        result
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
    if pieces == Pieces::Whole && len > MOST_MESSAGE_BYTES {
        state::fail(libc::EMSGSIZE);
        return -1;
    }
    transfer(buffer as usize, len, pieces, |at, len, done, held| {
        if held {
            return call(at as *const c_void, len, done);
        }
        let Some(bounce) = Bounce::new(at, len) else { return no_memory() };
        // SAFETY: `len` bytes of the program's buffer and a fresh block of that length. No lock is held, so the source
        // may fault.
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
            return result; // MSG_TRUNC returns the datagram's full length
        }
        done += result as usize;
        if (result as usize) < want || done == len || matches!(pieces, Pieces::First | Pieces::Whole) {
            return done as isize;
        }
    }
}
