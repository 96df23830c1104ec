//! The program's own `/proc/PID/pagemap`. The kernel takes pages that are out for pages that were never touched.
//!
//! Entries that are read say that such a page is in swap, and was written. A PAGEMAP_SCAN finds it in RAM, as
//! without this library: it is made block by block, and what has content is held meanwhile. Not looked at: entries that
//! are read by readv and its kin, and the files of other processes.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use folioswap::{BLOCK_BYTES, PAGE_SIZE, RawSpace};
use folioswap_sys::pagemap::{PAGEMAP_SCAN, PageRegion, ScanArguments};

use crate::calls::remote;
use crate::ground::real::kernel;
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};

/// Bits of an entry: in RAM or in swap; in swap; and written, if the kernel tracks that.
const IS_THERE: u64 = 3 << 62;
const IS_IN_SWAP: u64 = 1 << 62;
const IS_WRITTEN: u64 = 1 << 55;
const ENTRY_BYTES: usize = size_of::<u64>();

/// How many regions are asked for at a time.
const NR_REGIONS: usize = 128;

/// The parts with content of the first block of a range that has some. Empty: there is none.
fn first_filled(space: &RawSpace, range: Range<usize>) -> Vec<Range<usize>> {
    let _guard = guard::enter();
    state::keeping_errno(|| space.first_filled(range))
}

fn block_end(addr: usize) -> usize {
    (addr + 1).next_multiple_of(BLOCK_BYTES)
}

/// What an entry of a page with content that is out has: the last of its bits is had by a page that was just written.
fn out(fd: c_int) -> u64 {
    let mut entry = 0u64;
    let at = (&raw mut entry) as usize / PAGE_SIZE * ENTRY_BYTES;
    // SAFETY: the kernel writes to this local.
    unsafe { kernel!(libc::SYS_pread64, fd, &raw mut entry, ENTRY_BYTES, at) };
    IS_IN_SWAP | entry & IS_WRITTEN
}

/// Called after `len` bytes were read into a buffer: corrects them if they are entries. `offset`: where they lay;
/// `None`: before the descriptor's position.
pub fn after_read(fd: c_int, buffer: *mut c_void, len: isize, offset: Option<i64>) {
    if !remote::has_pagemap() || len < ENTRY_BYTES as isize || guard::inside() {
        return;
    }
    // SAFETY: takes no pointers.
    let position = || unsafe { kernel!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) as i64 - len as i64 };
    state::keeping_errno(|| {
        let Some(space) = state::space().filter(|_| remote::is_own_pagemap(fd)) else { return };
        let first = offset.unwrap_or_else(position) as usize / ENTRY_BYTES * PAGE_SIZE;
        let end = first.saturating_add(len as usize / ENTRY_BYTES * PAGE_SIZE);
        let (mut at, out) = (first, out(fd));
        while at < end {
            let parts = first_filled(space, at..end);
            let Some(last) = parts.last() else { return };
            at = block_end(last.end - 1);
            for page in parts.into_iter().flat_map(|part| part.step_by(PAGE_SIZE)) {
                let entry = buffer.cast::<u64>().wrapping_add((page - first) / PAGE_SIZE);
                // SAFETY: an entry in the caller's buffer, which the kernel has written. It need not be aligned.
                unsafe {
                    let found = entry.read_unaligned();
                    if found & IS_THERE == 0 {
                        entry.write_unaligned(found | out);
                    }
                }
            }
        }
    });
}

/// Makes a scan, after the kernel has made it as it is with the result `first`. `None`: that is right.
///
/// # Safety
/// The caller's call.
pub unsafe fn scan(fd: c_int, argument: *const c_void, first: c_int) -> Option<c_int> {
    if first < 0 || guard::inside() {
        return None;
    }
    let space = state::space()?;
    let asked = argument.cast_mut().cast::<ScanArguments>();
    // SAFETY: the kernel has read it.
    let scan = unsafe { access::read(asked) }?;
    let is_plain = scan.size == size_of::<ScanArguments>() as u64 && scan.flags == 0 && scan.vec != 0;
    let range = scan.start as usize..(scan.end as usize).min(1 << 47);
    if !is_plain || range.is_empty() || !state::overlaps(range.start, range.len()) || !remote::is_own_pagemap(fd) {
        return None;
    }
    let mut found = Found { fd, scan, nr_regions: 0, nr_pages: 0, last: PageRegion::default() };
    let mut at = range.start;
    while at < range.end && !found.is_done() {
        let parts = first_filled(space, at..range.end);
        let filled = parts.first().map_or(range.end, |part| part.start);
        // What lies before the next page with content; or the rest of its block, in which others are.
        let (end, held) =
            if filled > at { (filled, &[][..]) } else { (block_end(at).min(range.end), parts.as_slice()) };
        let reached = while_held(space, held, || found.look(at..end));
        match reached {
            Some(reached) if reached < end => {
                at = reached;
                break;
            }
            Some(_) => at = end,
            None => return Some(-1),
        }
    }
    // SAFETY: the kernel has written there.
    unsafe { (&raw mut (*asked).walk_end).write_unaligned(if at < range.end { at as u64 } else { scan.end }) };
    Some(found.nr_regions as c_int)
}

fn while_held<R>(space: &RawSpace, parts: &[Range<usize>], call: impl FnOnce() -> R) -> R {
    let _guard = guard::enter();
    // SAFETY: managed memory of the program's, which another thread could unmap at any time.
    state::keeping_errno(|| parts.iter().for_each(|part| _ = unsafe { space.hold(part.start, part.len()) }));
    let result = call();
    // SAFETY: held above.
    state::keeping_errno(|| parts.iter().for_each(|part| unsafe { space.release_hold(part.start, part.len()) }));
    result
}

/// What a scan has found so far.
struct Found {
    fd: c_int,
    /// As the program has asked.
    scan: ScanArguments,
    nr_regions: u64,
    nr_pages: u64,
    last: PageRegion,
}

impl Found {
    /// Whether as many pages were found as the program wants.
    fn is_done(&self) -> bool {
        self.scan.max_pages > 0 && self.nr_pages >= self.scan.max_pages
    }

    /// Looks at a part of the range. Returns how far it came. `None`: the call failed.
    fn look(&mut self, range: Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while at < range.end && !self.is_done() {
            let mut regions = [PageRegion::default(); NR_REGIONS];
            let mut part = ScanArguments { start: at as u64, end: range.end as u64, ..self.scan };
            (part.vec, part.vec_len) = (regions.as_mut_ptr() as u64, NR_REGIONS as u64);
            part.max_pages = self.scan.max_pages.saturating_sub(self.nr_pages);
            // SAFETY: the kernel reads and writes these locals.
            let nr = usize::try_from(unsafe { kernel!(libc::SYS_ioctl, self.fd, PAGEMAP_SCAN, &raw mut part) }).ok()?;
            for region in &regions[..nr] {
                if !self.add(region)? {
                    return Some(region.start as usize);
                }
            }
            at = (part.walk_end as usize).max(at + PAGE_SIZE);
        }
        Some(at)
    }

    /// Adds a region to the program's list. `false`: there is no room. `None`: the list cannot be written.
    fn add(&mut self, region: &PageRegion) -> Option<bool> {
        let joins = self.nr_regions > 0 && self.last.end == region.start && self.last.categories == region.categories;
        if !joins && self.nr_regions == self.scan.vec_len {
            return Some(false);
        }
        let start = if joins { self.last.start } else { region.start };
        self.nr_regions += u64::from(!joins);
        self.nr_pages += (region.end - region.start) / PAGE_SIZE as u64;
        self.last = PageRegion { start, ..*region };
        let place = (self.scan.vec as *mut PageRegion).wrapping_add(self.nr_regions as usize - 1);
        if !access::is_open(place as usize, size_of::<PageRegion>(), Access::Write) {
            state::fail(libc::EFAULT);
            return None;
        }
        // SAFETY: a place in the caller's list, which may be written. It need not be aligned.
        unsafe { place.write_unaligned(self.last) };
        Some(true)
    }
}
