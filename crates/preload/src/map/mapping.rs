//! mmap and its kin: which mappings are managed, and how calls on managed mappings behave.
//!
//! A mapping is managed if it is private and anonymous, at least 2 MiB long, readable and writable from the start, has
//! none of the flags in [`UNMANAGED`], and managed addresses are left. All other mappings stay with the kernel. A call
//! on a range that is partly managed is split at the managed span.
//!
//! These functions enter the kernel directly, without a symbol lookup: mimalloc and the loader may call them at any
//! time.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::{Error, RawSpace};

use crate::export::export;
use crate::map::protection;
use crate::real::kernel;
use crate::{ending, guard, state};

/// The smallest managed mapping, the unit in which addresses are handed out, and the size of the largest folio.
pub const BLOCK_BYTES: usize = 2 << 20;
pub const PAGE_BYTES: usize = 4096;

/// Flags of mappings that stay with the kernel.
const UNMANAGED: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_32BIT;

const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// An `mprotect` flag for memory that holds semaphores. No effect on this architecture. Missing from the libc crate.
const PROT_SEM: c_int = 8;

fn is_manageable(len: usize, access: c_int, flags: c_int) -> bool {
    len >= BLOCK_BYTES
        && access == PLAIN
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & UNMANAGED == 0
        && !guard::inside()
}

pub fn out_of_memory() -> *mut c_void {
    state::fail(libc::ENOMEM);
    libc::MAP_FAILED
}

pub fn pages(len: usize) -> usize {
    len.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

/// Creates a managed mapping. The pages between its end and the end of its last folio are unmapped.
fn map_managed(space: &RawSpace, len: usize) -> Result<*mut c_void, Error> {
    let _guard = guard::enter();
    state::keeping_errno(|| {
        let addr = space.map(len)?;
        drop_tail(space, addr + len);
        Ok(addr as *mut c_void)
    })
}

/// Maps memory outside the engine when it could not be managed. Warns once, because such memory is not in the budget.
pub fn map_unmanaged(why: &Error, map: impl FnOnce() -> *mut c_void) -> *mut c_void {
    static SAID: AtomicBool = AtomicBool::new(false);
    let at = map();
    if at != libc::MAP_FAILED && !SAID.swap(true, Ordering::Relaxed) {
        let _guard = guard::enter();
        state::say(&format!("a mapping is not managed, and beside the budget: {why}"));
    }
    at
}

/// Unmaps the pages between the end of a mapping and the end of its last folio.
pub fn drop_tail(space: &RawSpace, end: usize) {
    let tail = end.next_multiple_of(BLOCK_BYTES) - end;
    if tail > 0 {
        // SAFETY: these pages were just mapped, and lie beyond what the program asked for.
        unsafe { space.unmap(end, tail) };
    }
}

/// Unmaps managed pages, whatever their protection.
///
/// # Errors
/// ENOMEM: the kernel has no room for another mapping. All pages are still mapped.
pub fn unmap_managed(range: Range<usize>) -> Result<(), c_int> {
    let Some(space) = state::space() else { return Ok(()) };
    let _guard = guard::enter();
    // SAFETY: the program gives these pages up.
    let unmap = || unsafe { space.unmap(range.start, range.len()) };
    state::keeping_errno(|| protection::unmap(space, &range, unmap))
}

/// Applies a system call to the unmanaged parts of a range.
fn outside(parts: &[Range<usize>; 3], call: impl Fn(&Range<usize>) -> c_long) -> c_int {
    for part in [&parts[0], &parts[2]] {
        if !part.is_empty() && call(part) < 0 {
            return -1;
        }
    }
    0
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

/// MAP_FIXED over managed memory. An anonymous private mapping within the managed span makes the pages zero again.
/// Anything else fails with ENOMEM.
fn map_over(space: &RawSpace, addr: usize, len: usize, access: c_int, flags: c_int) -> *mut c_void {
    let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let parts = state::cut(addr, len);
    if !anonymous || !parts[0].is_empty() || !parts[2].is_empty() {
        state::say(&format!("a file or shared mapping over managed memory at {addr:#x} is not possible"));
        return out_of_memory();
    }
    let _guard = guard::enter();
    let range = addr..addr + len;
    let mapped = state::keeping_errno(|| {
        protection::forget(space, &range)?;
        // SAFETY: the program gives up the content of these pages. They are mapped and zero from here on, even where
        // nothing was mapped before.
        unsafe { space.map_at(addr, len) }.map_err(|_| libc::ENOMEM)?;
        protect(space, &range, access, None)?;
        if flags & libc::MAP_LOCKED != 0 {
            let _ = protection::lock(space, &range, false); // mmap keeps an unlocked mapping too
        }
        Ok(())
    });
    match mapped {
        Ok(()) => addr as *mut c_void,
        Err(errno) => {
            state::fail(errno);
            libc::MAP_FAILED
        }
    }
}

export! {
    fn mmap(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
        if let Some(space) = state::space() {
            if is_manageable(len, access, flags) {
                return map_managed(space, pages(len)).unwrap_or_else(|error| {
                    // SAFETY: passes the caller's arguments on unchanged.
                    map_unmanaged(&error, || unsafe { kernel_mmap(addr, len, access, flags, fd, offset) })
                });
            }
            if flags & libc::MAP_FIXED != 0 && state::overlaps(addr as usize, len) && !guard::inside() {
                return map_over(space, addr as usize, pages(len), access, flags);
            }
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { kernel_mmap(addr, len, access, flags, fd, offset) }
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
        let kernel = |part: &Range<usize>| {
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { kernel!(libc::SYS_munmap, part.start, part.len()) }
        };
        let start = addr as usize;
        if state::space().is_none() || !state::overlaps(start, len) || !start.is_multiple_of(PAGE_BYTES) {
            ending::before_unmapping(len);
            return kernel(&(start..start.saturating_add(len))) as c_int;
        }
        let parts = state::cut(start, pages(len));
        both(|| unmap_managed(parts[1].clone()), &parts, kernel)
    }
}

/// Sets errno and returns -1.
pub fn refused(errno: c_int) -> c_int {
    state::fail(errno);
    -1
}

/// The result of a call on a range that is partly managed: the managed part first, then the kernel's parts.
pub fn both(
    managed: impl FnOnce() -> Result<(), c_int>,
    parts: &[Range<usize>; 3],
    kernel: impl Fn(&Range<usize>) -> c_long,
) -> c_int {
    match state::keeping_errno(managed) {
        Ok(()) => outside(parts, kernel),
        Err(errno) => refused(errno),
    }
}

/// ENOMEM, as from the kernel, if a page of a managed range is not mapped.
pub fn all_mapped(space: &RawSpace, range: &Range<usize>) -> Result<(), c_int> {
    if space.is_mapped(range.start, range.len()) { Ok(()) } else { Err(libc::ENOMEM) }
}

/// Implements `mprotect` and `pkey_mprotect`. Without a key each page keeps its own.
fn protect(space: &RawSpace, range: &Range<usize>, access: c_int, key: Option<u16>) -> Result<(), c_int> {
    // PROT_GROWSDOWN and PROT_GROWSUP do not apply to managed memory, and the kernel rejects unknown bits.
    if access & !(PROT_SEM | c_int::from(protection::ACCESS)) != 0 {
        return Err(libc::EINVAL);
    }
    all_mapped(space, range)?;
    let access = access as protection::Attributes & protection::ACCESS;
    let (kept, set) = match key {
        None => (!protection::ACCESS, access),
        Some(key) => (!protection::ACCESS & !protection::KEY, protection::of_key(access, key)),
    };
    protection::change(space, range, |page| page & kept | set)
}

export! {
    fn mprotect(addr: *mut c_void, len: usize, access: c_int) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { kernel!(libc::SYS_mprotect, part.start, part.len(), access) }
        };
        let start = addr as usize;
        let Some(space) = state::space().filter(|_| state::overlaps(start, len)) else {
            return kernel(&(start..start.saturating_add(len))) as c_int;
        };
        if !start.is_multiple_of(PAGE_BYTES) {
            return refused(libc::EINVAL);
        }
        let parts = state::cut(start, pages(len));
        let _guard = guard::enter();
        both(|| protect(space, &parts[1], access, None), &parts, kernel)
    }
}

/// Whether the program may use a protection key. Asks the kernel, with a page of our own.
fn check_key(key: c_int) -> Result<(), c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: only touches a page that is mapped and unmapped here.
    unsafe {
        let page = kernel_mmap(std::ptr::null_mut(), PAGE_BYTES, PLAIN, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
        let result = kernel!(libc::SYS_pkey_mprotect, page, PAGE_BYTES, PLAIN, key);
        let errno = state::errno();
        kernel!(libc::SYS_munmap, page, PAGE_BYTES);
        if result < 0 { Err(errno) } else { Ok(()) }
    }
}

export! {
    fn pkey_mprotect(addr: *mut c_void, len: usize, access: c_int, key: c_int) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { kernel!(libc::SYS_pkey_mprotect, part.start, part.len(), access, key) }
        };
        let start = addr as usize;
        let Some(space) = state::space().filter(|_| state::overlaps(start, len)) else {
            return kernel(&(start..start.saturating_add(len))) as c_int;
        };
        if !start.is_multiple_of(PAGE_BYTES) {
            return refused(libc::EINVAL);
        }
        let parts = state::cut(start, pages(len));
        let _guard = guard::enter();
        let change = || {
            let key = if key == -1 { None } else { check_key(key).map(|()| Some(key as u16))? };
            protect(space, &parts[1], access, key)
        };
        both(change, &parts, kernel)
    }
}

/// The pages that a lock of `addr..addr + len` covers, split at the managed span.
fn locked_parts(addr: *const c_void, len: usize) -> [Range<usize>; 3] {
    let start = addr as usize & !(PAGE_BYTES - 1);
    state::cut(start, pages((addr as usize).saturating_add(len) - start))
}

export! {
    fn mlock(addr: *const c_void, len: usize) -> c_int {
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { mlock2(addr, len, 0) }
    }
}

export! {
    fn mlock2(addr: *const c_void, len: usize, flags: u32) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { kernel!(libc::SYS_mlock2, part.start, part.len(), flags) }
        };
        let Some(space) = state::space().filter(|_| state::overlaps(addr as usize, len)) else {
            return kernel(&(addr as usize..(addr as usize).saturating_add(len))) as c_int;
        };
        if flags & !libc::MLOCK_ONFAULT != 0 {
            return refused(libc::EINVAL);
        }
        let parts = locked_parts(addr, len);
        let _guard = guard::enter();
        let range = &parts[1];
        let on_fault = flags != 0;
        both(|| all_mapped(space, range).and_then(|()| protection::lock(space, range, on_fault)), &parts, kernel)
    }
}

export! {
    fn munlock(addr: *const c_void, len: usize) -> c_int {
        let kernel = |part: &Range<usize>| {
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { kernel!(libc::SYS_munlock, part.start, part.len()) }
        };
        let Some(space) = state::space().filter(|_| state::overlaps(addr as usize, len)) else {
            return kernel(&(addr as usize..(addr as usize).saturating_add(len))) as c_int;
        };
        let parts = locked_parts(addr, len);
        let _guard = guard::enter();
        let unlock = || {
            protection::unlock(space, &parts[1]);
            all_mapped(space, &parts[1])
        };
        both(unlock, &parts, kernel)
    }
}

export! {
    fn munlockall() -> c_int {
        if let Some(space) = state::space() {
            let _guard = guard::enter();
            state::keeping_errno(|| protection::unlock_all(space));
            if space.is_locked() {
                return 0; // the kernel's munlockall would unlock the budget too; the program's other locks stay
            }
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { kernel!(libc::SYS_munlockall) as c_int }
    }
}

export! {
    fn mlockall(flags: c_int) -> c_int {
        if state::space().is_some() {
            // More memory than the budget cannot be locked in RAM. The kernel returns ENOMEM beyond RLIMIT_MEMLOCK too.
            state::fail(libc::ENOMEM);
            return -1;
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { kernel!(libc::SYS_mlockall, flags) as c_int }
    }
}
