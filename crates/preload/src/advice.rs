//! madvise and its kin on managed memory. What says nothing to the engine is taken as read; what promises something is done
//! as the kernel does it, or refused with its error.

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;

use folioswap::{RawSpace, Wish};

use crate::export::export;
use crate::mapping::{FOLIO_BYTES, PAGE_BYTES, all_mapped, both, pages, refused};
use crate::protection::{self, ACCESS, Attributes, GUARD, LOCKED, NOT_FORKED, WIPED};
use crate::real::kernel;
use crate::{guard, state};

/// Linux 5.18 and 6.13; the libc crate lacks them for some targets.
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

/// The calling thread and its process, where a descriptor of one is asked for. Linux 6.14.
const PIDFD_SELF: [c_int; 2] = [-10000, -10001];

/// The whole folios of a range; may be empty.
fn whole_folios(range: &Range<usize>) -> Range<usize> {
    range.start.next_multiple_of(FOLIO_BYTES)..range.end / FOLIO_BYTES * FOLIO_BYTES
}

/// Whether the kernel knows such advice: asked about no memory at all.
fn check_known(start: usize, advice: c_int) -> Result<(), c_int> {
    // SAFETY: an empty range.
    let result = unsafe { kernel!(libc::SYS_madvise, start, 0, advice) };
    if result < 0 { Err(state::errno()) } else { Ok(()) }
}

/// EINVAL, as from the kernel, where a page of the range is locked.
fn none_locked(range: &Range<usize>) -> Result<(), c_int> {
    let is_locked = |run: &(Range<usize>, Attributes)| run.1 & LOCKED != 0;
    if !protection::is_empty() && protection::runs(range).iter().any(is_locked) { Err(libc::EINVAL) } else { Ok(()) }
}

fn discard(space: &RawSpace, range: &Range<usize>) -> Result<(), c_int> {
    protection::discard(space, range, |part| {
        // SAFETY: the program says that it does not need what these pages hold.
        unsafe { space.discard(part.start, part.len()) }
    })
}

/// Brings a range in, where all of it may be read, or written to.
fn populate(space: &RawSpace, range: &Range<usize>, access: c_int) -> Result<(), c_int> {
    all_mapped(space, range)?;
    for (_, attributes) in protection::runs(range) {
        if c_int::from(attributes & ACCESS) & access == 0 {
            return Err(libc::EINVAL);
        }
        if attributes & GUARD != 0 {
            return Err(libc::EFAULT);
        }
    }
    space.touch(range.start, range.len());
    Ok(())
}

/// Advice for a managed range, which is not empty.
fn advise_managed(space: &RawSpace, range: &Range<usize>, advice: c_int) -> Result<(), c_int> {
    let whole = whole_folios(range);
    let set = |bits: Attributes, on: bool| {
        protection::change(space, range, |page| if on { page | bits } else { page & !bits })
    };
    // As the kernel: what is mapped of the range is done, and that not all of it is, is said.
    let mapped = all_mapped(space, range);
    match advice {
        libc::MADV_DONTNEED => {
            none_locked(range)?;
            discard(space, range)?;
        }
        MADV_DONTNEED_LOCKED => discard(space, range)?,
        libc::MADV_REMOVE => return Err(libc::EINVAL), // for shared memory
        libc::MADV_FREE => {
            for (part, attributes) in protection::runs(range) {
                if attributes == protection::PLAIN {
                    // SAFETY: the program says that it does not need what these pages hold.
                    unsafe { space.offer(part) };
                }
            }
        }
        libc::MADV_WILLNEED => space.will_need(range.start, range.len()),
        libc::MADV_COLD | libc::MADV_PAGEOUT => {
            none_locked(range)?;
            if !whole.is_empty() {
                space.cold(whole.start, whole.len());
            }
        }
        // A block is one folio or several: what is advised for a part of it is advised for all of it.
        libc::MADV_HUGEPAGE => space.wish(range.start, range.len(), Wish::Whole),
        libc::MADV_NOHUGEPAGE => space.wish(range.start, range.len(), Wish::Pages),
        libc::MADV_POPULATE_READ => populate(space, range, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?,
        libc::MADV_POPULATE_WRITE => populate(space, range, libc::PROT_WRITE)?,
        libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE => return Err(libc::EPERM), // the frames are the engine's
        // Attributes are of mapped pages only.
        _ if mapped.is_err() => {}
        MADV_GUARD_INSTALL => {
            none_locked(range)?;
            discard(space, range)?;
            set(GUARD, true)?;
        }
        MADV_GUARD_REMOVE => set(GUARD, false)?,
        libc::MADV_WIPEONFORK => set(WIPED, true)?,
        libc::MADV_KEEPONFORK => set(WIPED, false)?,
        libc::MADV_DONTFORK => set(NOT_FORKED, true)?,
        libc::MADV_DOFORK => set(NOT_FORKED, false)?,
        _ => {}
    }
    mapped
}

/// What `madvise` does on a range of which a part may be managed.
fn advise(start: usize, len: usize, advice: c_int) -> c_int {
    let kernel = |part: &Range<usize>| {
        // SAFETY: the caller's own call.
        unsafe { kernel!(libc::SYS_madvise, part.start, part.len(), advice) }
    };
    let Some(space) = state::space().filter(|_| state::overlaps(start, len)) else {
        return kernel(&(start..start.saturating_add(len))) as c_int;
    };
    if !start.is_multiple_of(PAGE_BYTES) || start.checked_add(pages(len)).is_none() {
        return refused(libc::EINVAL);
    }
    let parts = state::cut(start, pages(len));
    let _guard = guard::enter();
    both(check_known(start, advice).and_then(|()| advise_managed(space, &parts[1], advice)), &parts, kernel)
}

export! {
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        advise(addr as usize, len, advice)
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

/// Whether a descriptor is this process's own.
fn is_self(pidfd: c_int) -> bool {
    let _guard = guard::enter();
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).unwrap_or_default();
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse::<u32>().ok());
    PIDFD_SELF.contains(&pidfd) || pid == Some(std::process::id())
}

export! {
    fn process_madvise(pidfd: c_int, ranges: *const libc::iovec, count: usize, advice: c_int, flags: c_uint) -> isize {
        let kernel = |count: usize| {
            crate::cover::touch(ranges, count * size_of::<libc::iovec>());
            // SAFETY: the caller's own call, or the same for none of its ranges.
            unsafe { kernel!(libc::SYS_process_madvise, pidfd, ranges, count, advice, flags) as isize }
        };
        if state::space().is_none() || count == 0 || count > 1024 || ranges.is_null() || !is_self(pidfd) {
            return kernel(count);
        }
        // First what the kernel says of the advice and the descriptor.
        if kernel(0) < 0 {
            return -1;
        }
        let mut done = 0;
        for index in 0..count {
            // SAFETY: the caller's own array of `count` ranges.
            let range = unsafe { *ranges.add(index) };
            if advise(range.iov_base as usize, range.iov_len, advice) < 0 {
                return if done > 0 { done } else { -1 };
            }
            done += range.iov_len as isize;
        }
        done
    }
}
