//! The C library's asynchronous I/O. Its own threads, which cannot resolve faults, access the buffers and control
//! blocks. Both are held from the request until the program learns that it has ended, in monitor mode only where the
//! kernel pins the buffer. What would hold too much of the budget is transferred before the call returns; the C library
//! then makes a request without bytes, and so tells the program of the end.

use std::collections::BTreeMap;
use std::ffi::c_int;

use libc::{aiocb, sigevent, timespec};

use crate::calls::rings::{self, Hold, Rings};
use crate::calls::{copied, io};
use crate::ground::export::{aliases, export, real};
use crate::ground::lock::{Lock, Locked};
use crate::ground::{guard, state, waiting};
use crate::memory::cover;
use crate::memory::held::Held;
use crate::memory::transfer::{self, Kind};

/// The longest buffer of a socket or pipe that is held where requests hold much. Longer ones fail with EAGAIN.
const MOST_BYTES: usize = 16 << 20;

/// A request that has not ended, or that this library has made.
#[derive(Default)]
pub struct Request {
    holds: Option<([Held; 2], Option<Hold>)>,
    made: Option<Made>,
}

/// What has become of a transfer that this library has made, and its length in the control block.
#[derive(Clone, Copy)]
struct Made {
    result: isize,
    error: c_int,
    len: usize,
}

type Requests = BTreeMap<usize, Request>;

/// By the address of the control block.
static REQUESTS: Lock<Requests> = Lock::new(Requests::new());

/// The requests, these and those of rings, locked.
pub type LockedRequests = (Locked<Requests>, Rings);

pub fn requests() -> LockedRequests {
    (own(), rings::lock())
}

fn own() -> Locked<Requests> {
    REQUESTS.lock()
}

/// Holds the memory of a request, or makes its transfer: `what` is LIO_READ, LIO_WRITE, or something without a buffer.
/// Returns `false` and sets errno if neither can be.
///
/// # Safety
/// `request` is null or a control block.
unsafe fn hold(request: *mut aiocb, what: c_int) -> bool {
    waiting::now(); // the C library's threads make the call
    if request.is_null() {
        return true;
    }
    // SAFETY: the caller upholds this function's own contract. Reading the block faults it in.
    let (fd, at, len) = unsafe { ((*request).aio_fildes, (*request).aio_buf as usize, (*request).aio_nbytes) };
    if !state::direct() && transfer::pins(fd, at, len).is_none() {
        return true;
    }
    let block = Held::new(request as usize, size_of::<aiocb>());
    let mut new = Request { holds: Some(([block, Held::new(0, 0)], None)), made: None };
    if matches!(what, libc::LIO_READ | libc::LIO_WRITE) && (!state::direct() || cover::needed(at, len)) {
        if let Some(buffer) = Hold::new(&(at..at.saturating_add(len))) {
            new.holds = new.holds.map(|(block, _)| (block, Some(buffer)));
        } else if matches!(transfer::kind(fd), Kind::Storage) {
            // SAFETY: as above.
            new.made = Some(unsafe { make(request, what) });
        } else if len <= MOST_BYTES {
            new.holds = new.holds.map(|([block, _], none)| ([block, Held::new(at, len)], none));
        } else {
            state::fail(libc::EAGAIN);
            return false;
        }
    }
    let _guard = guard::enter();
    let before = own().insert(request as usize, new);
    drop(before);
    true
}

/// Makes the transfer of a request, and leaves the C library one without bytes.
///
/// # Safety
/// A control block for a read or a write.
unsafe fn make(request: *mut aiocb, what: c_int) -> Made {
    let kept = state::errno();
    // SAFETY: the caller upholds this function's own contract.
    let (one, len) = unsafe { (&mut *request, (*request).aio_nbytes) };
    // SAFETY: the program's transfer.
    let result = unsafe {
        match what {
            libc::LIO_READ => io::pread(one.aio_fildes, one.aio_buf.cast(), len, one.aio_offset),
            _ => io::pwrite(one.aio_fildes, one.aio_buf.cast(), len, one.aio_offset),
        }
    };
    let error = if result < 0 { state::errno() } else { 0 };
    one.aio_nbytes = 0;
    state::fail(kept);
    Made { result, error, len }
}

/// Releases the holds of a request that has ended, or was not accepted. Returns what this library has made of it, and
/// forgets that if the program has asked for the last time.
fn release(request: *const aiocb, is_last: bool) -> Option<Made> {
    if state::space().is_none() || guard::inside() {
        return None;
    }
    let _guard = guard::enter();
    let mut all = own();
    let one = all.get_mut(&(request as usize))?;
    let (holds, made) = (one.holds.take(), one.made);
    if is_last || made.is_none() {
        all.remove(&(request as usize));
    }
    drop(all);
    if let Some(made) = made.filter(|_| holds.is_some()) {
        // SAFETY: the control block of a request that the program has just named.
        unsafe { (*request.cast_mut()).aio_nbytes = made.len };
    }
    drop(holds);
    made
}

macro_rules! requests {
    ($(fn $name:ident = $text:literal ($($arg:ident: $type:ty),*) { $request:ident: $what:expr })*) => {$(
        export! {
            fn $name($($arg: $type),*) -> c_int {
                real!(REAL = $text: fn($($type),*) -> c_int);
                // SAFETY: passes the caller's arguments on unchanged. The request's memory is held.
                unsafe {
                    if !hold($request, $what) {
                        return -1;
                    }
                    let _stack = cover::stack(); // the C library blocks all signals to make a thread
                    let result = REAL.get()($($arg),*);
                    if result < 0 {
                        release($request, true);
                    }
                    result
                }
            }
        }
    )*};
}

requests! {
    fn aio_read = c"aio_read"(request: *mut aiocb) { request: libc::LIO_READ }
    fn aio_read64 = c"aio_read64"(request: *mut aiocb) { request: libc::LIO_READ }
    fn aio_write = c"aio_write"(request: *mut aiocb) { request: libc::LIO_WRITE }
    fn aio_write64 = c"aio_write64"(request: *mut aiocb) { request: libc::LIO_WRITE }
    fn aio_fsync = c"aio_fsync"(what: c_int, request: *mut aiocb) { request: libc::LIO_NOP }
    fn aio_fsync64 = c"aio_fsync64"(what: c_int, request: *mut aiocb) { request: libc::LIO_NOP }
}

real!(ERROR = c"aio_error": fn(*const aiocb) -> c_int);
real!(RETURN = c"aio_return": fn(*mut aiocb) -> isize);
real!(SUSPEND = c"aio_suspend": fn(*const *const aiocb, c_int, *const timespec) -> c_int);
real!(LIST = c"lio_listio": fn(c_int, *const *mut aiocb, c_int, *mut sigevent) -> c_int);

export! {
    fn aio_error(request: *const aiocb) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        let error = unsafe { ERROR.get()(request) };
        if error == libc::EINPROGRESS {
            return error;
        }
        match release(request, false) {
            Some(made) if error == 0 => made.error,
            _ => error,
        }
    }

    fn aio_return(request: *mut aiocb) -> isize {
        // SAFETY: passes the caller's arguments on unchanged.
        let result = unsafe { RETURN.get()(request) };
        match release(request, true) {
            Some(made) if result == 0 => made.result,
            _ => result,
        }
    }
}

/// Releases the holds of those requests of a list that have ended.
///
/// # Safety
/// The list has `count` entries, each null or a request.
unsafe fn release_ended(list: *const *const aiocb, count: c_int) {
    for index in 0..count.max(0) as usize {
        // SAFETY: the caller upholds this function's own contract.
        unsafe {
            let request = *list.add(index);
            if !request.is_null() && is_known(request) {
                aio_error(request);
            }
        }
    }
}

fn is_known(request: *const aiocb) -> bool {
    let _guard = guard::enter();
    own().contains_key(&(request as usize))
}

export! {
    fn aio_suspend(list: *const *const aiocb, count: c_int, limit: *const timespec) -> c_int {
        // SAFETY: the caller's call, with a copy of the time.
        unsafe {
            let time = copied::value(limit);
            let _stack = cover::stack(); // it sleeps on a word there, to which its threads write
            let result = SUSPEND.get()(list, count, time.at(limit));
            if result == 0 {
                release_ended(list, count);
            }
            result
        }
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        // SAFETY: the caller's call, whose list has `count` entries, each null or a request.
        unsafe {
            for index in 0..count.max(0) as usize {
                let request = *list.add(index);
                let what = if request.is_null() { libc::LIO_NOP } else { (*request).aio_lio_opcode };
                if what != libc::LIO_NOP && !hold(request, what) {
                    (0..index).for_each(|before| _ = release(*list.add(before), true));
                    return -1;
                }
            }
            let _stack = cover::stack(); // it makes threads, and may sleep on a word there
            let result = LIST.get()(mode, list, count, event);
            let error = state::errno();
            release_ended(list.cast(), count); // all of them, if it has waited; those that were not accepted
            state::fail(error);
            result
        }
    }
}

aliases! {
    fn aio_error64 = aio_error(request: *const aiocb) -> c_int;
    fn aio_return64 = aio_return(request: *mut aiocb) -> isize;
    fn aio_suspend64 = aio_suspend(list: *const *const aiocb, count: c_int, limit: *const timespec) -> c_int;
    fn lio_listio64 = lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
}
