//! The public API on the real kernel, in both fault modes and with both mappings.

mod words;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use folioswap::{Advice, Arena, ArenaVec, DeviceSpec, Error, FaultMode, FolioSize, Mapping, Order, SwapIn};
use folioswap_core::{FaultKind, PIECE, Phase};
use words::{check, fill};

const MIB: usize = 1 << 20;

/// The four ways of running that this system permits. Prints those that it skips.
fn ways() -> Vec<(FaultMode, Mapping)> {
    let all = [
        (FaultMode::Direct, Mapping::Move),
        (FaultMode::Direct, Mapping::Copy),
        (FaultMode::Monitor, Mapping::Move),
        (FaultMode::Monitor, Mapping::Copy),
    ];
    let permitted = |&(faults, mapping): &(FaultMode, Mapping)| match arena(16, faults, mapping) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {faults} faults, mapping by {mapping}: {error}");
            false
        }
    };
    all.into_iter().filter(permitted).collect()
}

fn arena(memory_mib: u64, faults: FaultMode, mapping: Mapping) -> Result<Arena, Error> {
    Arena::builder().memory(memory_mib << 20).faults(faults).mapping(mapping).build()
}

#[test]
fn what_is_written_is_read_back_at_four_times_the_budget() {
    for (faults, mapping) in ways() {
        let arena = arena(16, faults, mapping).unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 64 * MIB / 8).unwrap();
        assert!(words.iter().all(|&word| word == 0));
        for round in 1..4 {
            fill(&mut words, round);
            check(&words, round);
            check(&words, round);
        }
        let stats = arena.stats();
        assert!(stats.swapped_out_folios > 24, "{faults} {mapping}: {stats:?}");
        assert!(stats.swapped_in_folios > 24);
        assert_eq!((stats.verify_failures, stats.io_errors), (0, 0));
        let residency = arena.measure().unwrap();
        assert!(residency.resident_bytes <= residency.budget_bytes + 16 * MIB as u64, "{residency:?}");
        if mapping == Mapping::Move {
            assert!(residency.huge_bytes * 1000 >= residency.resident_bytes * 966, "{residency:?}");
        }
    }
}

#[test]
fn every_order_travels() {
    for order in [Order::PAGE, Order::new(4).unwrap(), Order::new(8).unwrap()] {
        for mapping in [Mapping::Auto, Mapping::Copy] {
            let arena = Arena::builder().memory(16 << 20).folio(order).mapping(mapping).build().unwrap();
            let mut words = ArenaVec::<u64>::zeroed(&arena, 24 * MIB / 8).unwrap();
            fill(&mut words, 1);
            check(&words, 1);
            fill(&mut words, 2);
            check(&words, 2);
        }
    }
}

/// Lets 64 threads touch one evicted folio at once. Returns the number of reads.
fn reads_of_a_crowd(faults: FaultMode, mapping: Mapping) -> u64 {
    let arena = arena(16, faults, mapping).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 8 * MIB / 8).unwrap();
    fill(&mut words, 1);
    arena.evict_all();
    // Others take the frames, so that nothing stays on standby.
    let mut others = ArenaVec::<u64>::zeroed(&arena, 64 * MIB / 8).unwrap();
    fill(&mut others, 2);
    let nr_reads = || arena.devices()[0].io.reads.calls;
    let before = nr_reads();
    let barrier = Barrier::new(64);
    let words = &words;
    thread::scope(|scope| {
        for thread in 0..64 {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                assert_eq!(words[thread], (thread as u64) << 8 | 1);
            });
        }
    });
    nr_reads() - before
}

#[test]
fn sixty_four_threads_on_one_folio_cost_one_read() {
    for (faults, mapping) in ways() {
        // A folio that was too busy to evict may still be on standby, and then needs no read.
        let reads: Vec<_> = (0..5).map(|_| reads_of_a_crowd(faults, mapping)).collect();
        assert!(reads.iter().all(|&reads| reads <= 1) && reads.contains(&1), "{faults} {mapping}: {reads:?}");
    }
}

#[test]
fn zero_folios_take_no_slot_and_clean_ones_no_write() {
    let arena = arena(16, FaultMode::Auto, Mapping::Auto).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 64 * MIB / 8).unwrap();
    words.fill(0);
    assert_eq!(arena.stats().swapped_out_folios, 0);
    assert!(arena.stats().zero_folios_dropped > 0);
    fill(&mut words, 1);
    arena.evict_all();
    let written = arena.stats().swapped_out_folios;
    for _ in 0..3 {
        check(&words, 1);
    }
    arena.evict_all();
    assert_eq!(arena.stats().swapped_out_folios, written, "reading alone writes nothing");
    assert!(arena.stats().clean_folios_dropped > 0);
}

#[test]
fn advice_changes_no_content_but_what_is_not_needed() {
    for (faults, mapping) in ways() {
        let arena = arena(16, faults, mapping).unwrap();
        let mut region = arena.map(48 * MIB).unwrap();
        region.fill(7);
        for advice in [Advice::WillNeed, Advice::Sequential, Advice::Random, Advice::Cold, Advice::Normal] {
            region.advise(.., advice);
            assert!(region.iter().all(|&byte| byte == 7), "{advice:?}");
        }
        // Not aligned: exactly these bytes become zero.
        let hole = 3 * MIB + 5..9 * MIB - 11;
        region.advise(hole.clone(), Advice::DontNeed);
        assert!(region[hole.clone()].iter().all(|&byte| byte == 0));
        assert!(region[..hole.start].iter().chain(&region[hole.end..]).all(|&byte| byte == 7));
    }
}

#[test]
fn what_is_wanted_soon_is_read_before_it_is_touched() {
    for folio in [FolioSize::Auto, FolioSize::Fixed(Order::HUGE), FolioSize::Fixed(PIECE)] {
        let swap = DeviceSpec::Ram { size: 128 << 20 };
        let arena = Arena::builder().memory(32 << 20).device(swap).folio(folio).build().unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 96 * MIB / 8).unwrap();
        fill(&mut words, 1);
        let first = words.as_ptr() as usize;
        let read = || arena.stats().swapped_in_bytes;
        for (round, at) in [0, 32 * MIB, 64 * MIB].into_iter().enumerate() {
            let before = read();
            arena.raw().advise(first + at, 12 * MIB, Advice::WillNeed);
            let begun = Instant::now();
            while read() - before < 10 * MIB as u64 {
                assert!(begun.elapsed() < Duration::from_secs(20), "{folio}, {round}: {} bytes", read() - before);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        check(&words, 1);
    }
}

#[test]
fn a_page_may_be_dropped_and_touched_again_without_end() {
    let arena = arena(16, FaultMode::Direct, Mapping::Auto).unwrap();
    let mut region = arena.map_with(2 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    // More faults than a page in RAM may have in a row before the program is ended.
    for round in 0..110_000u32 {
        assert_eq!(region[0], 0, "round {round}");
        region[0] = 1;
        region.advise(..4096, Advice::DontNeed);
    }
}

#[test]
fn the_budget_changes_while_running() {
    let arena = arena(64, FaultMode::Auto, Mapping::Auto).unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 64 * MIB / 8).unwrap();
    fill(&mut words, 1);
    for memory_mib in [16u64, 48, 20] {
        arena.set_memory(memory_mib << 20).unwrap();
        check(&words, 1);
        check(&words, 1);
        let residency = arena.measure().unwrap();
        assert!(residency.resident_bytes <= (memory_mib << 20) + 16 * MIB as u64, "{memory_mib} MiB: {residency:?}");
    }
    assert!(matches!(arena.set_memory(1), Err(Error::BudgetTooSmall(1))));
    assert!(matches!(arena.set_memory(1 << 50), Err(Error::BudgetTooLarge(_))));
}

#[test]
fn devices_are_used_in_turn_and_a_swap_that_just_suffices_is_enough() {
    // 64 MiB of data, 16 of them in RAM. The devices hold the other 48 and a little more.
    let arena = Arena::builder()
        .memory(16 << 20)
        .device(DeviceSpec::Ram { size: 8 << 20 })
        .device(DeviceSpec::Ram { size: 44 << 20 })
        .build()
        .unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 60 * MIB / 8).unwrap();
    for round in 0..4 {
        fill(&mut words, round);
        check(&words, round);
    }
}

#[test]
fn raw_memory_grows_moves_and_shrinks_with_its_content() {
    for (faults, mapping) in ways() {
        let arena = arena(16, faults, mapping).unwrap();
        let raw = arena.raw();
        let at = raw.map(6 * MIB).unwrap();
        let blocker = raw.map(2 * MIB).unwrap(); // keeps it from growing in place
        // SAFETY: `at` is 6 MiB of this test's own.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 6 * MIB) }.fill(3);
        // SAFETY: the mapping is this test's own and unused meanwhile.
        let moved = unsafe { raw.remap(at, 6 * MIB, 40 * MIB) }.unwrap();
        assert_ne!(moved, at);
        // SAFETY: `moved` is 40 MiB of this test's own now.
        let bytes = unsafe { std::slice::from_raw_parts_mut(moved as *mut u8, 40 * MIB) };
        assert!(bytes[..6 * MIB].iter().all(|&byte| byte == 3));
        assert!(bytes[6 * MIB..].iter().all(|&byte| byte == 0));
        bytes.fill(4);
        // SAFETY: nobody uses the tail any more.
        unsafe { raw.unmap(moved + 5 * MIB, 35 * MIB) };
        assert!(bytes[..5 * MIB].iter().all(|&byte| byte == 4));
        // SAFETY: nobody uses either any more.
        unsafe {
            raw.unmap(moved, 5 * MIB);
            raw.unmap(blocker, 2 * MIB);
        }
    }
}

#[test]
fn metadata_stays_within_a_thousandth() {
    let arena = arena(16, FaultMode::Auto, Mapping::Auto).unwrap();
    let mapped = 1024 * MIB;
    let mut region = arena.map(mapped).unwrap();
    for at in (0..mapped).step_by(2 * MIB) {
        region[at] = 1;
    }
    let allowed = mapped / 1000 + 16 * MIB / 200;
    assert!(arena.metadata_bytes() <= allowed, "{} > {allowed}", arena.metadata_bytes());
}

#[test]
fn bad_settings_are_refused_in_one_sentence() {
    let refused = |builder: folioswap::ArenaBuilder| builder.build().map(drop).unwrap_err();
    assert!(matches!(refused(Arena::builder().memory(1 << 20)), Error::BudgetTooSmall(_)));
    let swap = |text: &str| refused(Arena::builder().memory(16 << 20).device(text.parse::<DeviceSpec>().unwrap()));
    assert!(matches!(swap("/tmp"), Error::SwapUnusable { .. }));
    assert!(matches!(swap("/no/such/directory/swap"), Error::SwapUnusable { .. }));
    assert!(matches!(swap("/proc/swap"), Error::SwapUnusable { .. }));
    assert!(matches!(swap("ram:4K"), Error::SwapTooSmall { .. }));
    assert!(matches!(swap("/var/tmp/swap:15T"), Error::SwapTooSmall { .. }));
    assert!(matches!(swap("/var/tmp/swap:900T"), Error::SwapTooLarge { .. }));
    let arena = arena(16, FaultMode::Auto, Mapping::Auto).unwrap();
    assert!(matches!(arena.map(0), Err(Error::BadLength(0))));
    assert!(matches!(arena.map(1 << 50), Err(Error::System { .. })));
}

#[test]
fn settings_of_folios_and_swap_in_are_kept() {
    let device = DeviceSpec::Ram { size: 4 << 20 };
    let builder = Arena::builder().memory(16 << 20).device(device);
    let arena = builder.folio(FolioSize::Auto).swap_in(SwapIn::Never).build().unwrap();
    assert_eq!(arena.swap_in(), SwapIn::Never);
    arena.set_swap_in(SwapIn::Madvise);
    assert_eq!(arena.swap_in(), SwapIn::Madvise);
    let mut region = arena.map_with(1 << 20, FolioSize::Fixed(Order::PAGE)).unwrap();
    region[77] = 7;
    arena.evict_all();
    assert_eq!(region[77], 7);
}

#[test]
fn faults_are_timed_and_the_phases_of_some() {
    let arena = Arena::builder().memory(16 << 20).device(DeviceSpec::Ram { size: 96 << 20 });
    let arena = arena.faults(FaultMode::Direct).folio(Order::HUGE).build().unwrap();
    let mut words = ArenaVec::<u64>::zeroed(&arena, 64 * MIB / 8).unwrap();
    let (block, mut outside_ns) = (2 * MIB / 8, 0);
    for round in 0..16u64 {
        // Not in order, so that nothing is read ahead.
        for at in (0..32).map(|step| step * 13 % 32 * block + 8) {
            let begun = Instant::now();
            assert_eq!(words[at], round);
            words[at] += 1; // it may have left RAM again
            outside_ns += begun.elapsed().as_nanos() as u64;
        }
    }
    let stats = arena.stats();
    assert!(stats.fault(FaultKind::FirstTouch).count() == 32 && stats.swap_in(Order::HUGE).count() >= 400, "{stats:?}");
    assert_eq!(stats.fault(FaultKind::SwapIn), stats.swap_in(Order::HUGE));
    for phase in [Phase::Frame, Phase::Read, Phase::Map] {
        // One fault in 16 is drawn. None of more than 400, or a quarter of them, is very unlikely.
        let count = stats.phase(phase).count();
        assert!((1..stats.nr_faults() / 4).contains(&count), "{phase:?}: {stats:?}");
    }
    let inside_ns = stats.stalled_ns();
    let in_phases_ns: u64 = stats.phases.iter().map(|phase| phase.sum()).sum();
    assert!(in_phases_ns <= inside_ns, "{in_phases_ns} of {inside_ns}");
    // Each swap-in of 2 MiB is long, so the longest phase of slow ones is known.
    assert_eq!(stats.slow_unknown(FaultKind::SwapIn), 0);
    // The rest is the kernel's path to the handler and back, and time when the thread did not run. 1 % for the rate of
    // the clock.
    assert!(inside_ns > 0 && inside_ns <= outside_ns / 100 * 101, "{inside_ns} of {outside_ns}");
}

#[test]
fn addresses_of_regions_of_any_length_come_back() {
    let arena = Arena::builder().memory(16 << 20).build().unwrap();
    let mut addresses = std::collections::BTreeSet::new();
    for round in 0..200 {
        let mut region = arena.map(3 * MIB + 5).unwrap();
        addresses.insert(region.as_ptr());
        assert!(region.iter().all(|&byte| byte == 0));
        region[round] = 1;
        region[3 * MIB + 4] = 1;
    }
    assert!(addresses.len() < 100, "{} addresses: they do not come back", addresses.len());
}
