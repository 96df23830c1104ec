//! Memory that the kernel itself has swapped out. Needs root: the test creates a 16 MiB swap file and a memory cgroup
//! while it runs.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use folioswap_sys::pagemap::Pagemap;
use folioswap_sys::{memory, pages};

#[path = "support/swap_file.rs"]
mod swap_file;
use swap_file::SwapFile;

const PAGE: usize = 4096;
const NR_PAGES: usize = 64;

/// A memory cgroup for this process while this lives.
struct Cgroup {
    own: PathBuf,
    before: PathBuf,
    /// The file and the text that reclaim as much as possible.
    reclaim: (PathBuf, &'static str),
}

impl Cgroup {
    fn new() -> io::Result<Cgroup> {
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let path_in =
            |named: &str| groups.lines().find_map(|line| line.split_once(named)).map(|(_, path)| path.to_owned());
        let (root, path, file, all) = match path_in(":memory:/") {
            Some(path) => ("/sys/fs/cgroup/memory", path, "memory.force_empty", "0"),
            None => ("/sys/fs/cgroup", path_in("0::/").unwrap_or_default(), "memory.reclaim", "64M"),
        };
        let own = PathBuf::from(format!("{root}/folioswap-kernel-swap-{}", std::process::id()));
        std::fs::create_dir(&own)?;
        let group = Cgroup { before: PathBuf::from(root).join(path), reclaim: (own.join(file), all), own };
        std::fs::write(group.own.join("cgroup.procs"), "0")?;
        Ok(group)
    }

    /// Makes the kernel reclaim what it can. It is no error if some memory stays.
    fn reclaim(&self) {
        let _ = std::fs::write(&self.reclaim.0, self.reclaim.1);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.before.join("cgroup.procs"), "0");
        let _ = std::fs::remove_dir(&self.own);
    }
}

/// Pages that `mincore` reports as absent.
fn nr_absent(addr: usize) -> usize {
    let mut there = [0u8; NR_PAGES];
    // SAFETY: the kernel writes one byte for each page.
    assert_eq!(unsafe { libc::mincore(addr as *mut libc::c_void, NR_PAGES * PAGE, there.as_mut_ptr()) }, 0);
    there.iter().filter(|&&page| page & 1 == 0).count()
}

#[test]
fn what_the_kernel_has_swapped_is_copied_and_what_is_missing_is_not() {
    let _swap = match SwapFile::new() {
        Ok(swap) => swap,
        Err(error) => return println!("SKIP copying what the kernel swapped: swapon: {error}"),
    };
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(error) => return println!("SKIP copying what the kernel swapped: a memory cgroup: {error}"),
    };
    let area = memory::anonymous_huge(4 << 20).unwrap();
    let (source, target) = (area.addr(), area.addr() + (2 << 20));
    memory::advise_nohugepage(area.addr(), area.len()).unwrap();
    let word = |at: usize, page: usize| (at + page * PAGE) as *mut u64;
    // SAFETY: accesses to readable and writable memory of the test's own.
    (0..NR_PAGES).for_each(|page| unsafe { word(source, page).write(page as u64 + 1) });
    // Pages under writeback are not reclaimed yet, so try again.
    let begun = Instant::now();
    while nr_absent(source) == 0 {
        group.reclaim();
        if begun.elapsed() > Duration::from_secs(10) {
            return println!("SKIP copying what the kernel swapped: it takes nothing");
        }
    }
    let pagemap = Pagemap::open().unwrap();
    assert!((0..NR_PAGES).any(|page| pagemap.is_swapped(source + page * PAGE).unwrap()));
    // SAFETY: two parts of readable and writable memory of the test's own.
    unsafe { pages::copy_pages(&pagemap, source, target, NR_PAGES * PAGE).unwrap() };
    // SAFETY: as above.
    assert!((0..NR_PAGES).all(|page| unsafe { word(target, page).read() } == page as u64 + 1));
    // SAFETY: as above.
    let error = unsafe { pages::copy_pages(&pagemap, source, target, (NR_PAGES + 1) * PAGE).unwrap_err() };
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
}
