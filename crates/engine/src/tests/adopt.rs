//! Memory that has content when it becomes managed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use folioswap_core::PAGE_SIZE;
use folioswap_sys::memory::Reservation;

use crate::arena::Arena;
use crate::config::fault_mode::FaultMode;
use crate::device::DeviceSpec;

const MIB: usize = 1 << 20;

/// A word of a page.
fn word(page: usize) -> &'static AtomicU64 {
    // SAFETY: the callers pass pages of the test's own mapping, which outlives their use. All access is atomic.
    unsafe { AtomicU64::from_ptr((page + 8) as *mut u64) }
}

fn pages(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    range.clone().step_by(PAGE_SIZE)
}

/// Memory of which the pages that `has` names hold their numbers.
fn memory(len: usize, has: impl Fn(usize) -> bool) -> Reservation {
    let memory = Reservation::new(len, 2 * MIB).unwrap();
    memory.protect_rw(memory.range()).unwrap();
    for (nr, page) in pages(&memory.range()).enumerate() {
        if has(nr) {
            word(page).store(nr as u64, Ordering::Relaxed);
        }
    }
    memory
}

fn arena(mode: FaultMode) -> Option<Arena> {
    let arena = Arena::builder().memory(16 << 20).faults(mode).device(DeviceSpec::Ram { size: 128 << 20 }).build();
    if arena.is_err() {
        println!("skipped: no userfaultfd for {mode:?}");
    }
    arena.ok()
}

/// What the pages of a mapping hold, page by page.
fn content(range: &Range<usize>) -> Vec<u64> {
    pages(range).map(|page| word(page).load(Ordering::Relaxed)).collect()
}

#[test]
fn what_is_present_is_kept_and_leaves_ram_when_it_must() {
    for mode in [FaultMode::Direct, FaultMode::Monitor] {
        // Whole blocks, runs of pages, pieces, every third page; all, and none.
        for (run, period) in [(512, 2), (100, 2), (16, 5), (1, 3), (1, 1), (1, usize::MAX)] {
            let Some(arena) = arena(mode) else { continue };
            let all = memory(12 * MIB, |nr| (nr / run + 1).is_multiple_of(period));
            let name = (run, period);
            let expected = content(&all.range());
            let space = arena.raw();
            // In parts that end within blocks; a part in between stays as it is.
            let at = |page: usize| all.addr() + page * PAGE_SIZE;
            for part in [at(0)..at(700), at(700)..at(701), at(1500)..at(3072)] {
                // SAFETY: private anonymous memory of this test's.
                unsafe { space.adopt(&part) }.unwrap();
            }
            assert_eq!(space.managed_parts(all.range()), [at(0)..at(701), at(1500)..at(3072)]);
            assert!(content(&all.range()) == expected, "{mode:?}, {name:?}");
            let other = arena.map(24 * MIB).unwrap();
            for round in 1..4 {
                for page in pages(&(other.as_ptr() as usize..other.as_ptr() as usize + other.len())) {
                    word(page).store(round, Ordering::Relaxed);
                }
                assert!(content(&all.range()) == expected, "{mode:?}, {name:?}: round {round}");
            }
            assert!(arena.stats().swapped_out_bytes > 0);
            // SAFETY: nobody uses this memory any more.
            unsafe { space.forget(all.range(), || ()) };
        }
    }
}

#[test]
fn threads_go_on_while_memory_is_adopted() {
    for mode in [FaultMode::Direct, FaultMode::Monitor] {
        let Some(arena) = arena(mode) else { continue };
        let all = memory(12 * MIB, |nr| nr.is_multiple_of(2));
        let (ends, range) = (AtomicBool::new(false), all.range());
        let rounds = std::thread::scope(|scope| {
            let count = || {
                let mut rounds = 0u64;
                while !ends.load(Ordering::Relaxed) {
                    pages(&range).for_each(|page| _ = word(page).fetch_add(1, Ordering::Relaxed));
                    rounds += 1;
                }
                rounds
            };
            let counters = [scope.spawn(count), scope.spawn(count)];
            for part in pages(&all.range()).step_by(300) {
                // SAFETY: private anonymous memory of this test's.
                unsafe { arena.raw().adopt(&(part..(part + 300 * PAGE_SIZE).min(range.end))) }.unwrap();
            }
            let other = arena.map(24 * MIB).unwrap();
            for _ in 0..3 {
                for page in pages(&(other.as_ptr() as usize..other.as_ptr() as usize + other.len())) {
                    word(page).fetch_add(1, Ordering::Relaxed);
                }
            }
            ends.store(true, Ordering::Relaxed);
            counters.map(|counter| counter.join().unwrap()).iter().sum::<u64>()
        });
        let expected = |nr: usize| rounds + if nr.is_multiple_of(2) { nr as u64 } else { 0 };
        assert!(content(&range).into_iter().enumerate().all(|(nr, word)| word == expected(nr)), "{mode:?}");
        // SAFETY: nobody uses this memory any more.
        unsafe { arena.raw().forget(range, || ()) };
    }
}
