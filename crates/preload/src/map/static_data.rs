//! The zeroed data of the program and its libraries (.bss): an array of Fortran's or of C's may be all that a program
//! has. What nobody has touched before the program begins is managed.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use folioswap::RawSpace;

use crate::map::mapping::{PAGE_BYTES, manage, pages};

/// Smaller data is not looked at, and smaller untouched parts of it are not managed.
const LEAST_BYTES: usize = 1 << 20;
const LEAST_PART_BYTES: usize = 64 << 10;

/// The data of all objects but this library.
pub fn find() -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // SAFETY: the callback gets the list, which lives as long as this call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) };
    found
}

/// Notes the data of one object.
unsafe extern "C" fn note(object: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object with so many headers, and `found` is the list of `find`.
    let (object, found, headers) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object, &mut *found.cast::<Vec<Range<usize>>>(), headers)
    };
    let segments = || {
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
            let start = (object.dlpi_addr + header.p_vaddr) as usize;
            (start + header.p_filesz as usize..start + header.p_memsz as usize, start, header.p_flags)
        })
    };
    let this = find as *const () as usize;
    if segments().any(|(zeroed, start, _)| (start..zeroed.end).contains(&this)) {
        return 0;
    }
    for (zeroed, _, flags) in segments() {
        let whole = pages(zeroed.start)..pages(zeroed.end);
        if flags & libc::PF_W != 0 && whole.len() >= LEAST_BYTES {
            found.push(whole);
        }
    }
    0
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

/// Has the engine manage data, where it is untouched.
pub fn limit(space: &RawSpace, data: &[Range<usize>]) {
    data.iter().flat_map(untouched).for_each(|part| manage(space, part));
}
