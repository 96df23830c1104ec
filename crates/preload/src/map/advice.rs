//! madvise and its kin on managed memory. Advice that means nothing to the engine is accepted and ignored. Advice with
//! guaranteed effects has the same effects as in the kernel, or fails with the kernel's error.

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;

use folioswap::{RawSpace, Wish};

use crate::export::export;
use crate::map::mapping::{BLOCK_BYTES, PAGE_BYTES, all_mapped, both, pages, refused};
use crate::map::protection::{self, ACCESS, Attributes, GUARD, LOCKED, NOT_FORKED, WIPED};
use crate::real::kernel;
use crate::{guard, state};

/// Linux 5.18 and 6.13. The libc crate lacks them for some targets.
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

/// Values that stand for the calling thread and its process in place of a pidfd. Linux 6.14.
const PIDFD_SELF: [c_int; 2] = [-10000, -10001];

/// The whole folios of a range. May be empty.
fn whole_folios(range: &Range<usize>) -> Range<usize> {
    range.start.next_multiple_of(BLOCK_BYTES)..range.end / BLOCK_BYTES * BLOCK_BYTES
}

/// Whether the kernel knows this advice. Asks it about an empty range.
fn check_known(start: usize, advice: c_int) -> Result<(), c_int> {
    // SAFETY: the range is empty.
    let result = unsafe { kernel!(libc::SYS_madvise, start, 0, advice) };
    if result < 0 { Err(state::errno()) } else { Ok(()) }
}

/// EINVAL, as from the kernel, if a page of the range is locked.
fn none_locked(range: &Range<usize>) -> Result<(), c_int> {
    let is_locked = |run: &(Range<usize>, Attributes)| run.1 & LOCKED != 0;
    if !protection::is_empty() && protection::runs(range).iter().any(is_locked) { Err(libc::EINVAL) } else { Ok(()) }
}

fn discard(space: &RawSpace, range: &Range<usize>) -> Result<(), c_int> {
    protection::discard(space, range, |part| {
        // SAFETY: the program declares that it does not need the content of these pages.
        unsafe { space.discard(part.start, part.len()) }
    })
}

/// Faults a range in, if all of it is readable, or writable, as `access` says.
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

/// Applies advice to a managed range that is not empty.
fn advise_managed(space: &RawSpace, range: &Range<usize>, advice: c_int) -> Result<(), c_int> {
    let whole = whole_folios(range);
    let set = |bits: Attributes, on: bool| {
        protection::change(space, range, |page| if on { page | bits } else { page & !bits })
    };
    // As in the kernel, the mapped part is processed, and the call still fails if another part is not mapped.
    let mapped = all_mapped(space, range);
    match advice {
        libc::MADV_DONTNEED => {
            none_locked(range)?;
            discard(space, range)?;
        }
        MADV_DONTNEED_LOCKED => discard(space, range)?,
        libc::MADV_REMOVE => return Err(libc::EINVAL), // shared memory only
        libc::MADV_FREE => {
            for (part, attributes) in protection::runs(range) {
                if attributes == protection::PLAIN {
                    // SAFETY: the program declares that it does not need the content of these pages.
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
        // A block comes back whole or in parts, so advice for a part of a block applies to all of it.
        libc::MADV_HUGEPAGE => space.wish(range.start, range.len(), Wish::Whole),
        libc::MADV_NOHUGEPAGE => space.wish(range.start, range.len(), Wish::Pages),
        libc::MADV_POPULATE_READ => populate(space, range, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?,
        libc::MADV_POPULATE_WRITE => populate(space, range, libc::PROT_WRITE)?,
        libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE => return Err(libc::EPERM), // the engine owns the frames
        // The advice below sets attributes, which only mapped pages have.
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

/// Implements `madvise` on a range of which a part may be managed.
fn advise(start: usize, len: usize, advice: c_int) -> c_int {
    let kernel = |part: &Range<usize>| {
        // SAFETY: passes the caller's arguments on unchanged.
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
    both(|| check_known(start, advice).and_then(|()| advise_managed(space, &parts[1], advice)), &parts, kernel)
}

export! {
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        advise(addr as usize, len, advice)
    }
}

export! {
    fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
        if advice == libc::POSIX_MADV_DONTNEED {
            return 0; // unlike MADV_DONTNEED, this must not lose data
        }
        let errno = state::errno();
        // SAFETY: passes the caller's arguments on. The other POSIX values equal those of `madvise`.
        let result = if unsafe { madvise(addr, len, advice) } < 0 { state::errno() } else { 0 };
        state::fail(errno);
        result
    }
}

/// Whether a pidfd refers to this process.
fn is_self(pidfd: c_int) -> bool {
    let _guard = guard::enter();
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).unwrap_or_default();
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse::<u32>().ok());
    PIDFD_SELF.contains(&pidfd) || pid == Some(std::process::id())
}

export! {
    fn process_madvise(pidfd: c_int, ranges: *const libc::iovec, count: usize, advice: c_int, flags: c_uint) -> isize {
        let kernel = |count: usize| {
            crate::calls::cover::touch(ranges, count * size_of::<libc::iovec>());
            // SAFETY: the caller's call, with all of its ranges or with none.
            unsafe { kernel!(libc::SYS_process_madvise, pidfd, ranges, count, advice, flags) as isize }
        };
        if state::space().is_none() || count == 0 || count > 1024 || ranges.is_null() || !is_self(pidfd) {
            return kernel(count);
        }
        // First let the kernel check the advice and the descriptor.
        if kernel(0) < 0 {
            return -1;
        }
        let mut done = 0;
        for index in 0..count {
            // SAFETY: the caller passes an array of `count` ranges.
            let range = unsafe { *ranges.add(index) };
            if advise(range.iov_base as usize, range.iov_len, advice) < 0 {
                return if done > 0 { done } else { -1 };
            }
            done += range.iov_len as isize;
        }
        done
    }
}
