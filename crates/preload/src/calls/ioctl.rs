//! ioctl. Its argument is faulted in. A userfaultfd of the program's own gets memory that it is to serve, and in direct
//! mode a guest of KVM its memory, which the kernel touches whenever the guest runs: such memory is no longer managed.

use std::ffi::{c_int, c_ulong, c_void};

use folioswap::PAGE_SIZE;
use folioswap_sys::pagemap::PAGEMAP_SCAN;
use folioswap_sys::uffd::Transfer;

use crate::calls::{descriptors, pagemap};
use crate::ground::export::{export, real};
use crate::ground::{guard, state, waiting};
use crate::map::adopt;
use crate::map::hand_over::hand_over;
use crate::memory::access::{self, Access};
use crate::memory::cover::{self, Before};
use crate::memory::held::Held;
use crate::memory::known;

real!(IOCTL = c"ioctl": fn(c_int, c_ulong, *mut c_void) -> c_int);

const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_COPY: u32 = 0xc028_aa03;
const UFFDIO_MOVE: u32 = 0xc028_aa05;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: u32 = 0x40a0_ae49;
/// The longest source of a copy that is held in RAM.
const MOST_HELD_BYTES: u64 = 4 << 20;

/// The bits of a request that say that the kernel reads its argument and writes to it.
const READ_AND_WRITTEN: u32 = 0b11 << 30;

fn size(request: c_ulong) -> usize {
    request as usize >> 16 & 0x3fff
}

/// How much of an argument the kernel may access: the size in the request, and at least [`cover::UNKNOWN_BYTES`]. The
/// extents of a file lie behind a header that has their number.
///
/// # Safety
/// As [`perform`].
unsafe fn unknown(request: c_ulong, argument: *const c_void) -> usize {
    const NUMBER_AT: usize = 24;
    const HEADER_BYTES: usize = 32;
    const EXTENT_BYTES: usize = 56;
    const MOST_BYTES: usize = 64 << 20;
    let known = cover::UNKNOWN_BYTES.max(size(request));
    if request as u32 != FS_IOC_FIEMAP || argument.is_null() || !state::direct() || guard::inside() {
        return known;
    }
    // SAFETY: the caller's promise. Reading it faults it in.
    let number = unsafe { access::read(argument.byte_add(NUMBER_AT).cast::<u32>()) }.unwrap_or(0);
    known.max(MOST_BYTES.min(HEADER_BYTES + number as usize * EXTENT_BYTES))
}

/// Makes the call.
///
/// # Safety
/// The program's own call, with its argument.
pub unsafe fn perform<R: cover::Outcome>(request: c_ulong, argument: *const c_void, call: impl Fn() -> R) -> R {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        if let Some(copy) = copy_of_ours(request as u32, argument) {
            return copied_in_pieces(argument as *mut Transfer, copy, call);
        }
        prepare(request as u32, argument);
    }
    let is_both = request as u32 & READ_AND_WRITTEN == READ_AND_WRITTEN;
    let before = Before::of(argument as usize, if is_both { size(request) } else { 0 });
    // SAFETY: the caller upholds this function's own contract.
    let len = unsafe { unknown(request, argument) };
    let touch = || {
        before.bring_back();
        cover::structure(argument.cast::<u8>(), len);
    };
    cover::repeat(touch, call)
}

/// The argument of a copy into memory that the program's own userfaultfd serves, from managed memory, which the kernel
/// may find missing.
///
/// # Safety
/// As [`perform`].
unsafe fn copy_of_ours(request: u32, argument: *const c_void) -> Option<Transfer> {
    if request != UFFDIO_COPY || argument.is_null() || !state::direct() || guard::inside() {
        return None;
    }
    // SAFETY: the caller's promise. Reading it faults it in.
    let copy = unsafe { access::read(argument.cast::<Transfer>()) }?;
    // The kernel copies whole pages only, and writes to the argument.
    let len = copy.len as usize;
    let is_possible =
        len.is_multiple_of(PAGE_SIZE) && access::is_open(argument as usize, size_of::<Transfer>(), Access::Write);
    (is_possible && cover::needed(copy.src as usize, len)).then_some(copy)
}

/// Makes the copy in pieces, whose sources are held in RAM, as if it were one.
///
/// # Safety
/// As [`perform`]. The argument is this one.
unsafe fn copied_in_pieces<R: cover::Outcome>(argument: *mut Transfer, whole: Transfer, call: impl Fn() -> R) -> R {
    let mut done = 0;
    loop {
        let (dst, src) = (whole.dst.wrapping_add(done), whole.src.wrapping_add(done));
        let len = MOST_HELD_BYTES.min(whole.len - done);
        let held = Held::new(src as usize, len as usize);
        // SAFETY: the caller's promise.
        let (result, copied) = unsafe {
            argument.write_unaligned(Transfer { dst, src, len, done: 0, ..whole });
            let result = cover::repeat(|| cover::value(argument), &call);
            (result, (&raw const (*argument).done).read_unaligned())
        };
        drop(held);
        done += copied.max(0) as u64;
        let is_whole = !result.is_failure() && copied == len as i64;
        if is_whole && done < whole.len {
            continue;
        }
        // What the kernel does not write stays as it was.
        let told = match (done, copied) {
            (0, 0) => whole.done,
            (0, error) => error,
            _ => done as i64,
        };
        // SAFETY: as above.
        unsafe { argument.write_unaligned(Transfer { done: told, ..whole }) };
        if result.is_failure() && done > 0 {
            state::fail(libc::EAGAIN); // as the kernel says of a part
        }
        return result;
    }
}

/// # Safety
/// As [`perform`].
unsafe fn prepare(request: u32, argument: *const c_void) {
    let is_guest = matches!(request, KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2);
    let is_known = is_guest || matches!(request, UFFDIO_REGISTER | UFFDIO_MOVE);
    if !is_known || argument.is_null() || guard::inside() {
        return;
    }
    if is_guest {
        waiting::now(); // the memory may not be adopted later
    } else if request == UFFDIO_REGISTER {
        known::note_userfaultfd();
        adopt::now(); // calls that wait for the program's own thread may not hold up adoption, nor be held up
    }
    // SAFETY: these requests take a structure that begins with four words at least. Reading it faults it in.
    let Some([first, second, third, fourth]) =
        state::space().and_then(|_| unsafe { access::read(argument.cast::<[usize; 4]>()) })
    else {
        return;
    };
    match request {
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 if state::direct() => {
            hand_over(&(fourth..fourth.saturating_add(third)));
        }
        UFFDIO_REGISTER => hand_over(&(first..first.saturating_add(second))),
        UFFDIO_MOVE => hand_over(&(second..second.saturating_add(third))),
        _ => {}
    }
}

export! {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        let real = IOCTL.get();
        if descriptors::is_engines(fd) {
            return descriptors::not_open();
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe {
            let result = perform(request, argument, || real(fd, request, argument));
            if request as u32 != PAGEMAP_SCAN {
                return result;
            }
            pagemap::scan(fd, argument, result).unwrap_or(result)
        }
    }
}
