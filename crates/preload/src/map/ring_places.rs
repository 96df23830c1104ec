//! Where the engine's rings lie if the kernel chose the place: from 1 to 2 GiB (`mapping::map_apart`). A program may
//! want these addresses. Before it maps or unmaps something there, the engine gives all its rings up.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap::PAGE_SIZE;
use folioswap_sys::uring;

use crate::ground::real::own;
use crate::ground::{guard, state};

const END: usize = 2 << 30;

/// An address, and in its lowest bits a number of pages; zero: nothing. Two mappings for each ring.
static PLACES: [AtomicUsize; 128] = [const { AtomicUsize::new(0) }; 128];

fn range_of(place: usize) -> Range<usize> {
    let start = place & !(PAGE_SIZE - 1);
    start..start + place % PAGE_SIZE * PAGE_SIZE
}

fn change(from: impl Fn(usize) -> bool, to: usize) {
    let is_changed = |place: &AtomicUsize| {
        let now = place.load(Ordering::SeqCst);
        from(now) && place.compare_exchange(now, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    PLACES.iter().any(is_changed);
}

pub fn note(addr: usize, len: usize) {
    change(|now| now == 0, addr | (len / PAGE_SIZE));
}

/// Called before a thread of the engine unmaps something.
pub fn forget(addr: usize) {
    if addr < END {
        change(|now| now != 0 && range_of(now).start == addr, 0);
    }
}

/// In a forked child, which has no ring yet.
pub fn begin_child() {
    PLACES.iter().for_each(|place| place.store(0, Ordering::SeqCst));
}

/// Called before the program has the kernel map something in a range, or unmap it. Holds no lock.
pub fn make_way(range: &Range<usize>) {
    let meets = |place: &AtomicUsize| {
        let ring = range_of(place.load(Ordering::SeqCst));
        ring.start < range.end && range.start < ring.end
    };
    if range.start >= END || guard::inside() || !PLACES.iter().any(meets) {
        return;
    }
    let _guard = guard::enter();
    state::keeping_errno(|| {
        uring::give_up();
        for place in &PLACES {
            let ring = range_of(place.swap(0, Ordering::SeqCst));
            if !ring.is_empty() {
                // SAFETY: a mapping of the engine's, which uses it no more.
                unsafe { own!(libc::SYS_munmap, ring.start, ring.len()) };
            }
        }
        if let Some(arena) = state::arena() {
            arena.go_on_without_rings();
        }
    });
}
