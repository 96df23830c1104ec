//! Memory that the program has when it begins: its zeroed data (.bss), which may be an array of Fortran's or of C's and
//! all that it has, and what an allocator of its own or a constructor has mapped before this library's.

use std::ops::Range;

use folioswap::{PAGE_SIZE, RangeSet, RawSpace};
use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::{said, static_tls};

use crate::ground::c_library;
use crate::ground::heap::{ORDINARY, PRIVATE};
use crate::map::managed::manage;

/// Smaller mappings are not looked at, and smaller untouched parts of them are not managed with a locked budget.
const LEAST_BYTES: usize = 1 << 20;
const LEAST_PART_BYTES: usize = 64 << 10;

/// Readable and writable private memory without files, by the mappings of this process. None, if the kernel does not
/// say, or if a constructor has started a thread: it may be about to touch it, and some of it is its stack.
pub fn find() -> Vec<Range<usize>> {
    let status = said::read("/proc/self/status").unwrap_or_default();
    if !status.lines().any(|line| line.strip_prefix("Threads:").is_some_and(|nr| nr.trim() == "1")) {
        return Vec::new();
    }
    let own = [own_object(), PRIVATE.span(), ORDINARY.span()];
    let is_own = |range: &Range<usize>| own.iter().any(|own| range.start < own.end && own.start < range.end);
    let text = said::read("/proc/self/maps").unwrap_or_default();
    let mut found = RangeSet::new();
    text.lines().filter_map(nameless).filter(|range| !is_own(range)).for_each(|range| found.add(range));
    found.remove(of_thread());
    found.iter().filter(|range| range.len() >= LEAST_BYTES).collect()
}

/// The pages of the calling thread's static thread-local storage, and of the C library's record behind it. The kernel
/// writes there (rseq, robust mutexes) without waiting for a missing page. It may have merged them with a neighbour.
fn of_thread() -> Range<usize> {
    /// Of the record, with room for longer ones.
    const RECORD_BYTES: usize = 8 << 10;
    let pointer = static_tls::thread_pointer();
    (pointer - c_library::static_tls_bytes()) & !(PAGE_SIZE - 1)..(pointer + RECORD_BYTES).next_multiple_of(PAGE_SIZE)
}

/// The addresses of a mapping without a file or a name that is readable and writable.
fn nameless(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_whitespace();
    let (addresses, access) = (words.next()?, words.next()?);
    let inode = words.nth(2)?;
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    (access == "rw-p" && inode == "0" && words.next().is_none()).then_some(number(start)?..number(end)?)
}

/// The addresses of this library.
fn own_object() -> Range<usize> {
    let mut found = 0..0;
    c_library::each_object(|object| {
        let is_this = object.has(own_object as *const () as usize);
        if is_this {
            let all = object.parts(libc::PT_LOAD).reduce(|one, next| one.start.min(next.start)..one.end.max(next.end));
            let all = all.unwrap_or_default();
            found = all.start..all.end.next_multiple_of(PAGE_SIZE);
        }
        is_this
    });
    found
}

/// The parts that hold nothing yet. None, if the kernel does not say.
fn untouched(range: &Range<usize>) -> Vec<Range<usize>> {
    const NR_AT_ONCE: usize = 512;
    let mut parts: Vec<Range<usize>> = Vec::new();
    let Ok(pagemap) = Pagemap::open() else { return parts };
    for start in range.clone().step_by(NR_AT_ONCE * PAGE_SIZE) {
        let pages = start..range.end.min(start + NR_AT_ONCE * PAGE_SIZE);
        let Ok(filled) = pagemap.filled(pages.clone()) else { return Vec::new() };
        for (page, is_filled) in pages.step_by(PAGE_SIZE).zip(filled) {
            match parts.last_mut() {
                _ if is_filled => {}
                Some(last) if last.end == page => last.end += PAGE_SIZE,
                _ => parts.push(page..page + PAGE_SIZE),
            }
        }
    }
    parts.retain(|part| part.len() >= LEAST_PART_BYTES);
    parts
}

/// Has the engine manage what is untouched of what was found: with a locked budget, whose frames have their pages
/// already, nothing is adopted.
pub fn limit(space: &RawSpace, found: &[Range<usize>]) {
    found.iter().flat_map(untouched).for_each(|part| manage(space, part));
}
