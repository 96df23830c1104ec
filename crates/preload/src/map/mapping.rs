//! mmap and munmap, and which mappings are managed.
//!
//! The kernel keeps the address space. Each call is made as the program made it, and the engine is told of private
//! anonymous memory: of what came *after* the call, before the program knows its address; of what goes *before* the
//! call. Threads that touch what goes meanwhile wait until the kernel's call is done, so a replacement is as atomic as
//! the kernel's.
//!
//! These functions enter the kernel directly, without a symbol lookup: mimalloc and the loader may call them at any
//! time.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::RawSpace;
use folioswap_sys::memory::Reservation;

use crate::export::export;
use crate::map::{known, protection};
use crate::real::kernel;
use crate::{ending, guard, state};

/// The smallest managed mapping, and the size of the largest folio.
pub const BLOCK_BYTES: usize = 2 << 20;
pub const PAGE_BYTES: usize = 4096;

/// Flags of mappings that are not managed.
const UNMANAGED: c_int =
    libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_SHARED;

pub const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// An `mprotect` flag for memory that holds semaphores. No effect on this architecture. Missing from the libc crate.
const PROT_SEM: c_int = 8;

/// Whether a mapping may be managed, now or once it is readable and writable. `replaces`: it replaces managed memory.
fn is_manageable(len: usize, flags: c_int, replaces: bool) -> bool {
    (len >= BLOCK_BYTES || replaces)
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & UNMANAGED == 0
        && !guard::inside()
}

/// Whether memory with this protection can be managed: the kernel moves pages only between memory of one protection.
pub fn is_plain(access: c_int) -> bool {
    access & !PROT_SEM == PLAIN
}

/// Whether a program can have these pages. The kernel refuses all other ranges.
pub fn are_possible(range: &Range<usize>) -> bool {
    range.start.is_multiple_of(PAGE_BYTES) && range.end <= 1 << 47
}

pub fn pages(len: usize) -> usize {
    len.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

/// Sets errno and returns MAP_FAILED.
pub fn failed(errno: c_int) -> *mut c_void {
    state::fail(errno);
    libc::MAP_FAILED
}

/// Has the engine manage memory that is new, or of which nothing was touched. Says once if it cannot.
pub fn manage(space: &RawSpace, range: Range<usize>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let _guard = guard::enter();
    // SAFETY: private anonymous memory of the program's, which nobody has touched.
    if let Err(error) = state::keeping_errno(|| unsafe { space.manage(range) })
        && !SAID.swap(true, Ordering::Relaxed)
    {
        state::say(&format!("a mapping is not managed, and beside the budget: {error}"));
    }
}

/// Notes a new mapping.
fn note_mapped(space: &RawSpace, range: Range<usize>, access: c_int, flags: c_int, replaces: bool) {
    if !is_manageable(range.len(), flags, replaces) {
        return;
    }
    if is_plain(access) {
        manage(space, range);
    } else if access & libc::PROT_WRITE == 0 {
        let _guard = guard::enter();
        known::reserved().add(range);
    }
}

pub unsafe fn kernel_mmap(
    addr: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: passes the caller's arguments on unchanged.
    unsafe { kernel!(libc::SYS_mmap, addr, len, access, flags, fd, offset) as *mut c_void }
}

/// Addresses for a mapping, from the start of a block on, so that as much of it as possible is whole blocks.
fn whole_blocks(len: usize) -> Option<Reservation> {
    let _guard = guard::enter();
    state::keeping_errno(|| Reservation::new(len, BLOCK_BYTES).ok())
}

/// Maps over managed memory. First the same is mapped elsewhere, so that a call that the kernel refuses leaves what is
/// there.
unsafe fn map_over(
    space: &RawSpace,
    range: &Range<usize>,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let elsewhere = flags & !(libc::MAP_FIXED | libc::MAP_POPULATE);
    // SAFETY: a new mapping at an address that the kernel chooses, known to nobody.
    unsafe {
        let trial = kernel_mmap(null_mut(), range.len(), access, elsewhere, fd, offset);
        if trial == libc::MAP_FAILED {
            return trial;
        }
        kernel!(libc::SYS_munmap, trial, range.len());
    }
    let _guard = guard::enter();
    known::forget(range);
    protection::unlock(space, range);
    let flags = if is_manageable(range.len(), flags, true) { flags & !libc::MAP_POPULATE } else { flags };
    // SAFETY: the program gives up what is there.
    unsafe {
        space.forget(range.clone(), || kernel_mmap(range.start as *mut c_void, range.len(), access, flags, fd, offset))
    }
}

export! {
    fn mmap(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
        state::as_the_kernel(|| {
            let Some(space) = state::space().filter(|_| !guard::inside()) else {
                // SAFETY: passes the caller's arguments on unchanged.
                return unsafe { kernel_mmap(addr, len, access, flags, fd, offset) };
            };
            let is_fixed = flags & libc::MAP_FIXED != 0;
            let range = addr as usize..(addr as usize).saturating_add(pages(len));
            let replaces = is_fixed && state::overlaps(range.start, range.len()) && are_possible(&range);
            // SAFETY: passes the caller's arguments on, at addresses that the program or this call chooses.
            let mapped = unsafe {
                if replaces {
                    map_over(space, &range, access, flags, fd, offset)
                } else if addr.is_null()
                    && flags & (libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT) == 0
                    && is_manageable(len, flags, false)
                    && let Some(place) = whole_blocks(pages(len))
                {
                    let flags = flags & !libc::MAP_POPULATE | libc::MAP_FIXED;
                    let mapped = kernel_mmap(place.addr() as *mut c_void, len, access, flags, fd, offset);
                    if mapped != libc::MAP_FAILED {
                        place.leak();
                    }
                    mapped
                } else {
                    let flags = if is_manageable(len, flags, false) { flags & !libc::MAP_POPULATE } else { flags };
                    kernel_mmap(addr, len, access, flags, fd, offset)
                }
            };
            if mapped != libc::MAP_FAILED {
                let range = mapped as usize..mapped as usize + pages(len);
                if is_fixed {
                    let _guard = guard::enter();
                    known::forget(&range);
                }
                note_mapped(space, range, access, flags, replaces);
            }
            mapped
        })
    }
}

export! {
    fn mmap64(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { mmap(addr, len, access, flags, fd, offset) }
    }
}

export! {
    fn munmap(addr: *mut c_void, len: usize) -> c_int {
        state::as_the_kernel(|| {
            // SAFETY: passes the caller's arguments on unchanged.
            let unmap = || unsafe { kernel!(libc::SYS_munmap, addr, len) as c_int };
            let range = addr as usize..(addr as usize).saturating_add(pages(len));
            ending::before_unmapping(len);
            let Some(space) = state::space().filter(|_| len > 0 && !guard::inside()) else { return unmap() };
            if !are_possible(&range) {
                return unmap();
            }
            let _guard = guard::enter();
            known::forget(&range);
            if !state::overlaps(range.start, range.len()) {
                return unmap();
            }
            if !may_divide(space, &range) {
                state::fail(libc::ENOMEM);
                return -1;
            }
            protection::unlock(space, &range);
            // SAFETY: the program gives these pages up.
            unsafe { space.forget(range, unmap) }
        })
    }
}

/// Whether the kernel has room for the mappings that remain when a range is unmapped. Asks by dividing them now: once
/// the engine has dropped the content, the call must not fail.
fn may_divide(space: &RawSpace, range: &Range<usize>) -> bool {
    let is_inner = |edge: usize| {
        space.managed_parts(edge - PAGE_BYTES..edge + PAGE_BYTES).len() == 1
            && space.managed_parts(edge - PAGE_BYTES..edge + PAGE_BYTES)[0].len() == 2 * PAGE_BYTES
    };
    let divides = |page: usize| {
        // SAFETY: changes what a core dump holds, of a page that is about to go.
        unsafe { kernel!(libc::SYS_madvise, page, PAGE_BYTES, libc::MADV_DONTDUMP) == 0 }
    };
    (!is_inner(range.start) || divides(range.start)) && (!is_inner(range.end) || divides(range.end - PAGE_BYTES))
}
