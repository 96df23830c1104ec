//! Folios of several orders in one arena: whole folios come back in part, are dropped in part, and become whole again.

use fastrand::Rng;
use folioswap::{Advice, Arena, ArenaVec, DeviceSpec, FaultMode, FolioSize, Order, Region, SwapIn};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const BLOCK: usize = 2 * MIB;

fn builder(memory_mib: u64) -> folioswap::ArenaBuilder {
    Arena::builder().memory(memory_mib << 20).faults(FaultMode::Direct)
}

/// A byte that depends on its page.
fn mark(at: usize) -> u8 {
    (at / PAGE * 31 % 251) as u8 + 1
}

/// Marks every page of a region.
fn fill(region: &mut Region) {
    for at in (0..region.len()).step_by(PAGE) {
        region[at..at + PAGE].fill(mark(at));
    }
}

fn check(region: &Region, pages: impl Iterator<Item = usize>) {
    for page in pages {
        let (at, right) = (page * PAGE, mark(page * PAGE));
        assert!(region[at..at + PAGE].iter().all(|&byte| byte == right), "page {page}");
    }
}

/// A region whose content has left RAM in whole blocks.
fn swapped_out(arena: &Arena, len: usize) -> Region {
    let mut region = arena.map(len).unwrap();
    fill(&mut region);
    arena.evict_all();
    push_out(arena);
    region
}

/// Fills RAM with other content, so that clean folios leave it.
fn push_out(arena: &Arena) {
    let mut other = arena.map(2 * arena.memory() as usize).unwrap();
    for at in (0..other.len()).step_by(PAGE) {
        other[at] = 1;
    }
}

/// What lies near on the device is read in one request, with the slots in between.
#[test]
fn one_page_in_twelve_is_read_in_few_requests() {
    let arena = builder(16).folio(Order::PAGE).build().unwrap();
    let region = swapped_out(&arena, 16 * MIB);
    let reads = |arena: &Arena| arena.devices()[0].io.reads.calls;
    let before = reads(&arena);
    let touched = (0..16 * MIB / PAGE).step_by(12).count() as u64;
    check(&region, (0..16 * MIB / PAGE).step_by(12));
    let made = reads(&arena) - before;
    assert!(made < touched / 2, "{made} requests for {touched} pages");
}

#[test]
fn a_page_of_what_went_out_whole_comes_back_alone() {
    let arena = builder(16).swap_in(SwapIn::Never).build().unwrap();
    let region = swapped_out(&arena, 8 * MIB);
    let before = arena.stats();
    assert!(before.swpout[9] >= 4, "{before:?}");
    check(&region, [3, 512, 700, 2047].into_iter());
    let after = arena.stats();
    assert_eq!((after.swpin[0] - before.swpin[0], after.swpin[9]), (4, before.swpin[9]));
    // The rest stayed swapped and intact. It comes back in one piece once the policy says so.
    arena.set_swap_in(SwapIn::Always);
    check(&region, 0..region.len() / PAGE);
    assert!(arena.stats().swpin[9] > before.swpin[9]);
    assert_eq!(arena.stats().verify_failures, 0);
}

#[test]
fn advice_decides_where_the_policy_leaves_it_open() {
    let arena = builder(16).folio(Order::HUGE).swap_in(SwapIn::Madvise).build().unwrap();
    let mut region = swapped_out(&arena, 8 * MIB);
    region.advise(..BLOCK, Advice::HugePage);
    let before = arena.stats();
    check(&region, [5, 1030].into_iter());
    let after = arena.stats();
    assert_eq!((after.swpin[9] - before.swpin[9], after.swpin[0] - before.swpin[0]), (1, 1));
}

#[test]
fn a_part_that_is_dropped_reads_zero_and_gives_its_slots_back() {
    for size in [FolioSize::Auto, Order::HUGE.into(), Order::new(4).unwrap().into(), Order::PAGE.into()] {
        let arena = builder(16).folio(size).build().unwrap();
        let mut region = swapped_out(&arena, 8 * MIB);
        let used = |arena: &Arena| arena.devices()[0].used_bytes;
        let before = used(&arena);
        // Pages 100..300 and 37 bytes on either side, in one block; a whole block; the last page of the last block.
        region.advise(100 * PAGE - 37..300 * PAGE + 37, Advice::DontNeed);
        region.advise(BLOCK..2 * BLOCK, Advice::DontNeed);
        region.advise(2047 * PAGE.., Advice::DontNeed);
        assert!(used(&arena) <= before - (200 + 512 + 1) as u64 * PAGE as u64, "{size}");
        assert!(region[100 * PAGE - 37..300 * PAGE + 37].iter().all(|&byte| byte == 0), "{size}");
        assert!(region[BLOCK..2 * BLOCK].iter().all(|&byte| byte == 0), "{size}");
        assert!(region[2047 * PAGE..].iter().all(|&byte| byte == 0), "{size}");
        check(&region, (0..99).chain(301..512).chain(1024..2047));
        arena.evict_all();
        push_out(&arena);
        check(&region, (0..99).chain(301..512).chain(1024..2047));
        assert!(region[100 * PAGE - 37..300 * PAGE + 37].iter().all(|&byte| byte == 0), "{size}");
        assert_eq!(arena.stats().verify_failures, 0);
    }
}

#[test]
fn bytes_are_dropped_on_both_sides_of_an_edge() {
    let arena = builder(16).folio(Order::PAGE).build().unwrap();
    let mut region = arena.map(BLOCK).unwrap();
    region[PAGE..2 * PAGE].fill(7); // the page before it was never touched
    region.advise(PAGE - 6..PAGE + 4, Advice::DontNeed);
    assert!(
        region[..PAGE + 4].iter().all(|&byte| byte == 0) && region[PAGE + 4..2 * PAGE].iter().all(|&byte| byte == 7)
    );
}

#[test]
fn dropped_pages_of_a_block_in_ram_cost_no_writes() {
    let arena = builder(16).build().unwrap();
    let mut region = arena.map(BLOCK).unwrap();
    fill(&mut region);
    region.advise(..BLOCK / 2, Advice::DontNeed);
    region[7 * PAGE] = 9; // written again since
    arena.evict_all();
    let stats = arena.stats();
    assert!(stats.pswpout() <= 256 + 16, "{stats:?}");
    push_out(&arena);
    assert_eq!(region[7 * PAGE], 9);
    assert!(region[..7 * PAGE].iter().chain(&region[8 * PAGE..BLOCK / 2]).all(|&byte| byte == 0));
    check(&region, 256..512);
}

#[test]
fn a_block_whose_parts_are_all_wanted_becomes_one_folio_again() {
    let arena = builder(32).swap_in(SwapIn::Never).build().unwrap();
    let mut region = swapped_out(&arena, 4 * MIB);
    check(&region, (0..512).step_by(3));
    for at in (0..BLOCK).step_by(5 * PAGE) {
        region[at..at + PAGE].fill(mark(at)); // some parts are dirty, some clean, some on the device
    }
    arena.set_swap_in(SwapIn::Always);
    arena.evict_all();
    push_out(&arena);
    let before = arena.stats();
    check(&region, 0..512); // in order: the first pages show that it is dense
    let after = arena.stats();
    assert!(after.swpin[9] > before.swpin[9] && after.swpin[0] - before.swpin[0] < 256, "{after:?}");
    arena.evict_all();
    push_out(&arena);
    check(&region, 0..1024);
}

#[test]
fn on_a_nearly_full_device_blocks_leave_in_the_parts_that_fit() {
    let device = DeviceSpec::Ram { size: 32 * MIB as u64 };
    let arena = builder(64).device(device).build().unwrap();
    let mut region = arena.map(12 * MIB).unwrap();
    fill(&mut region);
    let mut small = arena.map_with(30 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    fill(&mut small);
    small.advise(.., Advice::Cold);
    // Drop every other page: half of the device is free, with hardly two contiguous slots.
    for at in (0..small.len()).step_by(2 * PAGE) {
        small.advise(at..at + PAGE, Advice::DontNeed);
    }
    region.advise(.., Advice::Cold);
    let stats = arena.stats();
    assert!(stats.thp_swpout_fallback > 0 && stats.swpout_fallback[9] == stats.thp_swpout_fallback, "{stats:?}");
    check(&region, 0..region.len() / PAGE);
    check(&small, (0..small.len() / PAGE).filter(|page| page % 2 == 1));
    assert_eq!((stats.io_errors, stats.verify_failures), (0, 0));
}

#[test]
fn small_and_large_folios_take_turns_with_the_same_ram() {
    let arena = builder(32).build().unwrap();
    let mut small = arena.map_with(48 * MIB, FolioSize::Fixed(Order::PAGE)).unwrap();
    let mut large = arena.map_with(48 * MIB, FolioSize::Fixed(Order::HUGE)).unwrap();
    for _ in 0..2 {
        fill(&mut small);
        fill(&mut large);
        check(&small, 0..small.len() / PAGE);
        check(&large, 0..large.len() / PAGE);
    }
    let before = arena.stats();
    assert!(before.swpin[0] > 1000, "{before:?}");
    // While the small folios are left alone, the large ones get whole pageblocks again.
    let wholes = || arena.stats().swpin[9] - before.swpin[9];
    for _ in 0..20 {
        check(&large, 0..large.len() / PAGE);
        if wholes() >= 24 {
            break;
        }
    }
    assert!(wholes() >= 24, "{:?}", arena.stats());
    let residency = arena.measure().unwrap();
    assert!(residency.resident_bytes <= residency.budget_bytes + 16 * MIB as u64, "{residency:?}");
}

#[test]
fn a_mapping_that_moves_takes_its_parts_with_it() {
    let arena = builder(16).swap_in(SwapIn::Never).build().unwrap();
    let raw = arena.raw();
    let old = raw.map(4 * MIB).unwrap();
    // SAFETY: a mapping of the test's own, of this length, used only through this slice until it moves.
    let bytes = unsafe { std::slice::from_raw_parts_mut(old as *mut u8, 4 * MIB) };
    bytes.chunks_mut(PAGE).enumerate().for_each(|(page, bytes)| bytes.fill(mark(page * PAGE)));
    arena.evict_all();
    push_out(&arena);
    assert_eq!(bytes[600 * PAGE], mark(600 * PAGE)); // one page in RAM, the rest swapped
    let _in_the_way = raw.map(2 * MIB).unwrap();
    // SAFETY: the old mapping is not used any more.
    let new = unsafe { raw.remap(old, 4 * MIB, 12 * MIB) }.unwrap();
    assert_ne!(new, old);
    // SAFETY: the mapping has moved here, and has this length.
    let bytes = unsafe { std::slice::from_raw_parts(new as *const u8, 12 * MIB) };
    for (page, bytes) in bytes.chunks(PAGE).enumerate() {
        let right = if page < 1024 { mark(page * PAGE) } else { 0 };
        assert!(bytes.iter().all(|&byte| byte == right), "page {page}");
    }
    // SAFETY: not used any more.
    unsafe { raw.unmap(new, 12 * MIB) };
}

#[test]
fn random_words_at_every_size() {
    for size in [FolioSize::Auto, Order::HUGE.into(), Order::new(4).unwrap().into(), Order::PAGE.into()] {
        let arena = builder(16).folio(size).build().unwrap();
        let mut words = ArenaVec::<u64>::zeroed(&arena, 40 * MIB / 8).unwrap();
        let mut shadow = vec![0u64; words.len()];
        let mut random = Rng::with_seed(1);
        let steps = if size == Order::HUGE.into() { 2_000 } else { 30_000 };
        for step in 0..steps {
            let at = random.usize(..shadow.len());
            assert_eq!(words[at], shadow[at], "{size}, step {step}");
            if random.bool() {
                let word = random.u64(..);
                (words[at], shadow[at]) = (word, word);
            }
        }
        assert!(words.iter().eq(shadow.iter()), "{size}");
    }
}

/// Two streams in step, as in `t += c`. The part of one that is in RAM stays there, and the other passes by.
#[test]
fn a_stream_leaves_in_ram_what_another_finds_there() {
    let arena = builder(96).device(DeviceSpec::Ram { size: 512 << 20 }).build().unwrap();
    let [mut c, mut t] = [(); 2].map(|()| arena.map(96 * MIB).unwrap());
    fill(&mut c);
    fill(&mut t);
    let pages = 0..96 * MIB / PAGE;
    for page in pages.clone() {
        check(&c, page..page + 1);
        check(&t, page..page + 1);
    }
    let before = arena.stats().swapped_in_bytes;
    check(&t, pages);
    let read = (arena.stats().swapped_in_bytes - before) as usize;
    assert!(read < 64 * MIB, "{} MiB of 96 were read again", read / MIB);
}
