//! Managed pages whose protection the program has changed, and memory that it has locked: what the engine must leave
//! where it is.
//!
//! A folio with such a page is held in RAM, for pages of different protections cannot be moved as one. The table says
//! for every page of such a folio what the program set, so that memory can be unmapped or discarded, which needs write
//! access, and be as before afterwards. One lock, never held while managed memory is touched.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use folioswap::RawSpace;

use crate::real::kernel;

const PAGE_BYTES: usize = 4096;
const FOLIO_BYTES: usize = 2 << 20;
const PLAIN: u8 = (libc::PROT_READ | libc::PROT_WRITE) as u8;

/// What the program set for each page of a folio.
type Pages = Box<[u8; FOLIO_BYTES / PAGE_BYTES]>;

/// Folio address -> its pages; only folios with a page that is not plain.
static PROTECTED: LazyLock<Mutex<HashMap<usize, Pages>>> = LazyLock::new(Mutex::default);
static NR_PROTECTED: AtomicUsize = AtomicUsize::new(0);

/// Held while pages change: the table, the hold and the kernel's protection are one. No managed memory is touched under
/// it (a hold brings folios in without a touch).
static CHANGING: Mutex<()> = Mutex::new(());

/// Folios that the program has locked.
static LOCKED: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Mutex::default);

/// The range cut at folios.
fn by_folio(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = range.start / FOLIO_BYTES;
    (first..range.end.div_ceil(FOLIO_BYTES))
        .map(move |folio| range.start.max(folio * FOLIO_BYTES)..range.end.min((folio + 1) * FOLIO_BYTES))
        .filter(|part| !part.is_empty())
}

fn set_pages(folio: usize, part: &Range<usize>, protection: u8) -> bool {
    let mut table = PROTECTED.lock().expect("nothing panics under this lock");
    let was_protected = table.contains_key(&folio);
    let pages = table.entry(folio).or_insert_with(|| Box::new([PLAIN; FOLIO_BYTES / PAGE_BYTES]));
    pages[(part.start - folio) / PAGE_BYTES..(part.end - folio).div_ceil(PAGE_BYTES)].fill(protection);
    if pages.iter().all(|&page| page == PLAIN) {
        table.remove(&folio);
    }
    let is_protected = table.contains_key(&folio);
    NR_PROTECTED.store(table.len(), Ordering::Relaxed);
    was_protected != is_protected
}

fn kernel_protect(range: &Range<usize>, protection: i32) -> i32 {
    // SAFETY: the program asked for it, for memory of its own.
    unsafe { kernel!(libc::SYS_mprotect, range.start, range.len(), protection) as i32 }
}

/// What `mprotect` does, for managed memory. -1 with errno when the kernel refuses.
///
/// What is protected stays in RAM, so no more than half of the budget can be: ENOMEM, as from a kernel that has no room
/// for the change.
pub fn protect(space: &RawSpace, range: Range<usize>, protection: i32) -> i32 {
    let plain = protection == i32::from(PLAIN);
    let nr_protected = NR_PROTECTED.load(Ordering::Relaxed);
    if plain && nr_protected == 0 {
        return 0;
    }
    if !plain && (nr_protected * FOLIO_BYTES + range.len()) as u64 > space.memory() / 2 {
        crate::state::fail(libc::ENOMEM);
        return -1;
    }
    let _one_at_a_time = CHANGING.lock().expect("nothing panics under this lock");
    for part in by_folio(range) {
        let folio = part.start / FOLIO_BYTES * FOLIO_BYTES;
        if plain {
            let known = PROTECTED.lock().expect("nothing panics under this lock").contains_key(&folio);
            if known && kernel_protect(&part, protection) < 0 {
                return -1;
            }
            if known && set_pages(folio, &part, PLAIN) {
                // SAFETY: held when its first page was protected; all of it is plain again.
                unsafe { space.release_hold(folio, 1) };
            }
        } else {
            if set_pages(folio, &part, protection as u8) {
                // SAFETY: a mapped folio: the program changes its protection.
                unsafe { space.hold(folio, 1) };
            }
            if kernel_protect(&part, protection) < 0 {
                return -1;
            }
        }
    }
    0
}

/// Makes all pages of the range readable and writable again, for good: they are about to be unmapped.
pub fn forget(space: &RawSpace, range: Range<usize>) {
    if NR_PROTECTED.load(Ordering::Relaxed) > 0 {
        protect(space, range.clone(), i32::from(PLAIN));
    }
    unlock(space, range);
}

/// Runs `discard` on each part of the range that has one protection, which is writable meanwhile.
pub fn discard(space: &RawSpace, range: Range<usize>, discard: impl Fn(Range<usize>)) {
    if NR_PROTECTED.load(Ordering::Relaxed) == 0 {
        return discard(range);
    }
    for part in by_folio(range) {
        let folio = part.start / FOLIO_BYTES * FOLIO_BYTES;
        let pages = PROTECTED.lock().expect("nothing panics under this lock").get(&folio).cloned();
        protect(space, part.clone(), i32::from(PLAIN));
        discard(part.clone());
        let Some(pages) = pages else { continue };
        for page in part.step_by(PAGE_BYTES) {
            let protection = pages[(page - folio) / PAGE_BYTES];
            if protection != PLAIN {
                protect(space, page..page + PAGE_BYTES, i32::from(protection));
            }
        }
    }
}

/// What `mlock` does, for managed memory.
pub fn lock(space: &RawSpace, range: Range<usize>) {
    for part in by_folio(range) {
        let folio = part.start / FOLIO_BYTES * FOLIO_BYTES;
        if LOCKED.lock().expect("nothing panics under this lock").insert(folio) {
            // SAFETY: the program locks memory that it has mapped.
            unsafe { space.hold(folio, 1) };
        }
    }
}

/// What `munlock` does, for managed memory.
pub fn unlock(space: &RawSpace, range: Range<usize>) {
    for part in by_folio(range) {
        let folio = part.start / FOLIO_BYTES * FOLIO_BYTES;
        let mut locked = LOCKED.lock().expect("nothing panics under this lock");
        if locked.is_empty() {
            return;
        }
        let was_locked = locked.remove(&folio);
        drop(locked);
        if was_locked {
            // SAFETY: held when it was locked.
            unsafe { space.release_hold(folio, 1) };
        }
    }
}
