//! How much of a range is in RAM, and in huge pages, according to the kernel: by the PAGEMAP_SCAN ioctl (Linux 6.7),
//! else from `/proc/self/smaps`.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::descriptor::Descriptor;
use crate::memory::PAGE_SIZE;
use crate::{check, direct_io, kept};

const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Present, or swapped, as a page that is migrated counts.
const FILLED: u64 = 3 << 62;
/// The request of a scan.
pub const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// The kernel's `struct pm_scan_arg`.
#[allow(missing_docs)] // as there
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ScanArguments {
    pub size: u64,
    pub flags: u64,
    pub start: u64,
    pub end: u64,
    pub walk_end: u64,
    pub vec: u64,
    pub vec_len: u64,
    pub max_pages: u64,
    pub category_inverted: u64,
    pub category_mask: u64,
    pub category_anyof_mask: u64,
    pub return_mask: u64,
}

/// Its `struct page_region`.
#[allow(missing_docs)] // as there
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PageRegion {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

const _: () = assert!(size_of::<ScanArguments>() == 96 && size_of::<PageRegion>() == 24);

/// The result of scanning a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// Bytes in RAM, without the shared zero page.
    pub present_bytes: u64,
    /// Of these, bytes mapped as huge pages.
    pub huge_bytes: u64,
}

/// In place of what may not be read: with a descriptor that is open for its path only, no call succeeds.
const UNREADABLE: &CStr = c"self/stat";

fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// This process's page tables, kept open: later scans need no free descriptor, no path and no permission.
#[derive(Debug)]
pub struct Pagemap {
    entries: Descriptor,
    /// If there is no PAGEMAP_SCAN.
    smaps: Option<Descriptor>,
}

impl Pagemap {
    /// Opens them without hiding the descriptors: for a single scan. A process that may not read them, because its user
    /// may execute the program and not read it, knows less.
    ///
    /// # Errors
    /// `/proc/self/pagemap` or `/proc/self/smaps` cannot be opened.
    pub fn open() -> io::Result<Self> {
        let opened = File::open("/proc/self/pagemap").map(OwnedFd::from);
        let may_read = !opened.as_ref().is_err_and(is_refused);
        let entries = if may_read { opened? } else { kept::open_in_proc(UNREADABLE, libc::O_PATH)? };
        let scans = may_read && !is_unknown(&scan_pagemap(entries.as_raw_fd(), &(0..PAGE_SIZE)));
        let smaps = if scans { None } else { Some(OwnedFd::from(File::open("/proc/self/smaps")?).into()) };
        Ok(Pagemap { entries: entries.into(), smaps })
    }

    /// The same, hidden from the program ([`Descriptor::hidden`]).
    pub fn hide(self) -> io::Result<Self> {
        let smaps = self.smaps.map(Descriptor::hide).transpose()?;
        Ok(Pagemap { entries: self.entries.hide()?, smaps })
    }

    /// In a forked child, before it has another thread: opens the child's page tables in place of the parent's. A child
    /// that may not read them, because it has become another user, knows less from then on.
    ///
    /// # Errors
    /// As [`Pagemap::open`] and [`Descriptor::renew`].
    pub fn renew(&self) -> io::Result<()> {
        let renew = |descriptor: &Descriptor, path| {
            let file = kept::open_in_proc(path, libc::O_RDONLY).or_else(|error| match error.raw_os_error() {
                // A filter may refuse to open anything.
                _ if is_refused(&error) => kept::open_in_proc(UNREADABLE, libc::O_PATH).or_else(|_| kept::proc_again()),
                Some(libc::ENOENT) => kept::open_root(), // as above
                _ => Err(error),
            })?;
            descriptor.renew(file)
        };
        self.smaps.as_ref().map_or(Ok(()), |smaps| renew(smaps, c"self/smaps"))?;
        renew(&self.entries, c"self/pagemap")
    }

    /// Scans a page-aligned range. Costs about 20 ns for each present page, and little for absent ones.
    pub fn scan(&self, range: Range<usize>) -> io::Result<Scan> {
        match &self.smaps {
            _ if range.is_empty() => Ok(Scan::default()),
            None => self.entries.with(|number| scan_pagemap(number, &range)),
            Some(smaps) => smaps.with(read_from_start).map(|text| scan_smaps(&text, &range)),
        }
    }

    /// Whether there is anything at an address: a page in RAM, the shared zero page, a page in the kernel's swap, one
    /// that the kernel migrates just now, a guard, or poison. A process that may no longer read its page tables takes a
    /// page in the kernel's swap for missing.
    pub fn is_filled(&self, addr: usize) -> io::Result<bool> {
        match self.entry(addr) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => is_in_core(addr),
            entry => entry.map(|entry| entry & FILLED != 0),
        }
    }

    /// Whether the kernel has swapped a page out (or is migrating it).
    pub fn is_swapped(&self, addr: usize) -> io::Result<bool> {
        const SWAPPED: u64 = 1 << 62;
        self.entry(addr).map(|entry| entry & SWAPPED != 0)
    }

    /// Whether all pages of a range are present, or in the kernel's swap.
    pub fn are_present(&self, addr: usize, len: usize) -> bool {
        const CHUNK: usize = 512;
        (addr..addr + len).step_by(CHUNK * PAGE_SIZE).all(|chunk| {
            let nr_bytes = (addr + len - chunk).min(CHUNK * PAGE_SIZE);
            let mut present = [0u8; CHUNK];
            // SAFETY: the kernel writes one byte for each page of the chunk into a local array of CHUNK bytes.
            let asked = unsafe { libc::syscall(libc::SYS_mincore, chunk, nr_bytes, present.as_mut_ptr()) };
            let is_swapped = |page| self.is_swapped(chunk + page * PAGE_SIZE).unwrap_or(false);
            asked == 0 && (0..nr_bytes.div_ceil(PAGE_SIZE)).all(|page| present[page] & 1 == 1 || is_swapped(page))
        })
    }

    /// At which pages of a range there is anything ([`Pagemap::is_filled`]).
    ///
    /// # Errors
    /// Kernel errors. EBADF: this process may no longer read its page tables.
    pub fn filled(&self, pages: Range<usize>) -> io::Result<Vec<bool>> {
        const ENTRY_BYTES: usize = size_of::<u64>();
        let mut entries = vec![0; pages.len() / PAGE_SIZE * ENTRY_BYTES];
        let at = pages.start / PAGE_SIZE * ENTRY_BYTES;
        self.entries.with(|number| direct_io::pread_exact(number, &mut entries, at as u64))?;
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        Ok(entries.iter().map(|entry| u64::from_ne_bytes(*entry) & FILLED != 0).collect())
    }

    fn entry(&self, addr: usize) -> io::Result<u64> {
        let mut entry = [0; size_of::<u64>()];
        let at = addr / PAGE_SIZE * size_of::<u64>();
        self.entries.with(|number| direct_io::pread_exact(number, &mut entry, at as u64))?;
        Ok(u64::from_ne_bytes(entry))
    }
}

/// Whether the page at an address is present, without the page tables' help.
fn is_in_core(addr: usize) -> io::Result<bool> {
    let mut present = 0u8;
    // SAFETY: the kernel writes one byte of this frame.
    check(unsafe { libc::syscall(libc::SYS_mincore, addr & !(PAGE_SIZE - 1), PAGE_SIZE, &raw mut present) })?;
    Ok(present & 1 == 1)
}

/// Scans a range once ([`Pagemap::scan`]).
///
/// # Errors
/// As [`Pagemap::open`] and [`Pagemap::scan`].
pub fn scan(range: Range<usize>) -> io::Result<Scan> {
    Pagemap::open()?.scan(range)
}

/// Bytes of a range that are in RAM as huge pages.
///
/// # Errors
/// As [`scan`].
pub fn huge_bytes(range: Range<usize>) -> io::Result<u64> {
    scan(range).map(|scan| scan.huge_bytes)
}

/// Bytes of a range that are in RAM.
///
/// # Errors
/// As [`scan`].
pub fn resident_bytes(range: Range<usize>) -> io::Result<u64> {
    scan(range).map(|scan| scan.present_bytes)
}

/// Whether the kernel does not support the request.
fn is_unknown<T>(result: &io::Result<T>) -> bool {
    let number = result.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(number, Some(libc::ENOTTY | libc::EINVAL | libc::EPERM))
}

/// Reads all of a kernel text file, as it is now.
fn read_from_start(number: RawFd) -> io::Result<String> {
    let mut text = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        // SAFETY: the kernel writes at most the length of `part`.
        let read = unsafe { libc::syscall(libc::SYS_pread64, number, part.as_mut_ptr(), part.len(), text.len()) };
        match check(read)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            more => text.extend_from_slice(&part[..more]),
        }
    }
}

fn scan_pagemap(pagemap: RawFd, range: &Range<usize>) -> io::Result<Scan> {
    let mut found = Scan::default();
    let mut regions = [PageRegion::default(); 256];
    let (mut start, end) = (range.start as u64, range.end as u64);
    while start < end {
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            flags: 0,
            start,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: PAGE_IS_PFNZERO,
            category_mask: PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
            category_anyof_mask: 0,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_HUGE,
        };
        // SAFETY: the kernel reads and writes the arguments, whose size they state, and writes at most `vec_len`
        // regions at `vec`. Both are locals of this frame. Without flags the scan changes nothing.
        let nr =
            check(unsafe { libc::syscall(libc::SYS_ioctl, pagemap, u64::from(PAGEMAP_SCAN), &raw mut arguments) })?;
        for region in &regions[..nr] {
            let len = region.end - region.start;
            found.present_bytes += len;
            if region.categories & PAGE_IS_HUGE != 0 {
                found.huge_bytes += len;
            }
        }
        if arguments.walk_end <= start {
            return Err(io::Error::other("PAGEMAP_SCAN does not advance"));
        }
        start = arguments.walk_end;
    }
    Ok(found)
}

/// Adds up the mappings that overlap the range. smaps does not tell parts of a mapping apart.
fn scan_smaps(smaps: &str, range: &Range<usize>) -> Scan {
    let mut found = Scan::default();
    let mut within = false;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            within = start < range.end && range.start < end;
        } else if within && let Some(Ok(kib)) = second.map(str::parse::<u64>) {
            match first {
                "Rss:" => found.present_bytes += kib << 10,
                "AnonHugePages:" => found.huge_bytes += kib << 10,
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    #[test]
    fn present_pages_are_counted_and_missing_ones_not() {
        const LEN: usize = 16 << 20;
        let area = memory::anonymous_huge(LEN).unwrap();
        let range = area.addr()..area.addr() + LEN;
        assert_eq!(scan(range.clone()).unwrap(), Scan::default());
        memory::advise_nohugepage(area.addr(), LEN).unwrap();
        // Every other page: more runs than one call reports.
        for page in range.clone().step_by(8192) {
            // SAFETY: readable and writable memory of the test's own.
            unsafe { memory::touch(page, 1, true) };
        }
        let found = scan(range.clone()).unwrap();
        assert_eq!(found, Scan { present_bytes: LEN as u64 / 2, huge_bytes: 0 });
        let smaps = read_from_start(File::open("/proc/self/smaps").unwrap().as_raw_fd()).unwrap();
        assert!(scan_smaps(&smaps, &range).present_bytes >= LEN as u64 / 2);
        assert_eq!(resident_bytes(range.start..range.start).unwrap(), 0);
    }

    #[test]
    fn smaps_are_summed_by_mapping() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nRss:   8 kB\nAnonHugePages:   4 kB\n\
                    5000-6000 rw-p 00000000 00:00 0 \nRss:   16 kB\n";
        assert_eq!(scan_smaps(text, &(0x1000..0x2000)), Scan { present_bytes: 8 << 10, huge_bytes: 4 << 10 });
        assert_eq!(scan_smaps(text, &(0x3000..0x5000)), Scan::default());
    }
}
