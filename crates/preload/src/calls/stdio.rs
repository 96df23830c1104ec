//! Buffered streams. Their buffers are unmanaged (see `malloc`). What remains is the program's own memory, which a
//! stream passes to the kernel unbuffered. It is held meanwhile, piece by piece.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::calls::{pagemap, remote};
use crate::ground::export::{export, real};
use crate::ground::state;
use crate::memory::cover;
use crate::memory::held::{self, Held};

real!(FREAD = c"fread": fn(*mut c_void, usize, usize, *mut FILE) -> usize);
real!(FREAD_UNLOCKED = c"fread_unlocked": fn(*mut c_void, usize, usize, *mut FILE) -> usize);
real!(FWRITE = c"fwrite": fn(*const c_void, usize, usize, *mut FILE) -> usize);
real!(FWRITE_UNLOCKED = c"fwrite_unlocked": fn(*const c_void, usize, usize, *mut FILE) -> usize);
real!(FPUTS = c"fputs": fn(*const c_char, *mut FILE) -> c_int);
real!(FPUTS_UNLOCKED = c"fputs_unlocked": fn(*const c_char, *mut FILE) -> c_int);
real!(PUTS = c"puts": fn(*const c_char) -> c_int);
real!(SETVBUF = c"setvbuf": fn(*mut FILE, *mut c_char, c_int, usize) -> c_int);

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

/// Transfers items of `size` bytes in held pieces. `call` transfers one piece and returns its bytes; `whole` is the
/// plain call.
fn in_pieces(
    at: usize,
    size: usize,
    count: usize,
    whole: impl Fn() -> usize,
    call: impl Fn(usize, usize) -> usize,
) -> usize {
    let Some(bytes) = size.checked_mul(count).filter(|&bytes| bytes >= LEAST_BYTES && cover::needed(at, bytes)) else {
        return whole();
    };
    let mut done = 0;
    while done < bytes {
        let piece = held::piece(at + done, bytes - done);
        let held = Held::new(at + done, piece);
        let moved = call(at + done, piece);
        drop(held);
        done += moved;
        if moved < piece {
            break;
        }
    }
    done / size
}

type Read = unsafe extern "C-unwind" fn(*mut c_void, usize, usize, *mut FILE) -> usize;

/// Reads items of `size` bytes by one of the C library's functions.
///
/// # Safety
/// The caller's call.
unsafe fn read(real: Read, at: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
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
        None => in_pieces(at as usize, size, count, whole, part),
    };
    if let Some((fd, from)) = place {
        pagemap::after_read(fd, at, (done * size) as isize, Some(from));
    }
    done
}

export! {
    fn fread(at: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { read(FREAD.get(), at, size, count, stream) }
    }
}

export! {
    fn fread_unlocked(at: *mut c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { read(FREAD_UNLOCKED.get(), at, size, count, stream) }
    }
}

/// Aborts as glibc's checking variants do when the buffer is too small.
fn check(size: usize, count: usize, room: usize) {
    if size.checked_mul(count).is_none_or(|bytes| bytes > room) {
        state::say("*** buffer overflow detected ***: terminated");
        std::process::abort();
    }
}

export! {
    fn __fread_chk(at: *mut c_void, room: usize, size: usize, count: usize, stream: *mut FILE) -> usize {
        check(size, count, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { fread(at, size, count, stream) }
    }
}

export! {
    fn __fread_unlocked_chk(at: *mut c_void, room: usize, size: usize, count: usize, stream: *mut FILE) -> usize {
        check(size, count, room);
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { fread_unlocked(at, size, count, stream) }
    }
}

export! {
    fn fwrite(at: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        let real = FWRITE.get();
        // SAFETY: the caller's call, whole or in pieces.
        let whole = || unsafe { real(at, size, count, stream) };
        // SAFETY: as above.
        in_pieces(at as usize, size, count, whole, |at, len| unsafe { real(at as *const c_void, 1, len, stream) })
    }
}

export! {
    fn fwrite_unlocked(at: *const c_void, size: usize, count: usize, stream: *mut FILE) -> usize {
        let real = FWRITE_UNLOCKED.get();
        // SAFETY: the caller's call, whole or in pieces.
        let whole = || unsafe { real(at, size, count, stream) };
        // SAFETY: as above.
        in_pieces(at as usize, size, count, whole, |at, len| unsafe { real(at as *const c_void, 1, len, stream) })
    }
}

/// The length of a string, if it is managed and long enough to matter.
///
/// # Safety
/// `text` is a C string.
unsafe fn managed_len(text: *const c_char) -> Option<usize> {
    if !cover::needed(text as usize, 1) {
        return None;
    }
    // SAFETY: the caller upholds this function's own contract.
    Some(unsafe { libc::strlen(text) }).filter(|&len| len >= LEAST_BYTES)
}

export! {
    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int {
        // SAFETY: the caller's call, or one that writes the bytes of its string.
        unsafe {
            match managed_len(text) {
                None => FPUTS.get()(text, stream),
                Some(len) if written(stream, len, || fwrite(text.cast(), 1, len, stream)) => 1,
                Some(_) => libc::EOF,
            }
        }
    }
}

export! {
    fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int {
        // SAFETY: as above.
        unsafe {
            match managed_len(text) {
                None => FPUTS_UNLOCKED.get()(text, stream),
                Some(len) if written(stream, len, || fwrite_unlocked(text.cast(), 1, len, stream)) => 1,
                Some(_) => libc::EOF,
            }
        }
    }
}

export! {
    fn puts(text: *const c_char) -> c_int {
        // SAFETY: passes the caller's argument on unchanged. A long line is held up to the length of one piece.
        unsafe {
            let len = managed_len(text).unwrap_or(0);
            let _held = Held::new(text as usize, held::piece(text as usize, len));
            PUTS.get()(text)
        }
    }
}

export! {
    fn setvbuf(stream: *mut FILE, buffer: *mut c_char, mode: c_int, len: usize) -> c_int {
        // A managed buffer is not used. The stream gets one from the C library.
        let buffer = if cover::needed(buffer as usize, len.max(1)) { std::ptr::null_mut() } else { buffer };
        // SAFETY: the caller's call, perhaps without its buffer.
        unsafe { SETVBUF.get()(stream, buffer, mode, len) }
    }
}

export! {
    fn setbuffer(stream: *mut FILE, buffer: *mut c_char, len: usize) -> () {
        let mode = if buffer.is_null() { libc::_IONBF } else { libc::_IOFBF };
        // SAFETY: `setbuffer` is defined as this.
        unsafe { setvbuf(stream, buffer, mode, len) };
    }
}

export! {
    fn setbuf(stream: *mut FILE, buffer: *mut c_char) -> () {
        // SAFETY: `setbuf` is defined as this.
        unsafe { setbuffer(stream, buffer, libc::BUFSIZ as usize) };
    }
}
