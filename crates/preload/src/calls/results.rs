//! Calls that have done something when they find no place for its result: a child is reaped, a connection taken,
//! descriptors made. They cannot be repeated, so their results go through locals.

use std::ffi::c_int;
use std::mem::size_of;

use libc::{pid_t, rusage, sockaddr, sockaddr_storage, socklen_t};

use crate::cover::needed;
use crate::export::{export, real};

/// Calls with a local in place of a result that the kernel may not reach.
///
/// # Safety
/// `target` is null or valid for reads and writes.
unsafe fn locally<T, R>(target: *mut T, call: impl FnOnce(*mut T) -> R) -> R {
    if !needed(target as usize, size_of::<T>()) {
        return call(target);
    }
    // SAFETY: valid, as the caller says; the touch brings it in.
    let mut local = unsafe { target.read() };
    let result = call(&raw mut local);
    // SAFETY: as above. errno survives the fault that this may be.
    unsafe { target.write(local) };
    result
}

macro_rules! through_locals {
    ($(fn $name:ident = $text:literal ($($arg:ident: $type:ty),*) -> $result:ty { $first:ident $(, $second:ident)? })*) => {$(
        export! {
            fn $name($($arg: $type),*) -> $result {
                real!(REAL = $text: fn($($type),*) -> $result);
                let real = REAL.get();
                // SAFETY: the caller's own call, whose pointers are null or valid.
                unsafe { locally($first, |$first| through_locals!(@ $($second)?; real($($arg),*))) }
            }
        }
    )*};
    (@ $second:ident; $call:expr) => { locally($second, |$second| $call) };
    (@; $call:expr) => { $call };
}

through_locals! {
    fn pipe = c"pipe"(ends: *mut [c_int; 2]) -> c_int { ends }
    fn pipe2 = c"pipe2"(ends: *mut [c_int; 2], flags: c_int) -> c_int { ends }
    fn socketpair = c"socketpair"(domain: c_int, kind: c_int, protocol: c_int, ends: *mut [c_int; 2]) -> c_int { ends }
    fn waitpid = c"waitpid"(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t { status }
    fn wait4 = c"wait4"(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t { status, usage }
}

/// Takes a connection by `call`, with its address in a local.
///
/// # Safety
/// The pointers are null or valid, as for `accept`.
unsafe fn take(
    addr: *mut sockaddr,
    len: *mut socklen_t,
    call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    if addr.is_null() || len.is_null() {
        return call(addr, len);
    }
    // SAFETY: valid; the touch brings it in.
    let room = unsafe { *len } as usize;
    if !needed(addr as usize, room) && !needed(len as usize, size_of::<socklen_t>()) {
        return call(addr, len);
    }
    // SAFETY: all zeros are an address of no family.
    let mut local: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut got = room.min(size_of::<sockaddr_storage>()) as socklen_t;
    let taken = call((&raw mut local).cast(), &raw mut got);
    if taken >= 0 {
        let fits = room.min(got as usize).min(size_of::<sockaddr_storage>());
        // SAFETY: `addr` has room for `room` bytes, the local for as many as a storage has.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const local).cast::<u8>(), addr.cast::<u8>(), fits);
            *len = got;
        }
    }
    taken
}

export! {
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        real!(ACCEPT = c"accept": fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int);
        let real = ACCEPT.get();
        // SAFETY: the caller's own call.
        unsafe { take(addr, len, |addr, len| real(fd, addr, len)) }
    }
}

export! {
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        real!(ACCEPT4 = c"accept4": fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int);
        let real = ACCEPT4.get();
        // SAFETY: the caller's own call.
        unsafe { take(addr, len, |addr, len| real(fd, addr, len, flags)) }
    }
}
