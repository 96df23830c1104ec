//! Address space and the memory in it: reserving, protecting, advising, populating.
//!
//! Ranges are given as addresses and lengths in bytes, both multiples of the page size. What takes content or access away, or
//! reads and writes at an address, is an `unsafe fn`: its caller owns the range. What only a [`Reservation`]'s owner may do is
//! a method of it, which asserts the bounds. Safe at any address are calls that change neither content nor access, at most
//! what RAM it takes: advice on huge pages, [`collapse`], [`lock_on_fault`]; and [`dofork`], which takes nothing from anyone.
//! All are raw system calls: a preloaded library that interposes mmap or madvise does not meet the engine's own.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::check;
use crate::pagemap::Pagemap;

const PAGE_BYTES: usize = 4096;

/// Linux 6.1, 5.14 and 5.18; the libc crate lacks them for some targets.
const MADV_COLLAPSE: libc::c_int = 25;
const MADV_POPULATE_WRITE: libc::c_int = 23;
const MADV_DONTNEED_LOCKED: libc::c_int = 24;

/// The calling thread, where a descriptor of a process is asked for, and so its memory; the libc crate lacks it.
const PIDFD_SELF: libc::c_int = -10000;

/// Ranges that one system call gives back.
const MOST_RANGES: usize = 128;

/// Of `mlock2`: what is there, and what will be, is locked; nothing is faulted in for it. Linux 4.4.
const MLOCK_ONFAULT: libc::c_int = 1;

/// Addresses that nobody else gets, without memory and without access until [`Reservation::protect_rw`]. Unmapped by its drop.
#[derive(Debug)]
pub struct Reservation {
    addr: usize,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes at a multiple of `align` (a power of two, at least a page). Costs no memory.
    ///
    /// # Errors
    /// ENOMEM: the address space is used up or limited (ulimit -v).
    ///
    /// # Panics
    /// When `align` is no power of two of at least a page, or `len` is 0 or not whole pages.
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        assert!(align.is_power_of_two() && align >= PAGE_BYTES && len > 0 && len.is_multiple_of(PAGE_BYTES));
        let slack = align - PAGE_BYTES;
        let whole = len.checked_add(slack).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing that exists is touched.
        let start =
            check(unsafe { libc::syscall(libc::SYS_mmap, 0usize, whole, libc::PROT_NONE, flags, -1isize, 0usize) })?;
        let addr = start.next_multiple_of(align);
        let (before, behind) = (addr - start, start + whole - (addr + len));
        for (addr, len) in [(start, before), (addr + len, behind)] {
            if len > 0 {
                // SAFETY: what is trimmed is this call's own and unused; a failure to do so only leaves addresses unused.
                let _ = unsafe { unmap(addr, len) };
            }
        }
        Ok(Reservation { addr, len })
    }

    /// The first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// All of its addresses.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.addr..self.addr + self.len
    }

    /// Makes a part readable and writable. Content stays, and nobody's access ends.
    ///
    /// # Errors
    /// ENOMEM: too many mappings, or more memory than the kernel grants.
    ///
    /// # Panics
    /// When the part lies outside.
    pub fn protect_rw(&self, part: Range<usize>) -> io::Result<()> {
        self.assert_has(&part);
        // SAFETY: a part of this reservation (asserted), which `self` keeps mapped; to give access takes nothing away.
        unsafe { protect(part.start, part.len(), libc::PROT_READ | libc::PROT_WRITE) }
    }

    /// Keeps a part from forked children: it is not mapped there at all. Fork is unsafe: whoever calls it knows what its
    /// child lacks.
    ///
    /// # Errors
    /// ENOMEM: there are too many mappings.
    ///
    /// # Panics
    /// When the part lies outside.
    pub fn dontfork(&self, part: Range<usize>) -> io::Result<()> {
        self.assert_has(&part);
        // SAFETY: a part of this reservation (asserted), so no stack, heap or static that Rust's own code between fork and exec
        // uses; this process keeps all that it has.
        unsafe { advise(part.start, part.len(), libc::MADV_DONTFORK) }
    }

    fn assert_has(&self, part: &Range<usize>) {
        assert!(self.addr <= part.start && part.start <= part.end && part.end <= self.addr + self.len);
    }

    /// Keeps the addresses for the rest of the process.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is this reservation's own, and who holds references into it keeps the reservation. A failure
        // leaves it in place, which harms nobody.
        let _ = unsafe { unmap(self.addr, self.len) };
    }
}

/// Reserves `len` bytes at a multiple of 2 MiB, readable and writable, for huge pages.
///
/// # Errors
/// As [`Reservation::new`]; a kernel without huge pages is no error.
pub fn anonymous_huge(len: usize) -> io::Result<Reservation> {
    let memory = Reservation::new(len, 2 << 20)?;
    memory.protect_rw(memory.range())?;
    match advise_hugepage(memory.addr, len) {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(memory),
    }
}

/// Takes all access to a range away. Content and registration stay.
///
/// # Errors
/// ENOMEM: too many mappings, or a part of it is not mapped.
///
/// # Safety
/// The range is the caller's own mapping, and nobody uses a reference to it until there is access again, unless what a
/// fault there does is the caller's as well.
pub unsafe fn protect_none(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { protect(addr, len, libc::PROT_NONE) }
}

/// Lets the kernel use huge pages in a range.
///
/// # Errors
/// EINVAL: the kernel has none.
pub fn advise_hugepage(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: what is there keeps its content and its access.
    unsafe { advise(addr, len, libc::MADV_HUGEPAGE) }
}

/// Keeps huge pages out of a range.
///
/// # Errors
/// EINVAL: the kernel has none to keep out; that is no error here.
pub fn advise_nohugepage(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: as [`advise_hugepage`].
    match unsafe { advise(addr, len, libc::MADV_NOHUGEPAGE) } {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

/// Gives the memory of a range back; a touch finds zeros, or faults where registered.
///
/// # Errors
/// EINVAL: locked memory.
///
/// # Safety
/// The range is the caller's own mapping, and what it holds is nobody's: no reference to it is used, and who reads it later
/// takes zeros for a value.
pub unsafe fn dontneed(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { advise(addr, len, libc::MADV_DONTNEED) }
}

/// Gives the memory of many ranges back. In one system call for up to 128 of them, neighbours counted as one, where the
/// kernel grants that of the caller's own memory (Linux 6.13, and 6.14 for the name of the caller): other CPUs that run threads of this process are
/// interrupted once for each call, and that is what most of the time goes to.
///
/// # Errors
/// As [`dontneed`]; some ranges have lost their memory then.
///
/// # Safety
/// As [`dontneed`], for each range.
pub unsafe fn dontneed_many(ranges: impl IntoIterator<Item = (usize, usize)>) -> io::Result<()> {
    let mut batch = [(0, 0); MOST_RANGES];
    let mut nr_ranges = 0;
    for (addr, len) in ranges {
        match batch[..nr_ranges].last_mut() {
            Some(last) if last.0 + last.1 == addr => last.1 += len,
            Some(last) if addr + len == last.0 => *last = (addr, len + last.1),
            _ => {
                if nr_ranges == MOST_RANGES {
                    // SAFETY: the caller's promise: these are ranges of its own, or neighbours of them joined.
                    unsafe { dontneed_batch(&batch)? };
                    nr_ranges = 0;
                }
                batch[nr_ranges] = (addr, len);
                nr_ranges += 1;
            }
        }
    }
    // SAFETY: as above.
    unsafe { dontneed_batch(&batch[..nr_ranges]) }
}

/// # Safety
/// As [`dontneed`], for each range.
unsafe fn dontneed_batch(ranges: &[(usize, usize)]) -> io::Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { dontneed_at_once(ranges) } {
        return Ok(());
    }
    // SAFETY: the caller's promise; once more does no harm.
    ranges.iter().try_for_each(|&(addr, len)| unsafe { dontneed(addr, len) })
}

/// In one call; `false` when the kernel did not do all of it.
///
/// # Safety
/// As [`dontneed`], for each range.
unsafe fn dontneed_at_once(ranges: &[(usize, usize)]) -> bool {
    let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_RANGES];
    for (entry, &(addr, len)) in vector.iter_mut().zip(ranges) {
        *entry = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
    }
    let nr_bytes: usize = ranges.iter().map(|&(_, len)| len).sum();
    // SAFETY: the caller's promise, for each of the ranges; the vector outlives the call.
    let done = unsafe {
        libc::syscall(libc::SYS_process_madvise, PIDFD_SELF, vector.as_ptr(), ranges.len(), libc::MADV_DONTNEED, 0)
    };
    usize::try_from(done) == Ok(nr_bytes)
}

/// The same for memory that is locked, which it stays; memory that is not is given back as well.
///
/// # Errors
/// EINVAL: before Linux 5.18.
///
/// # Safety
/// As [`dontneed`].
pub unsafe fn dontneed_locked(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { advise(addr, len, MADV_DONTNEED_LOCKED) }
}

/// Locks a range in RAM: the pages that it has and those that it will get. None is faulted in. Costs a few us, however
/// long the range is; all of it counts against [`memlock_limit`].
///
/// # Errors
/// EPERM and ENOMEM: the limit of locked memory is zero, or less than all that is locked then; ENOMEM too where a part
/// is not mapped.
pub fn lock_on_fault(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: no content and no access changes, whoever's the range is.
    check(unsafe { libc::syscall(libc::SYS_mlock2, addr, len, MLOCK_ONFAULT) }).map(drop)
}

/// Whether this process may lock so many bytes beside what it has locked, whatever gives it the right to. Tried, on addresses
/// without memory that are given back.
///
/// # Errors
/// As [`lock_on_fault`].
pub fn may_lock(len: usize) -> io::Result<()> {
    let addresses = Reservation::new(len, PAGE_BYTES)?;
    lock_on_fault(addresses.addr, len)
}

/// How many bytes of addresses this process may lock unless it has CAP_IPC_LOCK; none: any number.
#[must_use]
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit, which is this frame's own.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Lets forked children have a range again ([`Reservation::dontfork`]).
///
/// # Errors
/// ENOMEM: a part of it is not mapped, or there are too many mappings.
pub fn dofork(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: this process keeps all that it has; a child gets more.
    unsafe { advise(addr, len, libc::MADV_DOFORK) }
}

/// A page, readable and writable, that is all zeros in every child that gets a copy of the memory.
///
/// # Errors
/// ENOMEM; EINVAL before Linux 4.14.
pub fn wiped_on_fork() -> io::Result<Reservation> {
    let page = Reservation::new(PAGE_BYTES, PAGE_BYTES)?;
    page.protect_rw(page.range())?;
    // SAFETY: this call's own page, which nobody has seen yet.
    check(unsafe { libc::syscall(libc::SYS_madvise, page.addr, page.len, libc::MADV_WIPEONFORK) })?;
    Ok(page)
}

/// Puts memory under a whole range, as huge pages where advised and aligned; what is there stays. In a range that is
/// registered with a userfaultfd this faults as a touch does: such memory is populated elsewhere and moved.
///
/// # Errors
/// ENOMEM, EHWPOISON, and EFAULT where a fault could not be resolved.
///
/// # Safety
/// As [`touch`] for writing, which does it before Linux 5.14.
pub unsafe fn populate_write(addr: usize, len: usize) -> io::Result<()> {
    loop {
        // SAFETY: what is there keeps its content.
        match unsafe { advise(addr, len, MADV_POPULATE_WRITE) } {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // SAFETY: the caller's promise.
                unsafe { touch(addr, len, true) };
                return Ok(());
            }
            done => return done,
        }
    }
}

/// Makes whole, aligned, present huge page ranges huge pages of this process alone again, whatever they consist of now;
/// content stays. Costs a copy (0.4 to 4 ms a huge page).
///
/// # Errors
/// EBUSY, EAGAIN where pages are in use; EINVAL before Linux 6.1 and where huge pages are switched off.
pub fn collapse(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: content and access stay; another thread's use of it waits meanwhile.
    unsafe { advise(addr, len, MADV_COLLAPSE) }
}

/// Faults in every page of a range from user space, for reading or for writing. Content stays, also while other
/// threads write to it.
///
/// # Safety
/// The range is mapped and readable, and writable if `write` is set, or the fault handler of the process answers for it.
pub unsafe fn touch(addr: usize, len: usize, write: bool) {
    for page in (addr..addr + len).step_by(PAGE_BYTES) {
        // SAFETY: the caller's range is mapped, and writable if `write` is set (its promise); a byte is always aligned,
        // and an atomic access is no race with other threads' use.
        let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
        if write {
            // A zero that the compiler can see makes this a load.
            byte.fetch_or(std::hint::black_box(0), Ordering::Relaxed);
        } else {
            std::hint::black_box(byte.load(Ordering::Relaxed));
        }
    }
}

/// Copies `len` bytes of whole pages from `source` to `target`, if all pages of the source are there: a touch of a
/// missing one would be a fault of the engine's own.
///
/// # Errors
/// EFAULT: a page of the source is missing; nothing was copied.
///
/// # Safety
/// The source is mapped and readable, and nobody writes to it or takes pages away meanwhile (it is write-protected). The target
/// is writable memory of the caller's own that nobody refers to, and apart from the source.
pub unsafe fn copy_pages(pagemap: &Pagemap, source: usize, target: usize, len: usize) -> io::Result<()> {
    const CHUNK: usize = 512;
    for chunk in (source..source + len).step_by(CHUNK * PAGE_BYTES) {
        let nr_bytes = (source + len - chunk).min(CHUNK * PAGE_BYTES);
        let nr_pages = nr_bytes.div_ceil(PAGE_BYTES);
        let mut present = [0u8; CHUNK];
        // SAFETY: the kernel writes one byte a page, `nr_pages` of them, into an array of CHUNK of this frame's own.
        check(unsafe { libc::syscall(libc::SYS_mincore, chunk, nr_bytes, present.as_mut_ptr()) })?;
        // What the kernel has swapped out itself it says is absent; the copy brings that back.
        let is_missing =
            |page| present[page] & 1 == 0 && !pagemap.is_swapped(chunk + page * PAGE_BYTES).unwrap_or(false);
        if (0..nr_pages).any(is_missing) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
    }
    // SAFETY: the source is mapped, readable (the caller's promise) and, as just seen, has no missing page; the target is the
    // caller's own writable memory, apart from the source (its promise).
    unsafe { std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, len) };
    Ok(())
}

/// Copies past the caches: for bytes that nobody reads soon, or that are more than the caches hold. The target's lines are not
/// fetched first, which saves a third of the memory traffic.
///
/// # Panics
/// When the lengths differ, or are no multiple of 64, or the target is not aligned to 16.
#[cfg(target_arch = "x86_64")]
pub fn copy_streaming(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    assert!(
        source.len() == target.len() && source.len().is_multiple_of(64) && target.as_ptr().addr().is_multiple_of(16)
    );
    if target.as_ptr().addr().is_multiple_of(64) && is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these instructions; the lengths are asserted, and the alignment was seen.
        return unsafe { copy_lines(source, target) };
    }
    for (source, target) in source.chunks_exact(64).zip(target.chunks_exact_mut(64)) {
        let (source, target) = (source.as_ptr().cast::<__m128i>(), target.as_mut_ptr().cast::<__m128i>());
        for lane in 0..4 {
            // SAFETY: four lanes of 16 bytes in chunks of 64; the target is aligned to 16 (asserted); every x86-64 has
            // these instructions.
            unsafe { _mm_stream_si128(target.add(lane), _mm_loadu_si128(source.add(lane))) };
        }
    }
    // SAFETY: every x86-64 has it. Orders the stores above before those that publish the copy.
    unsafe { _mm_sfence() };
}

/// As above, a line of the cache with each store: a line that is stored in parts may leave in parts.
///
/// # Safety
/// Both of one length, a multiple of 64; the target is aligned to 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_lines(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{__m512i, _mm_sfence, _mm512_loadu_si512, _mm512_stream_si512};
    for (source, target) in source.chunks_exact(64).zip(target.chunks_exact_mut(64)) {
        // SAFETY: one lane of 64 bytes in chunks of 64, the target aligned as the caller says.
        unsafe {
            _mm512_stream_si512(target.as_mut_ptr().cast::<__m512i>(), _mm512_loadu_si512(source.as_ptr().cast()))
        };
    }
    _mm_sfence();
}

/// Copies.
///
/// # Panics
/// When the lengths differ.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy_streaming(source: &[u8], target: &mut [u8]) {
    target.copy_from_slice(source);
}

/// Bytes of RAM in the machine.
#[must_use]
pub fn total_ram() -> u64 {
    // SAFETY: takes a number and returns one.
    let nr_pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(nr_pages).unwrap_or(0) * PAGE_BYTES as u64
}

/// # Safety
/// The range is the caller's own mapping, and nobody refers to what is in it.
pub(crate) unsafe fn unmap(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_munmap, addr, len) }).map(drop)
}

/// # Safety
/// The range is the caller's own mapping; where `access` takes something away, nobody needs it.
unsafe fn protect(addr: usize, len: usize, access: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_mprotect, addr, len, access) }).map(drop)
}

/// # Safety
/// The range is the caller's own, and nobody refers to what the advice takes away, if it does so.
unsafe fn advise(addr: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_aligned_and_can_be_used_after_protect_rw() {
        for align in [PAGE_BYTES, 64 << 10, 2 << 20] {
            let memory = Reservation::new(3 * align, align).unwrap();
            assert_eq!((memory.addr() % align, memory.len()), (0, 3 * align));
            memory.protect_rw(memory.range()).unwrap();
            // SAFETY: readable and writable memory of the test's own.
            unsafe { touch(memory.addr(), memory.len(), true) };
        }
    }

    #[test]
    fn what_was_given_back_reads_as_zero() {
        let memory = anonymous_huge(2 << 20).unwrap();
        let word = memory.addr() as *mut u64;
        // SAFETY: two accesses to readable and writable memory of the test's own.
        unsafe {
            word.write(7);
            dontneed(memory.addr(), memory.len()).unwrap();
            assert_eq!(word.read_volatile(), 0);
        }
    }

    #[test]
    fn of_many_ranges_each_is_given_back_and_no_other() {
        // Neighbours upwards, neighbours downwards, and more ranges than fit into one call.
        let upwards = (0..20).chain(30..31);
        let given: Vec<usize> = upwards.chain((40..60).rev()).chain((100..500).step_by(2)).collect();
        let memory = anonymous_huge(2 << 20).unwrap();
        advise_nohugepage(memory.addr(), memory.len()).unwrap();
        let word = |page: usize| (memory.addr() + page * PAGE_BYTES) as *mut u64;
        // SAFETY: accesses to readable and writable memory of the test's own.
        (0..512).for_each(|page| unsafe { word(page).write(7) });
        // SAFETY: pages of the test's own, to which it holds no references.
        unsafe { dontneed_many(given.iter().map(|&page| (word(page) as usize, PAGE_BYTES))).unwrap() };
        for page in 0..512 {
            // SAFETY: as above.
            let found = unsafe { word(page).read_volatile() };
            assert_eq!(found, if given.contains(&page) { 0 } else { 7 }, "page {page}");
        }
        // SAFETY: as above.
        let (at_once, off_a_page) = unsafe {
            let ranges = [(word(0) as usize, PAGE_BYTES), (word(2) as usize, PAGE_BYTES)];
            (dontneed_at_once(&ranges), dontneed_many([(memory.addr() + 1, PAGE_BYTES)]))
        };
        if !at_once {
            println!("SKIP many ranges in one call: the kernel does not have it");
        }
        assert!(off_a_page.is_err(), "not at a page");
    }

    #[test]
    fn locked_memory_is_given_back_where_that_is_said() {
        let memory = anonymous_huge(2 << 20).unwrap();
        if let Err(error) = lock_on_fault(memory.addr(), memory.len()) {
            println!("SKIP mlock2 of {} bytes: {error}; the limit is {:?}", memory.len(), memlock_limit());
            return;
        }
        let present = || crate::pagemap::resident_bytes(memory.addr()..memory.addr() + memory.len()).unwrap();
        assert_eq!(present(), 0, "nothing is faulted in");
        // SAFETY: readable and writable memory of the test's own, to which it holds no references.
        let refused = unsafe {
            populate_write(memory.addr(), memory.len()).unwrap();
            dontneed(memory.addr(), memory.len()).unwrap_err()
        };
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(present(), 2 << 20);
        // SAFETY: as above.
        unsafe { dontneed_locked(memory.addr(), memory.len()).unwrap() };
        assert_eq!(present(), 0);
    }

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
        // SAFETY: two parts of readable, writable memory of the test's own.
        let (first, error) = unsafe {
            populate_write(source, 8 * PAGE_BYTES).unwrap();
            (source as *mut u64).write(11);
            copy_pages(&pagemap, source, target, 8 * PAGE_BYTES).unwrap();
            let first = (target as *const u64).read_volatile();
            (first, copy_pages(&pagemap, source, target, 9 * PAGE_BYTES).unwrap_err())
        };
        assert_eq!(first, 11);
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn addresses_beyond_all_are_an_error() {
        assert!(Reservation::new(1 << 60, PAGE_BYTES).is_err());
        assert!(total_ram() > 1 << 20);
    }
}
