//! Pages with content: moved to another place, and copied.
//!
//! Ranges are addresses and lengths in bytes, both multiples of the page size, unless a function says otherwise. The
//! system calls are raw, as in [`memory`](crate::memory).

use std::io;

use crate::memory::protect;
use crate::pagemap::Pagemap;
use crate::{check, maps};

/// Moves the pages of a range, with any protection, to another place, and replaces what is mapped there. The place
/// becomes readable and writable. Nothing is copied, and a huge page stays huge. The mapping stays where it was,
/// without pages, and registered with a userfaultfd if it was.
///
/// # Errors
/// The pages stay where they are. What was at the place may be unmapped then, if others have not mapped it yet.
/// EFAULT: the range is not within one mapping. ENOMEM: too many mappings. EINVAL before Linux 5.7.
///
/// # Panics
/// If the kernel makes the place not accessible.
///
/// # Safety
/// The caller handles faults in the range, and nobody needs what is at the place.
pub unsafe fn take_pages(from: usize, to: usize, len: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller upholds this function's own contract.
    check(unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) })?;
    let plain = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as above; key 0 is that of ordinary memory.
    check(unsafe { libc::syscall(libc::SYS_pkey_mprotect, to, len, plain, 0) })
        // SAFETY: as above. For a kernel without keys.
        .map(drop)
        .or_else(|_| unsafe { protect(to, len, plain) })
        .expect("the kernel makes a new mapping accessible");
    Ok(())
}

/// Undoes [`take_pages`]: the pages go back, and have the protection of the mapping that stayed there, which they
/// replace. What was registered with a userfaultfd is so no more, and nothing is mapped at the place.
///
/// # Errors
/// The pages are still at the place.
///
/// # Safety
/// The caller handles faults in the range, and nobody touches a page of it that is not at the place.
pub unsafe fn return_pages(from: usize, to: usize, len: usize) -> io::Result<()> {
    let protection = maps::protection_at(to)?;
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        protect(from, len, protection)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        check(libc::syscall(libc::SYS_mremap, from, len, len, flags, to)).map(drop)
    }
}

/// Copies `len` bytes of whole pages from `source` to `target`, if all source pages are present. Touching a missing one
/// would make the engine itself fault.
///
/// # Errors
/// EFAULT: a source page is missing. Nothing was copied.
///
/// # Safety
/// The source is mapped and readable, and nobody writes to it or removes pages meanwhile. The target is writable memory
/// of the caller's own that nobody refers to, and does not overlap the source.
pub unsafe fn copy_pages(pagemap: &Pagemap, source: usize, target: usize, len: usize) -> io::Result<()> {
    if !pagemap.are_present(source, len) {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    // SAFETY: the source is mapped and readable (this function's contract), and has no missing page. The target is the
    // caller's own writable memory, and does not overlap the source (same contract).
    unsafe { std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, len) };
    Ok(())
}

/// Copies with non-temporal stores: for data that is not read soon, or that exceeds the caches. The target's cache
/// lines are not fetched first, which saves a third of the memory traffic.
///
/// # Panics
/// If the lengths differ or are not a multiple of 64, or the target is not aligned to 16.
pub fn copy_streaming(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    assert!(
        source.len() == target.len() && source.len().is_multiple_of(64) && target.as_ptr().addr().is_multiple_of(16)
    );
    if target.as_ptr().addr().is_multiple_of(64) && is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has these instructions. The lengths are asserted, and the alignment is checked above.
        return unsafe { copy_lines(source, target) };
    }
    for (source, target) in source.chunks_exact(64).zip(target.chunks_exact_mut(64)) {
        let (source, target) = (source.as_ptr().cast::<__m128i>(), target.as_mut_ptr().cast::<__m128i>());
        for lane in 0..4 {
            // SAFETY: four lanes of 16 bytes in chunks of 64. The target is aligned to 16 (asserted). Every x86-64 has
            // these instructions.
            unsafe { _mm_stream_si128(target.add(lane), _mm_loadu_si128(source.add(lane))) };
        }
    }
    // SAFETY: every x86-64 has it. Orders the stores above before those that publish the copy.
    unsafe { _mm_sfence() };
}

/// As above, but each store writes a whole cache line. A line that is stored in parts may be written back in parts.
///
/// # Safety
/// Both slices have the same length, a multiple of 64. The target is aligned to 64.
#[target_feature(enable = "avx512f")]
unsafe fn copy_lines(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{__m512i, _mm_sfence, _mm512_loadu_si512, _mm512_stream_si512};
    for (source, target) in source.chunks_exact(64).zip(target.chunks_exact_mut(64)) {
        // SAFETY: one lane of 64 bytes in chunks of 64. The target is aligned, by this function's contract.
        unsafe {
            _mm512_stream_si512(target.as_mut_ptr().cast::<__m512i>(), _mm512_loadu_si512(source.as_ptr().cast()))
        };
    }
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PAGE_SIZE, advise_nohugepage, anonymous_huge, populate_write};

    #[test]
    fn streamed_copies_are_exact_whatever_the_alignment() {
        const LEN: usize = 4096 + 192;
        let source: Vec<u8> = (0..LEN + 1).map(|at| (at * 31 % 251) as u8).collect();
        let mut area = vec![0u8; LEN + 512];
        let line = area.as_ptr().align_offset(64);
        for (from, to) in [(0, 0), (1, 0), (0, 16), (1, 48)] {
            area.fill(0xAA);
            let target = line + to..line + to + LEN;
            copy_streaming(&source[from..from + LEN], &mut area[target.clone()]);
            assert!(area[target.clone()] == source[from..from + LEN], "from {from} to {to}");
            assert!(area[..target.start].iter().chain(&area[target.end..]).all(|&byte| byte == 0xAA), "nothing else");
        }
        let off = line + 8..line + 8 + LEN;
        assert!(std::panic::catch_unwind(move || copy_streaming(&source[..LEN], &mut area[off])).is_err());
    }

    #[test]
    fn copy_pages_refuses_a_missing_page() {
        let memory = anonymous_huge(4 << 20).unwrap();
        let (source, target) = (memory.addr(), memory.addr() + (2 << 20));
        advise_nohugepage(memory.addr(), memory.len()).unwrap();
        let pagemap = Pagemap::open().unwrap();
        // SAFETY: two parts of readable and writable memory of the test's own.
        let (first, error) = unsafe {
            populate_write(source, 8 * PAGE_SIZE).unwrap();
            (source as *mut u64).write(11);
            copy_pages(&pagemap, source, target, 8 * PAGE_SIZE).unwrap();
            let first = (target as *const u64).read_volatile();
            (first, copy_pages(&pagemap, source, target, 9 * PAGE_SIZE).unwrap_err())
        };
        assert_eq!(first, 11);
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
