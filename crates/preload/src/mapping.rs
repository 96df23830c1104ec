//! mmap and its kin: which mappings are managed, and what the program does with those.
//!
//! Managed are private anonymous mappings of 2 MiB and more that are readable and writable from the start and may lie
//! anywhere. All others are the kernel's as ever. A call on a range that lies in part in managed memory is cut.
//!
//! The kernel is called directly, never through a name that would have to be looked up: mimalloc and the loader call
//! these functions at any time.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;

use folioswap::{RawSpace, Wish};

use crate::export::export;
use crate::real::kernel;
use crate::{guard, protection, state};

/// The smallest managed mapping, the size of the blocks in which addresses are handed out, and of the largest folio.
const FOLIO_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// Flags of mappings that stay the kernel's.
const UNMANAGED: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_32BIT;

const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;
const MREMAP_DONTUNMAP: c_int = 4;

fn is_manageable(len: usize, access: c_int, flags: c_int) -> bool {
    len >= FOLIO_BYTES
        && access == PLAIN
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & UNMANAGED == 0
        && !guard::inside()
}

fn out_of_memory() -> *mut c_void {
    state::fail(libc::ENOMEM);
    libc::MAP_FAILED
}

fn pages(len: usize) -> usize {
    len.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

/// A new managed mapping. The pages past its end, up to the next folio, are none of it.
fn map_managed(space: &RawSpace, len: usize) -> *mut c_void {
    let _guard = guard::enter();
    match space.map(len) {
        Ok(addr) => {
            drop_tail(space, addr + len);
            addr as *mut c_void
        }
        Err(_) => out_of_memory(),
    }
}

/// Unmaps the pages between the end of a mapping and the end of its last folio.
fn drop_tail(space: &RawSpace, end: usize) {
    let tail = end.next_multiple_of(FOLIO_BYTES) - end;
    if tail > 0 {
        // SAFETY: pages that were just mapped, beyond what the program asked for.
        unsafe { space.unmap(end, tail) };
    }
}

/// Unmaps managed pages, whatever their protection.
pub fn unmap_managed(range: Range<usize>) {
    let Some(space) = state::space() else { return };
    let _guard = guard::enter();
    protection::forget(space, range.clone());
    // SAFETY: the program gives these pages up.
    unsafe { space.unmap(range.start, range.len()) };
}

/// Applies a system call to the parts of a range that are not managed.
fn outside(parts: &[Range<usize>; 3], call: impl Fn(&Range<usize>) -> c_long) -> c_int {
    for part in [&parts[0], &parts[2]] {
        if !part.is_empty() && call(part) < 0 {
            return -1;
        }
    }
    0
}

unsafe fn kernel_mmap(
    addr: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's own call.
    unsafe { kernel!(libc::SYS_mmap, addr, len, access, flags, fd, offset) as *mut c_void }
}

/// A mapping at a fixed address in managed memory. Anonymous, readable and writable: the pages are zero again. Others
/// can only take the place of whole folios, whose addresses are then not managed any more.
fn map_over(space: &RawSpace, addr: usize, len: usize, access: c_int, flags: c_int) -> *mut c_void {
    let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let parts = state::cut(addr, len);
    if !anonymous || !parts[0].is_empty() || !parts[2].is_empty() {
        state::say(&format!("a file or shared mapping over managed memory at {addr:#x} is not possible"));
        return out_of_memory();
    }
    let _guard = guard::enter();
    if protection::protect(space, addr..addr + len, libc::PROT_READ | libc::PROT_WRITE) < 0 {
        return libc::MAP_FAILED;
    }
    // SAFETY: the program replaces what these pages hold. Zero and mapped from here on, also where nothing was mapped any more.
    if unsafe { space.map_at(addr, len) }.is_err() {
        return out_of_memory();
    }
    if protection::protect(space, addr..addr + len, access) < 0 {
        return libc::MAP_FAILED;
    }
    addr as *mut c_void
}

export! {
    fn mmap(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
        if let Some(space) = state::space() {
            if is_manageable(len, access, flags) {
                return map_managed(space, pages(len));
            }
            if flags & libc::MAP_FIXED != 0 && state::overlaps(addr as usize, len) && !guard::inside() {
                return map_over(space, addr as usize, pages(len), access, flags);
            }
        }
        // SAFETY: the caller's own call.
        unsafe { kernel_mmap(addr, len, access, flags, fd, offset) }
    }
}

export! {
    fn mmap64(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
        // SAFETY: the caller's own call.
        unsafe { mmap(addr, len, access, flags, fd, offset) }
    }
}

export! {
    fn munmap(addr: *mut c_void, len: usize) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: the caller's own call.
            unsafe { kernel!(libc::SYS_munmap, part.start, part.len()) }
        };
        let start = addr as usize;
        if state::space().is_none() || !state::overlaps(start, len) || !start.is_multiple_of(PAGE_BYTES) {
            return kernel(&(start..start.saturating_add(len))) as c_int;
        }
        let parts = state::cut(start, pages(len));
        unmap_managed(parts[1].clone());
        outside(&parts, kernel)
    }
}

/// What `mremap` does to a managed mapping.
fn remap_managed(space: &RawSpace, addr: usize, old_len: usize, new_len: usize, flags: c_int) -> *mut c_void {
    let (old_len, new_len) = (pages(old_len), pages(new_len));
    if flags & (libc::MREMAP_FIXED | MREMAP_DONTUNMAP) != 0 || old_len == 0 || new_len == 0 {
        state::fail(if new_len == 0 { libc::EINVAL } else { libc::ENOMEM });
        return libc::MAP_FAILED;
    }
    let _guard = guard::enter();
    protection::forget(space, addr..addr + old_len);
    // SAFETY: one mapping of the program's, which it does not use meanwhile.
    match unsafe { space.remap(addr, old_len, new_len, flags & libc::MREMAP_MAYMOVE != 0) } {
        Ok(at) => {
            let grown = new_len > old_len;
            let folios_grown = new_len.div_ceil(FOLIO_BYTES) > old_len.div_ceil(FOLIO_BYTES);
            if grown && (at != addr || folios_grown) {
                drop_tail(space, at + new_len);
            }
            at as *mut c_void
        }
        Err(_) => out_of_memory(),
    }
}

export! {
    fn mremap(addr: *mut c_void, old_len: usize, new_len: usize, flags: c_int, target: *mut c_void) -> *mut c_void {
        match state::space() {
            Some(space) if state::is_managed(addr as usize) => {
                remap_managed(space, addr as usize, old_len, new_len, flags)
            }
            // SAFETY: the caller's own call.
            _ => unsafe { kernel!(libc::SYS_mremap, addr, old_len, new_len, flags, target) as *mut c_void },
        }
    }
}

/// The whole folios of a range; may be empty.
fn whole_folios(range: &Range<usize>) -> Range<usize> {
    range.start.next_multiple_of(FOLIO_BYTES)..range.end / FOLIO_BYTES * FOLIO_BYTES
}

/// Advice for managed memory. What says nothing to the engine is taken as read.
fn advise_managed(space: &RawSpace, range: Range<usize>, advice: c_int) {
    if range.is_empty() {
        return;
    }
    let _guard = guard::enter();
    let discard = |part: Range<usize>| {
        // SAFETY: the program says that it does not need what these pages hold.
        unsafe { space.discard(part.start, part.len()) }
    };
    match advice {
        libc::MADV_DONTNEED => protection::discard(space, range, discard),
        // Pages that were offered may keep what they hold, so parts of folios are left alone.
        libc::MADV_FREE => {
            let whole = whole_folios(&range);
            if !whole.is_empty() {
                protection::discard(space, whole, discard);
            }
        }
        libc::MADV_WILLNEED => space.will_need(range.start, range.len()),
        libc::MADV_COLD | libc::MADV_PAGEOUT => {
            let whole = whole_folios(&range);
            if !whole.is_empty() {
                space.cold(whole.start, whole.len());
            }
        }
        // A block is one folio or several: what is advised for a part of it is advised for all of it.
        libc::MADV_HUGEPAGE => space.wish(range.start, range.len(), Wish::Whole),
        libc::MADV_NOHUGEPAGE => space.wish(range.start, range.len(), Wish::Pages),
        _ => {}
    }
}

export! {
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: the caller's own call.
            unsafe { kernel!(libc::SYS_madvise, part.start, part.len(), advice) }
        };
        let start = addr as usize;
        let Some(space) = state::space().filter(|_| state::overlaps(start, len)) else {
            return kernel(&(start..start.saturating_add(len))) as c_int;
        };
        if !start.is_multiple_of(PAGE_BYTES) {
            state::fail(libc::EINVAL);
            return -1;
        }
        let parts = state::cut(start, pages(len));
        advise_managed(space, parts[1].clone(), advice);
        outside(&parts, kernel)
    }
}

export! {
    fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        if advice == libc::POSIX_MADV_DONTNEED {
            return 0; // not the kernel's: it must not lose anything
        }
        let errno = state::errno();
        // SAFETY: the caller's own call; the other values of the two are the same.
        let result = if unsafe { madvise(addr, len, advice) } < 0 { state::errno() } else { 0 };
        state::fail(errno);
        result
    }
}

export! {
    fn mprotect(addr: *mut c_void, len: usize, access: c_int) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: the caller's own call.
            unsafe { kernel!(libc::SYS_mprotect, part.start, part.len(), access) }
        };
        let start = addr as usize;
        let Some(space) = state::space().filter(|_| state::overlaps(start, len)) else {
            return kernel(&(start..start.saturating_add(len))) as c_int;
        };
        if !start.is_multiple_of(PAGE_BYTES) {
            state::fail(libc::EINVAL);
            return -1;
        }
        let parts = state::cut(start, pages(len));
        let _guard = guard::enter();
        if protection::protect(space, parts[1].clone(), access) < 0 { -1 } else { outside(&parts, kernel) }
    }
}

/// Pages that a lock of `addr..addr + len` concerns, cut at the managed span.
fn locked_parts(addr: *const c_void, len: usize) -> [Range<usize>; 3] {
    let start = addr as usize & !(PAGE_BYTES - 1);
    state::cut(start, pages(addr as usize + len - start))
}

export! {
    fn mlock(addr: *const c_void, len: usize) -> c_int {
        // SAFETY: the caller's own call.
        unsafe { mlock2(addr, len, 0) }
    }
}

export! {
    fn mlock2(addr: *const c_void, len: usize, flags: u32) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: the caller's own call.
            unsafe { kernel!(libc::SYS_mlock2, part.start, part.len(), flags) }
        };
        let Some(space) = state::space().filter(|_| state::overlaps(addr as usize, len)) else {
            return kernel(&(addr as usize..(addr as usize).saturating_add(len))) as c_int;
        };
        let parts = locked_parts(addr, len);
        let _guard = guard::enter();
        protection::lock(space, parts[1].clone());
        outside(&parts, kernel)
    }
}

export! {
    fn munlock(addr: *const c_void, len: usize) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: the caller's own call.
            unsafe { kernel!(libc::SYS_munlock, part.start, part.len()) }
        };
        let Some(space) = state::space().filter(|_| state::overlaps(addr as usize, len)) else {
            return kernel(&(addr as usize..(addr as usize).saturating_add(len))) as c_int;
        };
        let parts = locked_parts(addr, len);
        let _guard = guard::enter();
        protection::unlock(space, parts[1].clone());
        outside(&parts, kernel)
    }
}

export! {
    fn munlockall() -> c_int {
        if state::space().is_some_and(RawSpace::is_locked) {
            return 0; // the kernel's would unlock the budget with the rest; what the program locked stays so
        }
        // SAFETY: the caller's own call.
        unsafe { kernel!(libc::SYS_munlockall) as c_int }
    }
}

export! {
    fn mlockall(flags: c_int) -> c_int {
        if state::space().is_some() {
            // All of memory, more than the budget, cannot be kept in RAM: what the kernel says beyond RLIMIT_MEMLOCK.
            state::fail(libc::ENOMEM);
            return -1;
        }
        // SAFETY: the caller's own call.
        unsafe { kernel!(libc::SYS_mlockall, flags) as c_int }
    }
}
