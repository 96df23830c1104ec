//! The C library's asynchronous I/O. Its own threads, which cannot resolve faults, access the buffers and control
//! blocks. Both are held from the request until `aio_return`, which a program calls once for each request.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, MutexGuard};

use libc::{aiocb, sigevent, timespec};

use crate::calls::copied::copied;
use crate::calls::cover::{self, Held};
use crate::calls::rings::{self, Rings};
use crate::export::{export, real};
use crate::{guard, start, state};

/// The longest buffer that is held. Longer requests fail with EAGAIN.
const MOST_BYTES: usize = 16 << 20;

/// Control block -> its held ranges.
static HELD: LazyLock<Mutex<HashMap<usize, [Held; 2]>>> = LazyLock::new(Mutex::default);

/// The requests, these and those of rings, locked.
pub type Requests = (MutexGuard<'static, HashMap<usize, [Held; 2]>>, Rings);

pub fn requests() -> Requests {
    (HELD.lock().expect("nothing panics under this lock"), rings::lock())
}

/// Holds the memory of a request. Returns `false` and sets errno if that is too much.
///
/// # Safety
/// `request` is null or a control block.
unsafe fn hold(request: *const aiocb) -> bool {
    start::now(); // the C library's threads make the call
    if !state::direct() || request.is_null() {
        return true;
    }
    // SAFETY: the caller upholds this function's own contract. Reading the block faults it in.
    let (buffer, len) = unsafe { ((*request).aio_buf as usize, (*request).aio_nbytes) };
    let managed = cover::needed(buffer, len);
    if managed && len > MOST_BYTES {
        state::fail(libc::EAGAIN);
        return false;
    }
    let held = [Held::new(request as usize, size_of::<aiocb>()), Held::new(buffer, if managed { len } else { 0 })];
    let _guard = guard::enter();
    let before = HELD.lock().expect("nothing panics under this lock").insert(request as usize, held);
    drop(before);
    true
}

/// Releases the holds of a request.
fn release(request: *const aiocb) {
    if state::direct() && !guard::inside() {
        let _guard = guard::enter();
        let held = HELD.lock().expect("nothing panics under this lock").remove(&(request as usize));
        drop(held);
    }
}

macro_rules! requests {
    ($(fn $name:ident = $text:literal ($($arg:ident: $type:ty),*) { $request:ident })*) => {$(
        export! {
            fn $name($($arg: $type),*) -> c_int {
                real!(REAL = $text: fn($($type),*) -> c_int);
                // SAFETY: passes the caller's arguments on unchanged. The request's memory is held.
                unsafe {
                    if !hold($request) {
                        return -1;
                    }
                    let result = REAL.get()($($arg),*);
                    if result < 0 {
                        release($request);
                    }
                    result
                }
            }
        }
    )*};
}

requests! {
    fn aio_read = c"aio_read"(request: *mut aiocb) { request }
    fn aio_read64 = c"aio_read64"(request: *mut aiocb) { request }
    fn aio_write = c"aio_write"(request: *mut aiocb) { request }
    fn aio_write64 = c"aio_write64"(request: *mut aiocb) { request }
    fn aio_fsync = c"aio_fsync"(what: c_int, request: *mut aiocb) { request }
    fn aio_fsync64 = c"aio_fsync64"(what: c_int, request: *mut aiocb) { request }
}

real!(RETURN = c"aio_return": fn(*mut aiocb) -> isize);
real!(LIST = c"lio_listio": fn(c_int, *const *mut aiocb, c_int, *mut sigevent) -> c_int);

export! {
    fn aio_return(request: *mut aiocb) -> isize {
        // SAFETY: passes the caller's arguments on unchanged.
        let result = unsafe { RETURN.get()(request) };
        release(request);
        result
    }
}

export! {
    fn aio_return64(request: *mut aiocb) -> isize {
        // SAFETY: an alias with the same contract.
        unsafe { aio_return(request) }
    }
}

export! {
    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        // SAFETY: the caller's call, whose list has `count` entries, each null or a request. `aio_return` releases each
        // one.
        unsafe {
            for index in 0..count.max(0) as usize {
                if !hold(*list.add(index)) {
                    return -1;
                }
            }
            LIST.get()(mode, list, count, event)
        }
    }
}

export! {
    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        // SAFETY: an alias with the same contract.
        unsafe { lio_listio(mode, list, count, event) }
    }
}

copied! {
    fn aio_suspend, aio_suspend64(
        list: *const *const aiocb, count: c_int, limit: *const timespec = value
    ) -> c_int;
}
