//! mremap: managed mappings grow, shrink and move, within managed memory and out of it.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use folioswap::{Error, RawSpace};

use crate::export::export;
use crate::map::mapping::{self, BLOCK_BYTES, PAGE_BYTES, all_mapped, drop_tail, out_of_memory, pages};
use crate::map::protection::{self, ACCESS, Attributes, GUARD, LOCKED};
use crate::real::kernel;
use crate::{guard, state};

const MREMAP_DONTUNMAP: c_int = 4;

/// The arguments of `mremap`, in whole pages.
struct Request {
    old: Range<usize>,
    new_len: usize,
    flags: c_int,
    target: usize,
}

impl Request {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    fn new_range(&self) -> Range<usize> {
        self.target..self.target.saturating_add(self.new_len)
    }

    /// Checks the arguments as the kernel does.
    fn check(&self) -> Result<(), c_int> {
        let moves = self.has(libc::MREMAP_FIXED) || self.has(MREMAP_DONTUNMAP);
        let target = self.new_range();
        let bad = self.flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | MREMAP_DONTUNMAP) != 0
            || (moves && !self.has(libc::MREMAP_MAYMOVE))
            || !self.old.start.is_multiple_of(PAGE_BYTES)
            || self.new_len == 0
            || self.old.is_empty()
            || (self.has(MREMAP_DONTUNMAP) && self.old.len() != self.new_len)
            || (self.has(libc::MREMAP_FIXED)
                && (!target.start.is_multiple_of(PAGE_BYTES)
                    || (target.start < self.old.end && self.old.start < target.end)));
        if bad { Err(libc::EINVAL) } else { Ok(()) }
    }
}

/// The attributes of a mapping. They must be the same for all pages, except for guards, which are set page by page.
fn attributes_of(space: &RawSpace, range: &Range<usize>) -> Result<Vec<(Range<usize>, Attributes)>, c_int> {
    if !state::is_managed(range.end - 1) || all_mapped(space, range).is_err() {
        return Err(libc::EFAULT);
    }
    let runs = protection::runs(range);
    let first = runs[0].1 & !GUARD;
    if runs.iter().any(|run| run.1 & !GUARD != first) { Err(libc::EFAULT) } else { Ok(runs) }
}

/// Gives the pages at `range` the attributes of another mapping, page by page from its start. Pages past its end get
/// those of its first page.
fn set_as(
    space: &RawSpace,
    range: &Range<usize>,
    old: &Range<usize>,
    runs: &[(Range<usize>, Attributes)],
) -> Result<(), c_int> {
    let general = runs[0].1 & !GUARD;
    protection::change(space, range, |_| general)?;
    for (part, attributes) in runs.iter().filter(|run| run.1 & GUARD != 0) {
        let at = range.start + (part.start - old.start)..(range.start + (part.end - old.start)).min(range.end);
        if !at.is_empty() {
            protection::change(space, &at, |_| *attributes)?;
        }
    }
    Ok(())
}

/// Maps the target of a move: zero pages, readable and writable.
fn place(space: &RawSpace, request: &Request) -> Result<usize, c_int> {
    let target = request.new_range();
    if !request.has(libc::MREMAP_FIXED) {
        return match space.map(request.new_len) {
            Ok(at) => {
                drop_tail(space, at + request.new_len);
                Ok(at)
            }
            Err(error) => place_outside(&error, request.new_len),
        };
    }
    if !state::overlaps(target.start, target.len()) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the program names these addresses, and gives up what is there.
        let at = unsafe { mapping::kernel_mmap(target.start as *mut c_void, target.len(), access, flags, -1, 0) };
        return if at == libc::MAP_FAILED { Err(state::errno()) } else { Ok(target.start) };
    }
    let parts = state::cut(target.start, target.len());
    if !parts[0].is_empty() || !parts[2].is_empty() {
        state::say(&format!("a mapping cannot lie across the end of managed memory, at {:#x}", target.start));
        return Err(libc::ENOMEM);
    }
    protection::forget(space, &target)?;
    // SAFETY: the program gives up the content of these pages.
    unsafe { space.map_at(target.start, target.len()) }.map_err(|_| libc::ENOMEM)?;
    Ok(target.start)
}

/// The same when managed memory has no addresses left.
fn place_outside(why: &Error, len: usize) -> Result<usize, c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE; // like managed memory
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let map = || unsafe { mapping::kernel_mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    let at = mapping::map_unmanaged(why, map);
    if at == libc::MAP_FAILED { Err(state::errno()) } else { Ok(at as usize) }
}

/// Moves a mapping, whose pages are readable and writable now, to where the program wants it. MREMAP_DONTUNMAP leaves
/// an empty mapping behind.
fn move_away(space: &RawSpace, request: &Request) -> Result<usize, c_int> {
    let at = place(space, request)?;
    let old = &request.old;
    // SAFETY: the program's old mapping and one just made for this. The program uses neither meanwhile.
    unsafe {
        space.carry(old.start, at, old.len().min(request.new_len));
        if request.has(MREMAP_DONTUNMAP) {
            space.discard(old.start, old.len());
        } else {
            // The content has moved, so a failure here must not fail the call: the old pages stay mapped.
            let _ = protection::unmap(space, old, || space.unmap(old.start, old.len()));
        }
    }
    Ok(at)
}

/// Resizes a mapping, in place if possible.
fn resize(space: &RawSpace, request: &Request) -> Result<usize, c_int> {
    let (old, new_len) = (&request.old, request.new_len);
    let alone = protection::changing();
    // SAFETY: one mapping of the program's, which it does not use meanwhile.
    let at = unsafe { space.remap(old.start, old.len(), new_len, request.has(libc::MREMAP_MAYMOVE)) };
    let at = match at {
        Ok(at) => at,
        Err(_) if request.has(libc::MREMAP_MAYMOVE) => {
            drop(alone);
            return move_away(space, request);
        }
        Err(_) => return Err(libc::ENOMEM),
    };
    let folios_grown = new_len.div_ceil(BLOCK_BYTES) > old.len().div_ceil(BLOCK_BYTES);
    if new_len > old.len() && (at != old.start || folios_grown) {
        drop_tail(space, at + new_len);
    }
    let unmapped = if at == old.start { (old.start + new_len).min(old.end)..old.end } else { old.clone() };
    protection::after_unmap(space, &unmapped, &alone);
    Ok(at)
}

/// Whether the attributes of a mapping can be set at its new place too.
fn has_room(space: &RawSpace, request: &Request, attributes: Attributes) -> bool {
    let start = if request.has(libc::MREMAP_FIXED) { request.target } else { request.old.start };
    let nr_blocks = (start % BLOCK_BYTES + request.new_len).div_ceil(BLOCK_BYTES);
    !protection::is_held_for(attributes) || protection::has_room(space, nr_blocks)
}

/// Implements `mremap` for a managed mapping.
fn remap_managed(space: &RawSpace, request: &Request) -> Result<usize, c_int> {
    request.check()?;
    let old = &request.old;
    let runs = attributes_of(space, old)?;
    let is_plain = runs.iter().all(|run| run.1 == protection::PLAIN);
    if !is_plain {
        protection::change(space, old, |_| protection::PLAIN)?;
    }
    if !has_room(space, request, runs[0].1) {
        set_as(space, old, old, &runs)?;
        return Err(libc::ENOMEM);
    }
    let moves = request.has(libc::MREMAP_FIXED) || request.has(MREMAP_DONTUNMAP);
    let moved = if moves { move_away(space, request) } else { resize(space, request) };
    if is_plain {
        return moved;
    }
    let Ok(at) = moved else {
        set_as(space, old, old, &runs)?;
        return moved;
    };
    let new = at..at + request.new_len;
    if state::is_managed(at) {
        set_as(space, &new, old, &runs)?;
    } else {
        protect_in_kernel(&new, runs[0].1);
    }
    if request.has(MREMAP_DONTUNMAP) {
        let unlocked: Vec<_> = runs.iter().map(|(part, attributes)| (part.clone(), attributes & !LOCKED)).collect();
        set_as(space, old, old, &unlocked)?;
    }
    Ok(at)
}

/// Sets protection and lock of a mapping that is no longer managed.
fn protect_in_kernel(range: &Range<usize>, attributes: Attributes) {
    // SAFETY: a mapping of the program's that was just made.
    unsafe {
        kernel!(libc::SYS_mprotect, range.start, range.len(), c_int::from(attributes & ACCESS));
        if attributes & LOCKED != 0 {
            kernel!(libc::SYS_mlock, range.start, range.len());
        }
    }
}

export! {
    fn mremap(addr: *mut c_void, old_len: usize, new_len: usize, flags: c_int, target: *mut c_void) -> *mut c_void {
        let Some(space) = state::space() else {
            // SAFETY: passes the caller's arguments on unchanged.
            return unsafe { kernel!(libc::SYS_mremap, addr, old_len, new_len, flags, target) as *mut c_void };
        };
        if state::is_managed(addr as usize) {
            let _guard = guard::enter();
            let old = addr as usize..(addr as usize).saturating_add(pages(old_len));
            let request = Request { old, new_len: pages(new_len), flags, target: target as usize };
            return match state::keeping_errno(|| remap_managed(space, &request)) {
                Ok(at) => at as *mut c_void,
                Err(errno) => {
                    state::fail(errno);
                    libc::MAP_FAILED
                }
            };
        }
        if flags & libc::MREMAP_FIXED != 0 && state::overlaps(target as usize, pages(new_len)) && !guard::inside() {
            state::say(&format!("a mapping that is not managed cannot be moved onto managed memory, at {target:?}"));
            return out_of_memory();
        }
        // SAFETY: passes the caller's arguments on unchanged.
        unsafe { kernel!(libc::SYS_mremap, addr, old_len, new_len, flags, target) as *mut c_void }
    }
}
