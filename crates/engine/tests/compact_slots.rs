//! Compaction of a device's slots in a running arena: folios of 2 MiB find whole runs of slots again, and content stays
//! intact.

use std::time::{Duration, Instant};

use folioswap::{Advice, Arena, DeviceSpec, FolioSize, Order, Region, SwapIn, Tuning};
use folioswap_core::StatsSnapshot;
use folioswap_core::compact::Stage;

const MIB: usize = 1 << 20;
const BLOCK: usize = 2 * MIB;
const PAGE: usize = 4096;
const WORD: usize = 8;
const DEVICE: usize = 128 * MIB;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

fn arena(compaction: Option<Stage>) -> Arena {
    let device = DeviceSpec::Ram { size: DEVICE as u64 };
    let builder = Arena::builder().memory(16 << 20).device(device);
    builder.tuning(Tuning { compaction, ..Tuning::default() }).build().unwrap()
}

fn mark(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether a page stays: about half of them do, without a pattern.
fn stays(at: usize, step: usize) -> bool {
    mark(at / step) >> 40 & 1 == 0
}

fn set(region: &mut Region, at: usize) {
    region[at..at + WORD].copy_from_slice(&mark(at).to_ne_bytes());
}

fn is_set(region: &[u8], at: usize) -> bool {
    region[at..at + WORD] == mark(at).to_ne_bytes()
}

/// A region of three quarters of the device. Half of its folios are dropped after they have been written out.
fn scattered(arena: &Arena, folio: Order, step: usize) -> Region {
    let mut region = arena.map_with(DEVICE / 4 * 3, FolioSize::Fixed(folio)).unwrap();
    (0..region.len()).step_by(PAGE).for_each(|at| set(&mut region, at));
    arena.evict_all();
    for at in (0..region.len()).step_by(step).filter(|&at| !stays(at, step)) {
        region.advise(at..at + step, Advice::DontNeed);
    }
    region
}

fn check(region: &Region, step: usize) {
    for at in (0..region.len()).step_by(PAGE) {
        assert!(if stays(at, step) { is_set(region, at) } else { region[at] == 0 }, "byte {at}");
    }
}

/// Writes folios of 2 MiB, and evicts each before the next.
fn send_out(arena: &Arena, nr_folios: usize) -> (Region, StatsSnapshot) {
    let mut large = arena.map_with(nr_folios * BLOCK, FolioSize::Fixed(Order::HUGE)).unwrap();
    for at in (0..large.len()).step_by(BLOCK) {
        (at..at + BLOCK).step_by(PAGE).for_each(|at| set(&mut large, at));
        large.advise(at..at + BLOCK, Advice::Cold);
    }
    arena.evict_all();
    (large, arena.stats())
}

/// Writes folios of 2 MiB until one finds no run of slots: what was never written whole took none, and the reclaim
/// thread may be about to write the last of them.
fn send_out_beyond_runs(arena: &Arena) -> Region {
    let (large, _) = send_out(arena, DEVICE / 4 / BLOCK + 2);
    until("a folio without a run of slots", || {
        let (_, stats) = send_out(arena, 1);
        stats.swpout_fallback[4..].iter().any(|&nr| nr > 0)
    });
    large
}

fn check_large(large: &Region) {
    (0..large.len()).step_by(PAGE).for_each(|at| assert!(is_set(large, at), "byte {at}"));
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::yield_now();
    }
}

/// Checks compaction of a device on which folios of 2 MiB found no run.
fn whole_runs_come_back(arena: &Arena, small: &Region, step: usize) {
    let first = send_out_beyond_runs(arena);
    until("compaction", || arena.stats().slot_compact_success > 0);
    let stats = arena.stats();
    assert!(stats.slots_migrated > 0 && stats.verify_failures == 0, "{stats:?}");
    // The folio may be busy when it is evicted, or find no whole pageblock in RAM.
    until("a whole swap-out", || {
        let (large, after) = send_out(arena, 1);
        check_large(&large);
        after.thp_swpout > stats.thp_swpout
    });
    check(small, step);
    check_large(&first);
    assert_eq!(arena.stats().io_errors, 0);
}

#[test]
fn folios_of_2m_find_whole_runs_among_scattered_small_ones() {
    for k in [0, 4] {
        let folio = Order::new(k).unwrap();
        let arena = arena(Some(Stage::default()));
        let small = scattered(&arena, folio, folio.bytes());
        whole_runs_come_back(&arena, &small, folio.bytes());
    }
}

#[test]
fn pages_of_what_went_out_whole_are_moved_too() {
    let arena = arena(Some(Stage::default()));
    arena.set_swap_in(SwapIn::Never);
    let mut small = arena.map_with(DEVICE / 4 * 3, FolioSize::Fixed(Order::HUGE)).unwrap();
    (0..small.len()).step_by(PAGE).for_each(|at| set(&mut small, at));
    arena.evict_all();
    // Touched content comes back as one page, and its block is kept in pages from then on, whose hashes are those noted
    // at the write.
    let touched: Vec<usize> = (0..small.len()).step_by(BLOCK).collect();
    touched.iter().for_each(|&at| assert!(is_set(&small, at)));
    for at in (0..small.len()).step_by(PAGE).filter(|&at| !stays(at, PAGE)) {
        small.advise(at..at + PAGE, Advice::DontNeed);
    }
    whole_runs_come_back(&arena, &small, PAGE);
}

#[test]
fn without_compaction_nothing_is_moved() {
    let arena = arena(None);
    let small = scattered(&arena, Order::PAGE, PAGE);
    let mut whole = Vec::new();
    // A folio that finds no whole pageblock in RAM, which is not compacted either, does not go out whole. It is dropped
    // again.
    until("a swap-out without a place", || {
        let nr_before = arena.stats().thp_swpout;
        let (large, stats) = send_out(&arena, 1);
        if stats.thp_swpout > nr_before {
            whole.push(large);
        }
        stats.thp_swpout_fallback > 0
    });
    assert_eq!(arena.stats().slots_migrated, 0);
    check(&small, PAGE);
    whole.iter().for_each(check_large);
}

#[test]
fn a_device_is_removed_while_its_slots_are_compacted() {
    let arena = arena(Some(Stage::default()));
    let small = scattered(&arena, Order::PAGE, PAGE);
    let large = send_out_beyond_runs(&arena);
    let name = arena.devices()[0].name.clone();
    arena.add_device(&DeviceSpec::Ram { size: 2 * DEVICE as u64 }).unwrap();
    arena.remove_device(&name).unwrap();
    check(&small, PAGE);
    check_large(&large);
    assert_eq!(arena.devices().len(), 1);
}
