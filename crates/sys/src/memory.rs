//! Address space and its memory: reserving, protecting, advising, populating.
//!
//! Ranges are addresses and lengths in bytes, both multiples of the page size. Calls that take away content or access,
//! or that access memory at an address, are `unsafe fn`: the caller must own the range. Calls that need a
//! [`Reservation`] are its methods, and check the bounds. Safe at any address are calls that change neither content nor
//! access: huge page advice, [`collapse`], [`lock_on_fault`] and [`dofork`].
//!
//! All calls are raw system calls, so a preloaded library that interposes mmap or madvise does not see the engine's.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::check;

/// Bytes of a page. The same as core's, which does not know this crate.
pub const PAGE_SIZE: usize = 4096;

/// Stands for the calling thread, and so its memory, in place of a pidfd. Missing from the libc crate.
const PIDFD_SELF: libc::c_int = -10000;

/// Ranges that one system call frees.
const MOST_RANGES: usize = 128;

const PLACES: Range<usize> = 0x5100_0000_0000..0x5500_0000_0000;

/// Where to ask for addresses for what is the engine's, apart from the program's mappings: a program may unmap
/// something and map there again, and must not meet the engine there. If the kernel chose, it could choose these
/// addresses in between. Sanitizers leave the places here to programs, too.
pub fn place_apart(len: usize) -> usize {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let taken = TAKEN.fetch_add(len, Ordering::Relaxed);
    // The kernel has placed this library at random.
    let first = (&raw const TAKEN as usize & !(PAGE_SIZE - 1)) << 4;
    PLACES.start + (first + taken) % PLACES.len()
}

/// Whether an address is one of these.
pub fn is_apart(addr: usize) -> bool {
    PLACES.contains(&addr)
}

static RESERVED_BYTES: AtomicUsize = AtomicUsize::new(0);
static WRITABLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all reservations.
pub fn reserved_bytes() -> usize {
    RESERVED_BYTES.load(Ordering::Relaxed)
}

/// Bytes of them that were made writable, those of reservations that are gone included.
pub fn writable_bytes() -> usize {
    WRITABLE_BYTES.load(Ordering::Relaxed)
}

/// Reserved addresses, without memory and without access until [`Reservation::protect_rw`]. Unmapped on drop.
#[derive(Debug)]
pub struct Reservation {
    addr: usize,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes at a multiple of `align` (a power of two, at least a page), [apart](place_apart). Costs no
    /// memory.
    ///
    /// # Errors
    /// ENOMEM: the address space is used up or limited (ulimit -v).
    ///
    /// # Panics
    /// If `align` is not a power of two of at least a page, or `len` is 0 or not whole pages.
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        const TRIES: usize = 3;
        let mut made = Self::near(place_apart(len.saturating_add(align)), len, align)?;
        for _ in 1..TRIES {
            if PLACES.contains(&made.addr) {
                break; // else somebody has that place
            }
            match Self::near(place_apart(len.saturating_add(align)), len, align) {
                Ok(other) => made = other,
                Err(_) => break, // there are no addresses for two
            }
        }
        Ok(made)
    }

    /// As [`Reservation::new`], among the program's mappings: for memory that it gets.
    ///
    /// # Panics
    /// As there.
    pub fn for_program(len: usize, align: usize) -> io::Result<Self> {
        Self::near(0, len, align)
    }

    /// As [`Reservation::new`], and left out of core dumps: nobody finds anything in what the engine keeps. Said of the
    /// whole, it splits no mapping.
    ///
    /// # Panics
    /// As there.
    pub fn undumped(len: usize, align: usize) -> io::Result<Self> {
        let memory = Self::new(len, align)?;
        // SAFETY: changes neither content nor access.
        unsafe { advise(memory.addr, len, libc::MADV_DONTDUMP)? };
        Ok(memory)
    }

    fn near(place: usize, len: usize, align: usize) -> io::Result<Self> {
        assert!(align.is_power_of_two() && align >= PAGE_SIZE && len > 0 && len.is_multiple_of(PAGE_SIZE));
        let slack = align - PAGE_SIZE;
        let whole = len.checked_add(slack).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping. Existing ones are not touched.
        let start =
            check(unsafe { libc::syscall(libc::SYS_mmap, place, whole, libc::PROT_NONE, flags, -1isize, 0usize) })?;
        let addr = start.next_multiple_of(align);
        let (before, behind) = (addr - start, start + whole - (addr + len));
        for (addr, len) in [(start, before), (addr + len, behind)] {
            if len > 0 {
                // SAFETY: the trimmed parts are this call's own and unused. If this fails, addresses are wasted,
                // nothing more.
                let _ = unsafe { unmap(addr, len) };
            }
        }
        RESERVED_BYTES.fetch_add(len, Ordering::Relaxed);
        Ok(Reservation { addr, len })
    }

    /// The first address.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// All addresses.
    pub fn range(&self) -> Range<usize> {
        self.addr..self.addr + self.len
    }

    /// Makes a part readable and writable. Content stays, and no access is removed.
    ///
    /// # Errors
    /// ENOMEM: too many mappings, or more memory than the kernel grants.
    ///
    /// # Panics
    /// If the part lies outside.
    pub fn protect_rw(&self, part: Range<usize>) -> io::Result<()> {
        self.assert_has(&part);
        WRITABLE_BYTES.fetch_add(part.len(), Ordering::Relaxed);
        // SAFETY: a part of this reservation (asserted), which `self` keeps mapped. Granting access takes nothing away.
        unsafe { protect(part.start, part.len(), libc::PROT_READ | libc::PROT_WRITE) }
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
        // SAFETY: this reservation owns the range, and holders of references into it keep the reservation alive. After
        // a failure it stays mapped, which harms nobody.
        let _ = unsafe { unmap(self.addr, self.len) };
        RESERVED_BYTES.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Reserves `len` bytes at a multiple of 2 MiB, readable and writable, for huge pages.
///
/// # Errors
/// As [`Reservation::new`]. A kernel without huge pages is not an error.
pub fn anonymous_huge(len: usize) -> io::Result<Reservation> {
    let memory = Reservation::new(len, 2 << 20)?;
    memory.protect_rw(memory.range())?;
    match advise_hugepage(memory.addr, len) {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(memory),
    }
}

/// Allows huge pages in a range.
///
/// # Errors
/// EINVAL: the kernel has no huge pages.
pub fn advise_hugepage(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the memory keeps its content and its access.
    unsafe { advise(addr, len, libc::MADV_HUGEPAGE) }
}

/// The limit of the process's addresses (`ulimit -v`), if there is one.
pub fn address_limit() -> Option<u64> {
    limit(libc::RLIMIT_AS)
}

/// The limit of its private writable memory (`ulimit -d`), if there is one.
pub fn data_limit() -> Option<u64> {
    limit(libc::RLIMIT_DATA)
}

fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let limits = limits(resource, None).ok()?;
    (limits.rlim_cur != libc::RLIM64_INFINITY).then_some(limits.rlim_cur)
}

/// A limit of this process, and sets another one, if there is one.
///
/// # Errors
/// EPERM: the new one is not permitted.
pub(crate) fn limits(resource: libc::__rlimit_resource_t, new: Option<&libc::rlimit64>) -> io::Result<libc::rlimit64> {
    let mut before = MaybeUninit::<libc::rlimit64>::uninit();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads one structure, if there is one, and fills in the other.
    unsafe {
        check(libc::syscall(libc::SYS_prlimit64, 0, resource, new, before.as_mut_ptr()))?;
        Ok(before.assume_init())
    }
}

/// Whether the kernel was built with transparent huge pages.
pub fn has_huge_pages() -> bool {
    std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists()
}

/// Keeps huge pages out of a range. A kernel without huge pages is not an error.
pub fn advise_nohugepage(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: as [`advise_hugepage`].
    match unsafe { advise(addr, len, libc::MADV_NOHUGEPAGE) } {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

/// Frees the memory of a range. The next access finds zeros, or faults if the range is registered.
///
/// # Errors
/// EINVAL: locked memory.
///
/// # Safety
/// The range is the caller's own mapping, and nobody needs its content: no reference to it is used, and later readers
/// accept zeros as a value.
pub unsafe fn dontneed(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { advise(addr, len, libc::MADV_DONTNEED) }
}

/// Frees the memory of many ranges. Where the kernel supports it (Linux 6.13, and 6.14 for naming the caller), one
/// system call frees up to 128 ranges, and joined neighbours count as one. Most of the cost is the TLB shootdown: each
/// call interrupts the other CPUs that run threads of this process once.
///
/// # Errors
/// As [`dontneed`]. Some ranges have lost their memory then.
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
                    // SAFETY: the caller's ranges, or joined neighbours of them.
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
    // SAFETY: the caller upholds this function's own contract.
    if unsafe { dontneed_at_once(ranges) } {
        return Ok(());
    }
    // SAFETY: the caller upholds this function's own contract. Freeing a range twice does no harm.
    ranges.iter().try_for_each(|&(addr, len)| unsafe { dontneed(addr, len) })
}

/// Frees all ranges in one call; `false` if the kernel did not do all of it.
///
/// # Safety
/// As [`dontneed`], for each range.
unsafe fn dontneed_at_once(ranges: &[(usize, usize)]) -> bool {
    let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_RANGES];
    for (entry, &(addr, len)) in vector.iter_mut().zip(ranges) {
        *entry = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
    }
    let nr_bytes: usize = ranges.iter().map(|&(_, len)| len).sum();
    // SAFETY: the caller upholds this function's own contract for each range. The vector outlives the call.
    let done = unsafe {
        libc::syscall(libc::SYS_process_madvise, PIDFD_SELF, vector.as_ptr(), ranges.len(), libc::MADV_DONTNEED, 0)
    };
    usize::try_from(done) == Ok(nr_bytes)
}

/// As [`dontneed`], but also for locked memory, which stays locked.
///
/// # Errors
/// EINVAL: before Linux 5.18.
///
/// # Safety
/// As [`dontneed`].
pub unsafe fn dontneed_locked(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { advise(addr, len, libc::MADV_DONTNEED_LOCKED) }
}

/// Locks a range in RAM: the pages that are present, and those that come in later. No page is faulted in. Costs a few
/// us, whatever the length. All of it counts against [`memlock_limit`].
///
/// # Errors
/// EPERM and ENOMEM: the limit of locked memory is zero, or would be exceeded. ENOMEM also if a part is not mapped.
pub fn lock_on_fault(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: changes neither content nor access, whoever owns the range.
    check(unsafe { libc::syscall(libc::SYS_mlock2, addr, len, libc::MLOCK_ONFAULT) }).map(drop)
}

/// Whether this process may lock that many bytes more, for whatever reason it is allowed to. Tries it on addresses
/// without memory, and frees them again.
///
/// # Errors
/// As [`lock_on_fault`].
pub fn may_lock(len: usize) -> io::Result<()> {
    let addresses = Reservation::new(len, PAGE_SIZE)?;
    lock_on_fault(addresses.addr, len)
}

/// Bytes of addresses that this process may lock without CAP_IPC_LOCK; `None`: unlimited.
pub fn memlock_limit() -> Option<u64> {
    limit(libc::RLIMIT_MEMLOCK)
}

/// Keeps a range from children of later forks, where it is not mapped at all. Fork is unsafe, so its caller knows what
/// the child lacks.
///
/// # Errors
/// ENOMEM: a part of the range is not mapped, or there are too many mappings.
pub fn dontfork(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: this process keeps everything.
    unsafe { advise(addr, len, libc::MADV_DONTFORK) }
}

/// Moves a mapping to other addresses and makes it as long as they are. Replaces what is there.
///
/// # Errors
/// ENOMEM: too many mappings, or a limit. EFAULT: `from` is not one mapping. Nothing has changed then.
///
/// # Safety
/// Both ranges are the caller's, and nobody uses a reference to either.
pub unsafe fn move_mapping(from: Range<usize>, to: Range<usize>) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller upholds this function's own contract.
    check(unsafe { libc::syscall(libc::SYS_mremap, from.start, from.len(), to.len(), flags, to.start) }).map(drop)
}

/// Reserves addresses that are not mapped.
///
/// # Errors
/// EEXIST: others have a part of them. ENOMEM: too many mappings.
pub fn reserve_at(addr: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping. Existing ones are not touched.
    let at = check(unsafe { libc::syscall(libc::SYS_mmap, addr, len, libc::PROT_NONE, flags, -1isize, 0usize) })?;
    if at != addr {
        // SAFETY: this call's own mapping, where a kernel before Linux 4.17 has put it.
        let _ = unsafe { unmap(at, len) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}

/// Replaces mappings by reserved addresses.
///
/// # Errors
/// ENOMEM: too many mappings.
///
/// # Safety
/// The range is the caller's, and nobody needs what is there.
pub unsafe fn reserve_over(addr: usize, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller upholds this function's own contract.
    check(unsafe { libc::syscall(libc::SYS_mmap, addr, len, libc::PROT_NONE, flags, -1isize, 0usize) }).map(drop)
}

/// Lets forked children inherit a range again, after [`dontfork`].
///
/// # Errors
/// ENOMEM: a part of the range is not mapped, or there are too many mappings.
pub fn dofork(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: this process keeps everything, and a child gets more.
    unsafe { advise(addr, len, libc::MADV_DOFORK) }
}

/// Maps a readable and writable page that is zeroed in every child that gets a copy of the memory.
///
/// # Errors
/// ENOMEM. EINVAL before Linux 4.14.
pub fn wiped_on_fork() -> io::Result<Reservation> {
    let page = Reservation::new(PAGE_SIZE, PAGE_SIZE)?;
    page.protect_rw(page.range())?;
    // SAFETY: this call's own page, which nobody else has seen yet.
    check(unsafe { libc::syscall(libc::SYS_madvise, page.addr, page.len, libc::MADV_WIPEONFORK) })?;
    Ok(page)
}

/// Populates a whole range, with huge pages where they are advised and aligned. Present pages stay. In a range that is
/// registered with a userfaultfd this faults as an access does: such memory is populated elsewhere and moved.
///
/// # Errors
/// ENOMEM, EHWPOISON, and EFAULT if a fault could not be resolved.
///
/// # Safety
/// As [`touch`] for writing, which this uses before Linux 5.14.
pub unsafe fn populate_write(addr: usize, len: usize) -> io::Result<()> {
    loop {
        // SAFETY: present pages keep their content.
        match unsafe { advise(addr, len, libc::MADV_POPULATE_WRITE) } {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // SAFETY: the caller upholds this function's own contract.
                unsafe { touch(addr, len, true) };
                return Ok(());
            }
            done => return done,
        }
    }
}

/// Writes to the pages of a range, which are present, without changing their content: those that another process shares
/// become this process's own. Does nothing from the first page on that may not be written.
pub fn write_present(addr: usize, len: usize) {
    // SAFETY: the content stays.
    let _ = unsafe { advise(addr, len, libc::MADV_POPULATE_WRITE) };
}

/// Whether all pages of a range are mapped, present or not.
pub fn is_mapped(range: std::ops::Range<usize>) -> bool {
    const CHUNK_BYTES: usize = 16 << 20;
    range.clone().step_by(CHUNK_BYTES).all(|chunk| {
        let mut present = [0u8; CHUNK_BYTES / PAGE_SIZE];
        // SAFETY: the kernel writes one byte for each page of the chunk into an array with room for all of them.
        let asked = unsafe {
            libc::syscall(libc::SYS_mincore, chunk, (range.end - chunk).min(CHUNK_BYTES), present.as_mut_ptr())
        };
        asked == 0
    })
}

/// Splits the huge pages of which some pages are mapped in a range; if that is a whole huge page, that one. Only if no
/// other process has them.
pub fn split_huge_page(addr: usize, len: usize) {
    const HUGE_BYTES: usize = 2 << 20;
    let len = if len == HUGE_BYTES { PAGE_SIZE } else { len };
    // SAFETY: advice about when pages are needed, which changes no content.
    let _ = unsafe { advise(addr, len, libc::MADV_COLD) };
}

/// Collapses whole, aligned, present huge page ranges into huge pages that this process does not share. Content stays.
/// Costs a copy (0.4 to 4 ms for each huge page).
///
/// # Errors
/// EBUSY, EAGAIN if pages are in use. EINVAL before Linux 6.1, and if huge pages are disabled.
pub fn collapse(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: content and access stay. Other threads that access the range wait meanwhile.
    unsafe { advise(addr, len, libc::MADV_COLLAPSE) }
}

/// Faults in every page of a range from user space, for reading or writing. Content stays, even if other threads write
/// to it meanwhile.
///
/// # Safety
/// The range is mapped and readable, and writable if `write` is set, or the process's fault handler resolves the
/// faults.
pub unsafe fn touch(addr: usize, len: usize, write: bool) {
    for page in (addr..addr + len).step_by(PAGE_SIZE) {
        // SAFETY: the range is mapped, and writable if `write` is set (this function's contract). A byte is always
        // aligned, and an atomic access does not race with other threads' accesses.
        let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
        if write {
            // If the compiler could see the zero, it would make this a load.
            byte.fetch_or(std::hint::black_box(0), Ordering::Relaxed);
        } else {
            std::hint::black_box(byte.load(Ordering::Relaxed));
        }
    }
}

/// RAM in bytes that the kernel reports as available without swapping; all of it if that cannot be read.
pub fn available_ram() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map_or_else(total_ram, |kib| kib * 1024)
}

/// Bytes of RAM in the machine.
pub fn total_ram() -> u64 {
    // SAFETY: takes no pointers.
    let nr_pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(nr_pages).unwrap_or(0) * PAGE_SIZE as u64
}

/// # Safety
/// The range is the caller's own mapping, and nobody refers to its content.
pub unsafe fn unmap(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the caller upholds this function's own contract.
    check(unsafe { libc::syscall(libc::SYS_munmap, addr, len) }).map(drop)
}

/// # Safety
/// The range is the caller's own mapping. Nobody needs access that `access` takes away.
pub(crate) unsafe fn protect(addr: usize, len: usize, access: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller upholds this function's own contract.
    check(unsafe { libc::syscall(libc::SYS_mprotect, addr, len, access) }).map(drop)
}

/// # Safety
/// The range is the caller's own. Nobody refers to what the advice may take away.
unsafe fn advise(addr: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller upholds this function's own contract.
    check(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_aligned_and_can_be_used_after_protect_rw() {
        for align in [PAGE_SIZE, 64 << 10, 2 << 20] {
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
        // Ascending neighbours, descending neighbours, and more ranges than fit into one call.
        let upwards = (0..20).chain(30..31);
        let given: Vec<usize> = upwards.chain((40..60).rev()).chain((100..500).step_by(2)).collect();
        let memory = anonymous_huge(2 << 20).unwrap();
        advise_nohugepage(memory.addr(), memory.len()).unwrap();
        let word = |page: usize| (memory.addr() + page * PAGE_SIZE) as *mut u64;
        // SAFETY: accesses to readable and writable memory of the test's own.
        (0..512).for_each(|page| unsafe { word(page).write(7) });
        // SAFETY: pages of the test's own, to which it holds no references.
        unsafe { dontneed_many(given.iter().map(|&page| (word(page) as usize, PAGE_SIZE))).unwrap() };
        for page in 0..512 {
            // SAFETY: as above.
            let found = unsafe { word(page).read_volatile() };
            assert_eq!(found, if given.contains(&page) { 0 } else { 7 }, "page {page}");
        }
        // SAFETY: as above.
        let (at_once, off_a_page) = unsafe {
            let ranges = [(word(0) as usize, PAGE_SIZE), (word(2) as usize, PAGE_SIZE)];
            (dontneed_at_once(&ranges), dontneed_many([(memory.addr() + 1, PAGE_SIZE)]))
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
    fn addresses_beyond_all_are_an_error() {
        assert!(Reservation::new(1 << 60, PAGE_SIZE).is_err());
        assert!(total_ram() > 1 << 20 && (1..=total_ram()).contains(&available_ram()));
    }
}
