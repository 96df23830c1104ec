//! Compaction of frames in a running arena: scattered free frames become whole blocks, and content stays intact.

use std::sync::atomic::{AtomicBool, Ordering};

use folioswap::{Advice, Arena, CompactionMeans, DeviceSpec, FaultMode, FolioSize, Mapping, Order, Region, Tuning};

const MIB: usize = 1 << 20;
const BLOCK: usize = 2 * MIB;
const PIECE: usize = 64 << 10;
const WORD: usize = 8;

/// Each mapping with the ways in which it can give folios new homes.
const WAYS: [(Mapping, CompactionMeans); 3] = [
    (Mapping::Move, CompactionMeans::Migration),
    (Mapping::Move, CompactionMeans::Exchange),
    (Mapping::Copy, CompactionMeans::Migration),
];

fn arena((mapping, means): (Mapping, CompactionMeans), folio: FolioSize) -> Arena {
    let device = DeviceSpec::Ram { size: 256 << 20 };
    Arena::builder()
        .memory(64 << 20)
        .device(device)
        .faults(FaultMode::Direct)
        .mapping(mapping)
        .tuning(Tuning { compaction_means: means, ..Tuning::default() })
        .folio(folio)
        .build()
        .unwrap()
}

fn mark(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn set(region: &mut Region, at: usize) {
    region[at..at + WORD].copy_from_slice(&mark(at).to_ne_bytes());
}

fn is_set(region: &Region, at: usize) -> bool {
    region[at..at + WORD] == mark(at).to_ne_bytes()
}

/// A region of folios of one size with a word in each page. Every other `step` bytes are dropped again.
fn scattered(arena: &Arena, len: usize, folio: Order, step: usize) -> Region {
    let mut region = arena.map_with(len, FolioSize::Fixed(folio)).unwrap();
    (0..len).step_by(4096).for_each(|at| set(&mut region, at));
    (0..len).step_by(2 * step).for_each(|at| region.advise(at..at + step, Advice::DontNeed));
    region
}

fn check(region: &Region, step: usize) {
    for at in (0..region.len()).step_by(4096) {
        let kept = at / step % 2 == 1;
        assert!(if kept { is_set(region, at) } else { region[at] == 0 }, "byte {at}");
    }
}

#[test]
fn whole_folios_find_a_place_among_scattered_small_ones() {
    let moving = WAYS.iter().filter(|(mapping, _)| *mapping == Mapping::Move);
    for (&way, folio) in moving.flat_map(|way| [(way, Order::PAGE), (way, Order::new(4).unwrap())]) {
        let arena = arena(way, FolioSize::Auto);
        let small = scattered(&arena, 60 * MIB, folio, PIECE);
        let mut large = arena.map_with(16 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
        (0..large.len()).step_by(BLOCK).for_each(|at| set(&mut large, at));
        let stats = arena.stats();
        assert_eq!(stats.swpin_fallback[9], 0, "{stats:?}");
        assert!(stats.pgmigrate_success >= 256, "ahead of the faults, or by them: {stats:?}");
        assert_eq!(stats.compact_copied_bytes, 0, "what is mapped is not copied");
        assert_eq!(stats.compact_exchange > 0, way.1 == CompactionMeans::Exchange, "{stats:?}");
        (0..large.len()).step_by(BLOCK).for_each(|at| assert!(is_set(&large, at)));
        check(&small, PIECE);
    }
}

#[test]
fn what_is_asked_for_is_compacted_with_either_mapping() {
    for way in WAYS {
        // Nothing is compacted ahead where all folios are small.
        let arena = arena(way, FolioSize::Fixed(Order::PAGE));
        let small = scattered(&arena, 60 * MIB, Order::PAGE, PIECE);
        assert_eq!(arena.stats().pgmigrate_success, 0);
        assert!(arena.compact());
        let stats = arena.stats();
        assert!(stats.pgmigrate_success > 0 && stats.pgmigrate_fail == 0, "{stats:?}");
        // Whole folios find frames now, and nothing more is moved for them.
        let mut large = arena.map_with(16 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
        (0..large.len()).step_by(BLOCK).for_each(|at| set(&mut large, at));
        let after = arena.stats();
        assert_eq!((after.swpin_fallback[9], after.pgmigrate_success), (0, stats.pgmigrate_success));
        check(&small, PIECE);
    }
}

#[test]
fn folios_in_use_are_moved_under_the_hands_of_their_users() {
    folios_in_use_are_moved(CompactionMeans::Migration);
}

#[test]
fn and_are_exchanged() {
    folios_in_use_are_moved(CompactionMeans::Exchange);
}

fn folios_in_use_are_moved(means: CompactionMeans) {
    let arena = arena((Mapping::Move, means), FolioSize::Auto);
    let mut small = scattered(&arena, 48 * MIB, Order::PAGE, PIECE);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for words in small.chunks_mut(12 * MIB) {
            let done = &done;
            scope.spawn(move || {
                let mut round = 1_u8;
                while !done.load(Ordering::Relaxed) {
                    // The last byte of each kept page counts the rounds.
                    let kept = (0..words.len()).step_by(4096).filter(|at| at / PIECE % 2 == 1);
                    for at in kept.map(|at| at + 4095) {
                        assert_eq!(words[at], round - 1, "byte {at}");
                        words[at] = round;
                    }
                    round = round % 250 + 1;
                    if round == 1 {
                        (0..words.len())
                            .step_by(4096)
                            .filter(|at| at / PIECE % 2 == 1)
                            .for_each(|at| words[at + 4095] = 0);
                    }
                }
            });
        }
        for _ in 0..6 {
            // Fills the gaps between the others, and leaves them free again.
            let other = scattered(&arena, 24 * MIB, Order::PAGE, PIECE);
            arena.compact();
            check(&other, PIECE);
            drop(other);
            let mut large = arena.map_with(8 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
            (0..large.len()).step_by(BLOCK).for_each(|at| set(&mut large, at));
        }
        done.store(true, Ordering::Relaxed);
    });
    let stats = arena.stats();
    assert!(stats.pgmigrate_success > 1_000, "{stats:?}");
    assert_eq!(stats.verify_failures, 0);
    (0..small.len()).step_by(4096).filter(|at| at / PIECE % 2 == 1).for_each(|at| assert!(is_set(&small, at)));
}
