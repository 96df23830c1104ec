//! A kernel without huge pages left: folios stay whole, in small pages, and the statistics say so.

use folioswap::{Advice, Arena, DeviceSpec, FaultMode, FolioSize, Mapping, Order};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Sets whether this process gets huge pages when it touches memory.
fn give_huge_pages(given: bool) {
    // SAFETY: sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, i32::from(!given), 0, 0, 0) }, 0);
}

fn mark(at: usize, round: u8) -> u8 {
    (at / PAGE % 251) as u8 ^ round
}

#[test]
fn folios_are_whole_in_small_pages_until_there_are_huge_ones_again() {
    let device = DeviceSpec::Ram { size: 256 << 20 };
    let builder = Arena::builder().memory(32 << 20).device(device).faults(FaultMode::Direct);
    let arena = match builder.mapping(Mapping::Move).build() {
        Ok(arena) => arena,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut large = arena.map_with(64 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
    let mut small = arena.map_with(16 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    // Pageblocks are tried again now and then as they are freed and taken.
    for (round, given) in (1..=20).map(|round| (round, round > 2)) {
        give_huge_pages(given);
        (0..large.len()).step_by(PAGE).for_each(|at| large[at] = mark(at, round));
        (0..small.len()).step_by(PAGE).for_each(|at| small[at] = mark(at, round));
        (0..small.len()).step_by(2 * PAGE).for_each(|at| small.advise(at..at + PAGE, Advice::DontNeed));
        arena.compact();
        assert!((0..large.len()).step_by(PAGE).all(|at| large[at] == mark(at, round)), "round {round}");
        assert!((PAGE..small.len()).step_by(2 * PAGE).all(|at| small[at] == mark(at, round)), "round {round}");
        let (stats, residency) = (arena.stats(), arena.measure().unwrap());
        if given {
            if round >= 6 && residency.huge_bytes > 16 << 20 {
                break;
            }
            continue;
        }
        assert!(stats.thp_fault_fallback > 0, "{stats:?}");
        assert_eq!(residency.huge_bytes, 0);
    }
    let stats = arena.stats();
    assert!(stats.swpin[9] > 0 && stats.verify_failures == 0, "{stats:?}");
    assert!(arena.measure().unwrap().huge_bytes > 16 << 20, "{:?}", arena.measure());
}
