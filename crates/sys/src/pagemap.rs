//! What of a range is in RAM, and how much of it in huge pages, as the kernel sees it: by the PAGEMAP_SCAN ioctl
//! (Linux 6.7), else by `/proc/self/smaps`.

use std::ffi::CStr;
use std::io;
use std::ops::Range;

use crate::check;

const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
const PAGEMAP_SCAN: u64 = 0xc060_6610;

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArguments>() == 96 && size_of::<PageRegion>() == 24);

/// What was found in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// Bytes in RAM; the shared zero page does not count.
    pub present_bytes: u64,
    /// Of these, bytes mapped as huge pages.
    pub huge_bytes: u64,
}

/// Looks at a page-aligned range. Costs time by what is present, about 20 ns a page, little for what is not.
///
/// # Errors
/// Neither the ioctl nor smaps can be had.
pub fn scan(range: Range<usize>) -> io::Result<Scan> {
    if range.is_empty() {
        return Ok(Scan::default());
    }
    match scan_pagemap(&range) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::EPERM)) => {
            Ok(scan_smaps(&read_smaps()?, &range))
        }
        found => found,
    }
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

/// Whether there is a page at an address, the shared page of zeros too.
///
/// # Errors
/// `/proc/self/pagemap` cannot be read.
pub fn is_present(addr: usize) -> io::Result<bool> {
    const PRESENT: u64 = 1 << 63;
    let mut entry = [0; size_of::<u64>()];
    let at = addr / 4096 * size_of::<u64>();
    match ProcFile::open(c"/proc/self/pagemap")?.read_at(&mut entry, at as u64)? {
        len if len == entry.len() => Ok(u64::from_ne_bytes(entry) & PRESENT != 0),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A file of `/proc`, open for reading. By system calls of its own: the C library's are points at which a thread that was
/// cancelled ends, and this one may be in the middle of a fault.
struct ProcFile(libc::c_long);

impl ProcFile {
    fn open(path: &CStr) -> io::Result<ProcFile> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a path that ends in 0.
        let fd = check(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) })?;
        Ok(ProcFile(fd as libc::c_long))
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the kernel writes at most as many bytes as there are.
        check(unsafe { libc::syscall(libc::SYS_pread64, self.0, bytes.as_mut_ptr(), bytes.len(), offset) })
    }
}

impl Drop for ProcFile {
    fn drop(&mut self) {
        // SAFETY: this file's own descriptor, which nobody else has.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

fn read_smaps() -> io::Result<String> {
    let file = ProcFile::open(c"/proc/self/smaps")?;
    let (mut text, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match file.read_at(&mut part, text.len() as u64)? {
            0 => return String::from_utf8(text).map_err(io::Error::other),
            len => text.extend_from_slice(&part[..len]),
        }
    }
}

fn scan_pagemap(range: &Range<usize>) -> io::Result<Scan> {
    let pagemap = ProcFile::open(c"/proc/self/pagemap")?;
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
        // SAFETY: the kernel reads and writes the arguments, of the size they state, and writes at most `vec_len`
        // regions at `vec`; both are of this frame. The scan changes nothing (no flags).
        let nr = check(unsafe { libc::syscall(libc::SYS_ioctl, pagemap.0, PAGEMAP_SCAN, &raw mut arguments) })?;
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

/// The sums of the mappings that lie in the range (or overlap it: smaps knows no parts).
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
            memory::touch(page, 1, true);
        }
        let found = scan(range.clone()).unwrap();
        assert_eq!(found, Scan { present_bytes: LEN as u64 / 2, huge_bytes: 0 });
        let smaps = read_smaps().unwrap();
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
