//! What of a range is in RAM, and how much of that in huge pages, as the page tables say.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_HUGE: u64 = 1 << 6;

#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct Args {
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

const _: () = assert!(size_of::<Args>() == 96 && size_of::<Region>() == 24);

/// `PAGEMAP_SCAN`.
const IOCTL_SCAN: u64 = 3 << 30 | (size_of::<Args>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// How much of a range is in RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residency {
    /// Bytes that are.
    pub present_bytes: u64,
    /// Of these, bytes in 2 MiB pages.
    pub huge_bytes: u64,
}

/// Walks the page tables of a range of this process (Linux 6.7 and later).
///
/// # Errors
/// The kernel's; ENOTTY before 6.7.
pub fn scan(range: Range<usize>) -> io::Result<Residency> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut found = Residency::default();
    let mut regions: [Region; 64] = std::array::from_fn(|_| Region { start: 0, end: 0, categories: 0 });
    let mut at = range.start as u64;
    while at < range.end as u64 {
        let mut args = Args {
            size: size_of::<Args>() as u64,
            start: at,
            end: range.end as u64,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_mask: PAGE_IS_PRESENT,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_HUGE,
            ..Args::default()
        };
        // SAFETY: the argument is of the type and size that the request's number says; `vec` points at `vec_len`
        // regions that outlive the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), IOCTL_SCAN as _, &raw mut args) };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for region in &regions[..count as usize] {
            found.present_bytes += region.end - region.start;
            if region.categories & PAGE_IS_HUGE != 0 {
                found.huge_bytes += region.end - region.start;
            }
        }
        if args.walk_end <= at {
            break;
        }
        at = args.walk_end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, Reservation};

    #[test]
    fn what_is_touched_is_counted() {
        let area = Reservation::new(8 << 20, 2 << 20).unwrap();
        let range = area.addr()..area.addr() + area.len();
        memory::protect_rw(area.addr(), area.len()).unwrap();
        memory::advise_nohugepage(area.addr(), area.len()).unwrap();
        assert_eq!(scan(range.clone()).unwrap(), Residency::default());
        memory::populate_write(area.addr(), 12 << 10).unwrap();
        memory::populate_write(area.addr() + (4 << 20), 4 << 10).unwrap();
        assert_eq!(scan(range).unwrap(), Residency { present_bytes: 16 << 10, huge_bytes: 0 });
    }

    #[test]
    fn huge_pages_are_told_from_small_ones() {
        let area = Reservation::new(4 << 20, 2 << 20).unwrap();
        memory::protect_rw(area.addr(), area.len()).unwrap();
        memory::advise_hugepage(area.addr(), area.len()).unwrap();
        memory::populate_write(area.addr(), area.len()).unwrap();
        let found = scan(area.addr()..area.addr() + area.len()).unwrap();
        assert_eq!(found.present_bytes, 4 << 20);
        if found.huge_bytes == 0 {
            println!("skipped: this system gives no huge pages");
            return;
        }
        assert_eq!(found.huge_bytes % (2 << 20), 0);
    }
}
