//! Covers for system calls in direct mode, where the kernel cannot fault a page in: the call fails with EFAULT.
//!
//! - *bounce*: up to 256 KiB go through unmanaged memory. Safe for every call, even for a datagram, which the kernel
//!   drops when it cannot copy it out, or for a read that sleeps for hours.
//! - *hold*: longer transfers of files and block devices are held in RAM. Such calls do not sleep long. Up to a quarter
//!   of the budget goes in one call, as without a budget, so that appended records stay whole.
//! - *touch*: memory of unknown layout, and what a function returns a pointer to, is faulted in before the call, and
//!   again if it failed with EFAULT. Such calls fail before they have any effect, or what their structures point to is
//!   held. All other arguments are copied (`calls::copied`).
//!
//! In monitor mode the kernel waits for a missing page, so only pinned buffers are covered: see [`pins`].

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap::{BLOCK_BYTES, PAGE_SIZE};
use folioswap_sys::memory::place_apart;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

use crate::ground::heap::PRIVATE;
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::{resident, size_limit};

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

/// The longest transfer through a bounce buffer.
const BOUNCE_BYTES: usize = 256 << 10;

/// The longest record of a character device that is transferred in one call.
const RECORD_BYTES: usize = 4 << 20;

/// The longest message. A longer one fails with EMSGSIZE. Linux does not allow socket buffers of this size by default.
pub const MOST_MESSAGE_BYTES: usize = 16 << 20;

/// The longest transfer for which folios are held at a time.
const PIECE_BYTES: usize = 4 << 20;

/// How often a call that failed with EFAULT is repeated at most.
const MOST_REPEATS: usize = 100;

static_tls! {
    /// How often the call that is being made has been repeated.
    static REPEATS: usize = "folioswap_repeats";
}

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
    if needed(at as usize, len) {
        resident::bring_in(at as usize, len);
    }
}

/// Faults in a C string. Does nothing for null.
pub fn text(at: *const c_char) {
    if needed(at as usize, 1)
        // SAFETY: the program passed a C string. Reading it faults all of it in.
        && let Some(len) = unsafe { access::text_len(at as usize) }
    {
        touch(at, len + 1);
    }
}

/// Faults in one value. Does nothing for null.
pub fn value<T>(at: *const T) {
    touch(at, size_of::<T>());
}

/// Upper bound of what the kernel accesses behind most pointers of unknown type.
pub const UNKNOWN_BYTES: usize = 512;

/// The longest structure of unknown layout.
const MOST_STRUCTURE_BYTES: usize = 1 << 20;

/// How often more of a structure is brought in.
const MOST_TRIES: u32 = 3;

/// Faults in a structure of unknown layout that has at least `len` bytes. If the call was made in vain, more of it, and
/// what words in it point to.
pub fn structure<T>(at: *const T, len: usize) {
    let nr_repeats = REPEATS.get() as u32;
    if !(1..=MOST_TRIES).contains(&nr_repeats) || !state::direct() {
        return touch(at, len);
    }
    touch(at, (len << (4 * nr_repeats)).min(MOST_STRUCTURE_BYTES));
    for offset in (0..len).step_by(size_of::<usize>()) {
        // SAFETY: a word of the program's memory, whatever it is.
        if let Some(word) = unsafe { access::read(at.wrapping_byte_add(offset).cast::<usize>()) } {
            touch(word as *const u8, PAGE_SIZE << (2 * nr_repeats));
        }
    }
}

/// What a word of a structure points to is brought in this far, if the call could lose what it gets no place for.
const POINTED_BYTES: usize = 64 << 10;

/// The most words of a structure that are looked at for that.
const MOST_WORDS: usize = 16;

/// Keeps what the words of a structure point to in RAM, for a call that takes things out before it stores them.
pub fn held_inside<T>(at: *const T, len: usize) -> Vec<Held> {
    let mut held = Vec::new();
    if !state::direct() || guard::inside() || !access::is_open(at as usize, len, Access::Read) {
        return held;
    }
    for offset in (0..(len / size_of::<usize>()).min(MOST_WORDS)).map(|word| word * size_of::<usize>()) {
        // SAFETY: a word of the program's memory, which can be read, whatever it is.
        let word = unsafe { at.wrapping_byte_add(offset).cast::<usize>().read_unaligned() };
        if word < usize::MAX - POINTED_BYTES && needed(word, POINTED_BYTES) {
            let one = Held::new(word, POINTED_BYTES);
            let _guard = guard::enter();
            held.push(one);
        }
    }
    held
}

/// The beginning of a structure as it was before a call that reads it and writes to it. If the call was made in vain,
/// it may have written already, and would take that for what the program asks.
pub struct Before {
    addr: usize,
    bytes: [u8; UNKNOWN_BYTES],
    len: usize,
}

impl Before {
    /// Of a structure of this length; of none if it cannot be read.
    pub fn of(addr: usize, len: usize) -> Before {
        let mut before = Before { addr, bytes: [0; UNKNOWN_BYTES], len: 0 };
        let len = len.min(UNKNOWN_BYTES);
        if state::direct() && !guard::inside() && access::is_open(addr, len, Access::Read) {
            // SAFETY: the program's memory, which can be read.
            unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, before.bytes.as_mut_ptr(), len) };
            before.len = len;
        }
        before
    }

    /// Called before each try of the call. Before a repeat, what has changed is as it was.
    pub fn bring_back(&self) {
        if REPEATS.get() == 0 || self.len == 0 || !access::is_open(self.addr, self.len, Access::Read) {
            return;
        }
        let at = self.addr as *mut u8;
        for (offset, &byte) in self.bytes[..self.len].iter().enumerate() {
            // SAFETY: the program's memory, which can be read. What has changed could be written, too.
            unsafe {
                if at.add(offset).read_volatile() != byte {
                    at.add(offset).write_volatile(byte);
                }
            }
        }
    }
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
        let Some(entry) = (unsafe { access::read(at) }).filter(|entry| !entry.is_null()) else { return };
        text(entry);
        // SAFETY: as above; this entry was not the terminating null.
        at = unsafe { at.add(1) };
    }
}

/// The result of a call.
pub trait Outcome: Sized {
    /// Whether the call failed and set errno.
    fn is_failure(&self) -> bool;
    /// What a call returns when it fails.
    fn failure() -> Self;
    /// What a call returns that cannot write to the program's memory. Sets errno.
    fn refused() -> Self {
        state::fail(libc::EFAULT);
        Self::failure()
    }
    /// How many bytes it says were transferred, if it says that.
    fn length(&self) -> usize {
        0
    }
}

impl Outcome for c_int {
    fn is_failure(&self) -> bool {
        *self < 0
    }
    fn failure() -> c_int {
        -1
    }
}

impl Outcome for isize {
    fn is_failure(&self) -> bool {
        *self < 0
    }
    fn failure() -> isize {
        -1
    }
    fn length(&self) -> usize {
        (*self).max(0) as usize
    }
}

impl Outcome for i64 {
    fn is_failure(&self) -> bool {
        *self < 0
    }
    fn failure() -> i64 {
        -1
    }
}

impl Outcome for () {
    fn is_failure(&self) -> bool {
        false
    }
    fn failure() {}
}

/// A number that is 0 on failure.
impl Outcome for u32 {
    fn is_failure(&self) -> bool {
        *self == 0
    }
    fn failure() -> u32 {
        0
    }
}

impl<T> Outcome for *mut T {
    fn is_failure(&self) -> bool {
        self.is_null()
    }
    fn failure() -> *mut T {
        std::ptr::null_mut()
    }
}

/// Runs `touch` and then `call`, and repeats both while `call` fails with EFAULT.
pub fn repeat<R: Outcome>(touch: impl Fn(), call: impl Fn() -> R) -> R {
    repeat_if(state::direct() && !guard::inside(), touch, call)
}

/// The same, or only `call`.
pub fn repeat_if<R: Outcome>(repeats: bool, touch: impl Fn(), call: impl Fn() -> R) -> R {
    if !repeats {
        return call();
    }
    let kept = state::errno();
    for nr_repeats in 0.. {
        REPEATS.set(nr_repeats);
        touch();
        state::fail(kept);
        let result = call();
        if nr_repeats == MOST_REPEATS || !result.is_failure() || state::errno() != libc::EFAULT {
            return result;
        }
    }
    unreachable!("the last repeat returns")
}

/// Unmanaged memory at the same offset in its page as the buffer that it replaces, so that it meets O_DIRECT's
/// alignment whenever that buffer does.
pub struct Bounce {
    block: *mut u8,
    offset: usize,
    /// Bytes that may be accessed.
    room: usize,
    /// Bytes of a mapping of its own, which ends with a page without access; 0 if it needs none.
    mapped: usize,
}

impl Bounce {
    /// For a buffer of which all bytes may be accessed.
    pub fn new(stands_for: usize, len: usize) -> Option<Bounce> {
        let _guard = guard::enter();
        let offset = stands_for % PAGE_SIZE;
        let block = state::keeping_errno(|| PRIVATE.allocate(offset + len, PAGE_SIZE));
        (!block.is_null()).then_some(Bounce { block, offset, room: len, mapped: 0 })
    }

    /// For a buffer of which only `room` bytes may be accessed. The kernel finds an inaccessible page after them, as it
    /// would in the buffer itself. `room` ends a page.
    fn fenced(stands_for: usize, room: usize) -> Option<Bounce> {
        let offset = stands_for % PAGE_SIZE;
        let (len, flags) = (offset + room + PAGE_SIZE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        state::keeping_errno(|| {
            // SAFETY: a new mapping, which only this bounce knows. The part that is protected is all but its last page.
            unsafe {
                let block = own!(libc::SYS_mmap, place_apart(len), len, libc::PROT_NONE, flags, -1i32, 0usize);
                let open = block >= 0
                    && own!(libc::SYS_mprotect, block, offset + room, libc::PROT_READ | libc::PROT_WRITE) == 0;
                open.then_some(Bounce { block: block as *mut u8, offset, room, mapped: len })
            }
        })
    }

    /// For a buffer of the program's; how much of it may be accessed is found out. `Ok(None)`: nothing, so that the
    /// kernel may have the buffer itself. An error: there is no memory.
    pub fn fitting(stands_for: usize, len: usize, access: Access) -> Result<Option<Bounce>, ()> {
        match access::prefix(stands_for, len, access) {
            0 => Ok(None),
            room if room < len => Bounce::fenced(stands_for, room).map(Some).ok_or(()),
            _ => Bounce::new(stands_for, len).map(Some).ok_or(()),
        }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the block is longer than the offset.
        unsafe { self.block.add(self.offset) }
    }

    /// Bytes that may be accessed.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Fills this from the buffer that it stands for.
    ///
    /// # Safety
    /// The buffer is as long as this is, and may be read.
    pub unsafe fn fill(&self, from: usize) {
        // SAFETY: the caller upholds this function's own contract. No lock is held, so the source may fault.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, self.as_ptr(), self.room) };
    }

    /// Copies at most `len` bytes to the buffer that this stands for. Returns how many: all that this has, unless
    /// another thread has taken the buffer away during the call.
    ///
    /// # Safety
    /// The buffer is the program's, and as long as this is.
    pub unsafe fn empty(&self, to: usize, len: usize) -> usize {
        let len = access::prefix(to, len.min(self.room), Access::Write);
        // SAFETY: the caller upholds this function's own contract, and the buffer may be written so far. No lock is
        // held, so the destination may fault.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), to as *mut u8, len) };
        len
    }

    /// As [`empty`](Self::empty), for a call that has returned `result`.
    ///
    /// # Safety
    /// As for [`empty`](Self::empty).
    pub unsafe fn empty_result(&self, to: usize, len: usize, result: isize) -> isize {
        let got = len.min(result.max(0) as usize).min(self.room);
        // SAFETY: the caller upholds this function's own contract.
        match unsafe { self.empty(to, got) } {
            taken if taken == got => result,
            0 => isize::refused(),
            taken => taken as isize,
        }
    }

    /// Whether of the buffer that this stands for the first `len` bytes may still be written, and what is behind them
    /// and not as in `before`, which is as long as this is.
    pub fn fits(&self, to: usize, len: usize, before: Option<&Bounce>) -> bool {
        let is_open = |part: Range<usize>| access::prefix(to + part.start, part.len(), Access::Write) == part.len();
        let len = len.min(self.room);
        is_open(0..len) && before.is_none_or(|before| self.changed(len, before).all(is_open))
    }

    /// The parts behind the first `len` bytes that are not as in `before`.
    fn changed<'b>(&'b self, len: usize, before: &'b Bounce) -> impl Iterator<Item = Range<usize>> + 'b {
        // SAFETY: two blocks of this length, which nothing else uses.
        let bytes = |of: &'b Bounce| unsafe { std::slice::from_raw_parts(of.as_ptr(), self.room) };
        let (now, before) = (bytes(self), bytes(before));
        let parts = (len..self.room).step_by(PAGE_SIZE).map(|start| start..self.room.min(start + PAGE_SIZE));
        parts.filter(|part| now[part.clone()] != before[part.clone()])
    }

    /// Copies `len` bytes to the buffer that this stands for, and of what is behind them those that are not as in
    /// `before`.
    ///
    /// # Safety
    /// The buffer is as long as this is, and may be written. `before` is as long as this is.
    pub unsafe fn empty_changed(&self, to: usize, len: usize, before: &Bounce) {
        let len = len.min(self.room);
        // SAFETY: the caller upholds this function's own contract, and nothing else uses the two blocks.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr(), to as *mut u8, len);
            for index in self.changed(len, before).flatten() {
                let byte = self.as_ptr().add(index).read();
                if byte != before.as_ptr().add(index).read() {
                    (to as *mut u8).add(index).write(byte);
                }
            }
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let _guard = guard::enter();
        state::keeping_errno(|| {
            // SAFETY: this bounce owns the block, or the mapping.
            unsafe {
                if self.mapped > 0 {
                    own!(libc::SYS_munmap, self.block, self.mapped);
                } else {
                    PRIVATE.release(self.block);
                }
            }
        });
    }
}

/// Bytes of the blocks that transfers with a [`Grant`] hold.
static GRANTED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Permission to hold more memory than [`PIECE_BYTES`] for a transfer.
pub struct Grant(usize);

impl Grant {
    /// `None`: transfers would hold more than a quarter of the budget.
    pub fn of(nr_bytes: usize) -> Option<Grant> {
        let most = state::space()?.memory() as usize / 4;
        let fits = |granted: usize| granted.checked_add(nr_bytes).filter(|&sum| sum <= most);
        GRANTED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Grant(nr_bytes))
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        GRANTED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Bytes of the blocks that a range overlaps.
pub fn span(range: &Range<usize>) -> usize {
    range.end.saturating_add(BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES - range.start / BLOCK_BYTES * BLOCK_BYTES
}

/// Keeps the folios of a range in RAM until dropped.
pub struct Held(Range<usize>);

impl Held {
    /// Holds the managed part of a range of at most [`PIECE_BYTES`], or for which there is a [`Grant`].
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
