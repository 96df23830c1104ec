//! Memory that the program has when it begins: its zeroed data (.bss), which may be an array of Fortran's or of C's and
//! all that it has, and what an allocator of its own or a constructor has mapped before this library's. What nobody has
//! touched is managed.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use folioswap::RawSpace;

use crate::alloc::heap::{ORDINARY, PRIVATE};
use crate::map::known;
use crate::map::mapping::{PAGE_BYTES, manage};

/// Smaller mappings are not looked at, and smaller untouched parts of them are not managed.
const LEAST_BYTES: usize = 1 << 20;
const LEAST_PART_BYTES: usize = 64 << 10;

/// What was mapped before: private memory, without files.
#[derive(Default)]
pub struct Present {
    /// Readable and writable.
    pub open: Vec<Range<usize>>,
    /// Without access.
    pub reserved: Vec<Range<usize>>,
}

impl Present {
    /// Looks at the mappings of this process. None, if the kernel does not say.
    pub fn find() -> Present {
        let mut present = Present::default();
        let own = own_object();
        for line in fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
            let Some((range, access)) = nameless(line) else { continue };
            let is_heaps = [&PRIVATE, &ORDINARY].iter().any(|heap| heap.owns(range.start as *const u8));
            let is_own = range.start < own.end && own.start < range.end;
            if range.len() < LEAST_BYTES || is_heaps || is_own {
                continue;
            }
            match access {
                "rw-p" => present.open.push(range),
                "---p" => present.reserved.push(range),
                _ => {}
            }
        }
        present
    }

    /// Bytes that the program may use at once.
    pub fn open_bytes(&self) -> usize {
        self.open.iter().map(Range::len).sum()
    }

    /// Notes what may become managed later.
    pub fn note_reserved(&self) {
        let mut reserved = known::reserved();
        self.reserved.iter().flat_map(untouched).for_each(|part| reserved.add(part));
    }

    /// Has the engine manage what is untouched.
    pub fn limit(&self, space: &RawSpace) {
        self.open.iter().flat_map(untouched).for_each(|part| manage(space, part));
    }
}

/// The addresses and the access of a mapping without a file or a name.
fn nameless(line: &str) -> Option<(Range<usize>, &str)> {
    let mut words = line.split_whitespace();
    let (addresses, access) = (words.next()?, words.next()?);
    let inode = words.nth(2)?;
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    (inode == "0" && words.next().is_none()).then_some((number(start)?..number(end)?, access))
}

/// The addresses of this library.
fn own_object() -> Range<usize> {
    let mut found = 0..0;
    // SAFETY: the callback gets the range, which lives as long as this call.
    unsafe { libc::dl_iterate_phdr(Some(note_own), (&raw mut found).cast()) };
    found
}

/// Notes the addresses of an object, if it is this library.
unsafe extern "C" fn note_own(object: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object with so many headers, and `found` is the range of `own_object`.
    let (object, found, headers) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object, &mut *found.cast::<Range<usize>>(), headers)
    };
    let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        start..start + header.p_memsz as usize
    });
    let all = segments.reduce(|one, next| one.start.min(next.start)..one.end.max(next.end)).unwrap_or_default();
    let is_this = all.contains(&(own_object as *const () as usize));
    if is_this {
        *found = all.start..all.end.next_multiple_of(PAGE_BYTES);
    }
    is_this.into()
}

/// The parts that hold nothing yet. None, if the kernel does not say.
fn untouched(range: &Range<usize>) -> Vec<Range<usize>> {
    /// A page is in RAM, or in the kernel's swap.
    const HAS_CONTENT: u64 = 3 << 62;
    const ENTRY_BYTES: usize = size_of::<u64>();
    let mut entries = vec![0; range.len() / PAGE_BYTES * ENTRY_BYTES];
    let at = (range.start / PAGE_BYTES * ENTRY_BYTES) as u64;
    if File::open("/proc/self/pagemap").and_then(|file| file.read_exact_at(&mut entries, at)).is_err() {
        return Vec::new();
    }
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    let has_content: Vec<bool> = entries.iter().map(|&entry| u64::from_ne_bytes(entry) & HAS_CONTENT != 0).collect();
    let mut page = range.start;
    let mut parts = Vec::new();
    for run in has_content.chunk_by(|one, next| one == next) {
        let end = page + run.len() * PAGE_BYTES;
        if !run[0] && end - page >= LEAST_PART_BYTES {
            parts.push(page..end);
        }
        page = end;
    }
    parts
}
