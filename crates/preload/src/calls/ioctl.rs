//! ioctl. Its argument is faulted in. A userfaultfd of the program's own gets memory that it is to serve: such memory
//! is no longer managed.

use std::ffi::{c_int, c_ulong, c_void};

use crate::calls::cover::{self, Held};
use crate::export::{export, real};
use crate::map::hand_over::hand_over;
use crate::{guard, state};

real!(IOCTL = c"ioctl": fn(c_int, c_ulong, *mut c_void) -> c_int);

const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_COPY: u32 = 0xc028_aa03;
const UFFDIO_MOVE: u32 = 0xc028_aa05;
/// The longest source of a copy that is held in RAM.
const MOST_HELD_BYTES: usize = 4 << 20;

/// How much of an argument the kernel may access: the size in the request, and at least [`cover::UNKNOWN_BYTES`].
fn unknown(request: c_ulong) -> usize {
    cover::UNKNOWN_BYTES.max(request as usize >> 16 & 0x3fff)
}

/// Makes the call.
///
/// # Safety
/// The program's own call, with its argument.
pub unsafe fn perform<R: cover::Outcome>(request: c_ulong, argument: *const c_void, call: impl Fn() -> R) -> R {
    // SAFETY: the caller upholds this function's own contract.
    let _held = unsafe { prepare(request as u32, argument) };
    cover::repeat(|| cover::structure(argument.cast::<u8>(), unknown(request)), call)
}

/// # Safety
/// As [`perform`].
unsafe fn prepare(request: u32, argument: *const c_void) -> Option<Held> {
    if !matches!(request, UFFDIO_REGISTER | UFFDIO_COPY | UFFDIO_MOVE) || argument.is_null() || guard::inside() {
        return None;
    }
    state::space()?;
    // SAFETY: these requests take a structure that begins with three words at least. Reading it faults it in.
    let [first, second, third] = unsafe { argument.cast::<[usize; 3]>().read_unaligned() };
    match request {
        UFFDIO_REGISTER => hand_over(&(first..first.saturating_add(second))),
        UFFDIO_MOVE => hand_over(&(second..second.saturating_add(third))),
        // The kernel reads the source.
        _ if state::direct() => return Some(Held::new(second, third.min(MOST_HELD_BYTES))),
        _ => {}
    }
    None
}

export! {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        let real = IOCTL.get();
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { perform(request, argument, || real(fd, request, argument)) }
    }
}
