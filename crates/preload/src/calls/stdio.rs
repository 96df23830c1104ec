//! Buffered streams. Their buffers are unmanaged (see `malloc`). What remains is the program's own memory, which a
//! stream passes to the kernel unbuffered. It is transferred as by calls on the descriptor.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::calls::{io, pagemap, remote};
use crate::faults::ours;
use crate::ground::export::{export, real};
use crate::ground::state;
use crate::map::adopt;
use crate::memory::transfer::{self, Awaits, Pieces};
use crate::memory::{cover, known};

real!(FREAD = c"fread": fn(*mut c_void, usize, usize, *mut FILE) -> usize);
real!(FREAD_UNLOCKED = c"fread_unlocked": fn(*mut c_void, usize, usize, *mut FILE) -> usize);
real!(pub FWRITE = c"fwrite": fn(*const c_void, usize, usize, *mut FILE) -> usize);
real!(FWRITE_UNLOCKED = c"fwrite_unlocked": fn(*const c_void, usize, usize, *mut FILE) -> usize);
real!(pub FPUTS = c"fputs": fn(*const c_char, *mut FILE) -> c_int);
real!(FPUTS_UNLOCKED = c"fputs_unlocked": fn(*const c_char, *mut FILE) -> c_int);
real!(PUTS = c"puts": fn(*const c_char) -> c_int);
real!(SETVBUF = c"setvbuf": fn(*mut FILE, *mut c_char, c_int, usize) -> c_int);

unsafe extern "C" {
    static stdout: *mut FILE;
    fn __fbufsize(stream: *mut FILE) -> usize;
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
}

/// Shorter transfers go through the stream's buffer, unless it has none.
const LEAST_BYTES: usize = 256;

/// Whether `call` wrote all of `len` bytes. `fwrite` returns the whole count even if it could not flush the line.
///
/// # Safety
/// The caller's stream.
pub unsafe fn written(stream: *mut FILE, len: usize, call: impl FnOnce() -> usize) -> bool {
    // SAFETY: the caller's stream.
    unsafe {
        let has_failed = libc::ferror(stream) != 0;
        call() == len && (has_failed || libc::ferror(stream) == 0)
    }
}

/// How memory of the program's is transferred from or to a stream. `None`: by the plain call, which takes it through
/// the stream's buffer, or does not need it in RAM.
///
/// # Safety
/// The caller's stream.
unsafe fn pieces(stream: *mut FILE, at: usize, bytes: Option<usize>, is_read: bool) -> Option<Pieces> {
    let bytes = bytes.filter(|&bytes| state::overlaps(at, bytes))?;
    // SAFETY: the caller's stream.
    let (room, fd) = state::keeping_errno(|| unsafe { (__fbufsize(stream), libc::fileno(stream)) });
    if !cover::needed(at, bytes) {
        // What is shorter than the stream's buffer goes through that.
        return if bytes >= room { transfer::pins(fd, at, bytes) } else { None };
    }
    // The C library goes on by itself where a signal interrupts it.
    let pieces = if is_read { io::read_pieces } else { io::pieces };
    let pieces = || pieces(fd, at as *const c_void, bytes, Pieces::All(Awaits::Nothing));
    (bytes >= LEAST_BYTES || room < LEAST_BYTES).then(|| state::keeping_errno(pieces))
}

/// A stream's lock, until it is dropped, as by a cancellation: the pieces of a transfer stay together, and no thread
/// waits for the lock with handlers kept out.
struct Locked(*mut FILE);

impl Locked {
    /// # Safety
    /// The caller's stream.
    unsafe fn new(stream: *mut FILE) -> Self {
        // SAFETY: the caller's promise.
        unsafe { flockfile(stream) };
        Locked(stream)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked above.
        unsafe { funlockfile(self.0) };
    }
}

/// Whole items of `size` bytes in what was transferred.
fn items(done: isize, size: usize) -> usize {
    done.max(0) as usize / size
}

type Read = unsafe extern "C-unwind" fn(*mut c_void, usize, usize, *mut FILE) -> usize;

/// Reads items of `size` bytes by one of the C library's functions.
///
/// # Safety
/// The caller's call.
unsafe fn read(real: Read, locks: bool, (at, size, count, stream): (*mut c_void, usize, usize, *mut FILE)) -> usize {
    // SAFETY: the caller's call, whole or in pieces.
    let whole = || unsafe { real(at, size, count, stream) };
    // SAFETY: as above.
    let part = |at: usize, len| unsafe { real(at as *mut c_void, 1, len, stream) };
    let from = |done, len| part(at as usize + done, len);
    // SAFETY: as above.
    let place = remote::has_pagemap().then(|| unsafe { (libc::fileno(stream), libc::ftello(stream)) });
    // SAFETY: as above.
    let done = match unsafe { remote::read_stream(stream, size.saturating_mul(count), from) } {
        Some(done) => done / size.max(1),
        // SAFETY: as above.
        None => match unsafe { pieces(stream, at as usize, size.checked_mul(count), true) } {
            None => whole(),
            Some(pieces) => {
                // SAFETY: as above.
                let _locked = locks.then(|| unsafe { Locked::new(stream) });
                let part = |at: *mut c_void, len, _| part(at as usize, len) as isize;
                items(transfer::receive(at, size * count, pieces, part), size)
            }
        },
    };
    if let Some((fd, from)) = place {
        pagemap::after_read(fd, at, (done * size) as isize, Some(from));
    }
    done
}

export! {
    fn fread(at: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { read(FREAD.get(), true, (at, size, count, stream)) }
    }

    fn fread_unlocked(at: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { read(FREAD_UNLOCKED.get(), false, (at, size, count, stream)) }
    }

    fn __fread_chk(at: *mut c_void, room: usize, size: usize, count: usize, stream: *mut FILE) -> usize {
        io::check(size.saturating_mul(count), room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { fread(at, size, count, stream) }
    }

    fn __fread_unlocked_chk(at: *mut c_void, room: usize, size: usize, count: usize, stream: *mut FILE) -> usize {
        io::check(size.saturating_mul(count), room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { fread_unlocked(at, size, count, stream) }
    }
}

type Write = unsafe extern "C-unwind" fn(*const c_void, usize, usize, *mut FILE) -> usize;

/// Writes items of `size` bytes by one of the C library's functions.
///
/// # Safety
/// The caller's call.
unsafe fn write(
    real: Write,
    locks: bool,
    (at, size, count, stream): (*const c_void, usize, usize, *mut FILE),
) -> usize {
    // SAFETY: the caller's call, whole or in pieces.
    unsafe {
        match pieces(stream, at as usize, size.checked_mul(count), false) {
            None => real(at, size, count, stream),
            Some(pieces) => {
                let _locked = locks.then(|| Locked::new(stream));
                let part = |at: *const c_void, len, _| real(at, 1, len, stream) as isize;
                items(transfer::send(at, size * count, pieces, part), size)
            }
        }
    }
}

export! {
    fn fwrite(at: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { write(FWRITE.get(), true, (at, size, count, stream)) }
    }

    fn fwrite_unlocked(at: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { write(FWRITE_UNLOCKED.get(), false, (at, size, count, stream)) }
    }
}

/// The length of a string that is not to be written by the plain call.
///
/// # Safety
/// `text` is a C string, and the stream the caller's.
unsafe fn managed_len(text: *const c_char, stream: *mut FILE) -> Option<usize> {
    if !cover::needed(text as usize, 1) {
        return None;
    }
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let len = libc::strlen(text);
        pieces(stream, text as usize, Some(len), false).map(|_| len)
    }
}

export! {
    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int {
        // SAFETY: the caller's call, or one that writes the bytes of its string.
        unsafe {
            match managed_len(text, stream) {
                None => FPUTS.get()(text, stream),
                Some(len) if written(stream, len, || fwrite(text.cast(), 1, len, stream)) => 1,
                Some(_) => libc::EOF,
            }
        }
    }

    fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int {
        // SAFETY: as above.
        unsafe {
            match managed_len(text, stream) {
                None => FPUTS_UNLOCKED.get()(text, stream),
                Some(len) if written(stream, len, || fwrite_unlocked(text.cast(), 1, len, stream)) => 1,
                Some(_) => libc::EOF,
            }
        }
    }

    fn puts(text: *const c_char) -> c_int {
        // SAFETY: the caller's call, or one that writes the bytes of its line.
        unsafe {
            let Some(len) = managed_len(text, stdout) else { return PUTS.get()(text) };
            let _locked = Locked::new(stdout);
            let is_written = written(stdout, len, || fwrite_unlocked(text.cast(), 1, len, stdout))
                && FWRITE_UNLOCKED.get()(c"\n".as_ptr().cast(), 1, 1, stdout) == 1;
            if is_written { (len + 1).min(c_int::MAX as usize) as c_int } else { libc::EOF }
        }
    }

    fn setvbuf(stream: *mut FILE, buffer: *mut c_char, mode: c_int, len: usize) -> c_int {
        let (at, room) = (buffer as usize, len.max(1));
        // SAFETY: the caller's stream.
        let pins = || state::keeping_errno(|| unsafe { transfer::pins(libc::fileno(stream), at, room) }).is_some();
        // A managed buffer is not used, nor one that may be managed later. The stream gets one from the C library.
        let range = at..at.saturating_add(room);
        let may_be_later = || adopt::is_pending() && ours::takes_faults() && known::ordinary().overlaps(&range);
        let is_used = !cover::needed(at, room) && !may_be_later() && !pins();
        let buffer = if is_used { buffer } else { std::ptr::null_mut() };
        // SAFETY: the caller's call, perhaps without its buffer.
        unsafe { SETVBUF.get()(stream, buffer, mode, len) }
    }

    fn setbuffer(stream: *mut FILE, buffer: *mut c_char, len: usize) -> () {
        let mode = if buffer.is_null() { libc::_IONBF } else { libc::_IOFBF };
        // SAFETY: `setbuffer` is defined as this.
        unsafe { setvbuf(stream, buffer, mode, len) };
    }

    fn setbuf(stream: *mut FILE, buffer: *mut c_char) -> () {
        // SAFETY: `setbuf` is defined as this.
        unsafe { setbuffer(stream, buffer, libc::BUFSIZ as usize) };
    }
}
