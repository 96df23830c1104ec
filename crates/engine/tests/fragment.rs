//! Folios keep finding whole runs of slots on a nearly full device.
//!
//! Modelled on Linux's selftest of its swap allocator (thp_swap_allocator_test). An area nearly as large as its device
//! is written and swapped out. Each round then swaps in some folios, drops others, writes those again, and swaps
//! everything out. A folio that finds no free run of slots is a fallback. Content is checked at every touch.

use std::ops::Range;

use fastrand::Rng;
use folioswap::{Advice, Arena, DeviceSpec, FolioSize, Order, Region, StatsSnapshot};

const PAGE_BYTES: usize = 4 << 10;
const FOLIO_BYTES: usize = 64 << 10;
const AREA_BYTES: usize = 60 << 20;
/// The area of single-page folios in the mixed variant.
const SMALL_AREA_BYTES: usize = 4 << 20;
const DEVICE_BYTES: u64 = 64 << 20;
/// Bytes that each round swaps in, and that it drops. The small area has the same share.
const TURNED_BYTES: usize = 16 << 20;
const NR_ROUNDS: usize = 20;
/// Rounds until the allocator has settled. Their fallbacks do not count.
const SETTLING_ROUNDS: usize = 5;
const SEED: u64 = 1;

/// A region of folios, and how often each was written.
struct Area {
    region: Region,
    folio_bytes: usize,
    generations: Vec<u64>,
    /// Whether a touch reads the whole folio, or one page.
    whole: bool,
}

impl Area {
    fn new(arena: &Arena, bytes: usize, folio_bytes: usize, whole: bool) -> Area {
        let folio = FolioSize::Fixed(Order::from_bytes(folio_bytes).unwrap());
        let region = arena.map_with(bytes, folio).unwrap();
        let mut area = Area { region, folio_bytes, generations: vec![0; bytes / folio_bytes], whole };
        (0..area.generations.len()).for_each(|index| area.write(index));
        area
    }

    fn bytes_of(&self, index: usize) -> Range<usize> {
        index * self.folio_bytes..(index + 1) * self.folio_bytes
    }

    /// The content of a place. No two are alike, so that no folio is all zero or unchanged.
    fn word(&self, index: usize, at: usize) -> [u8; 8] {
        ((at as u64 + 1) << 32 | self.generations[index]).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()
    }

    fn write(&mut self, index: usize) {
        self.generations[index] += 1;
        for at in self.bytes_of(index).step_by(8) {
            let word = self.word(index, at);
            self.region[at..at + 8].copy_from_slice(&word);
        }
    }

    fn check(&self, index: usize, range: Range<usize>) {
        for at in range.step_by(8) {
            assert_eq!(self.region[at..at + 8], self.word(index, at), "seed {SEED}: byte {at} of folio {index}");
        }
    }

    /// Reads some folios, drops others, and writes those again. The share is the same for any area.
    fn turn(&mut self, random: &mut Rng) {
        let nr_folios = self.generations.len();
        let nr_turned = (nr_folios * TURNED_BYTES / AREA_BYTES).max(1);
        for _ in 0..nr_turned {
            let index = random.usize(..nr_folios);
            let range = self.bytes_of(index);
            let page = range.start + random.usize(..self.folio_bytes / PAGE_BYTES) * PAGE_BYTES;
            self.check(index, if self.whole { range } else { page..page + PAGE_BYTES });
        }
        let dropped: Vec<usize> = (0..nr_turned).map(|_| random.usize(..nr_folios)).collect();
        for &index in &dropped {
            self.region.advise(self.bytes_of(index), Advice::DontNeed);
        }
        dropped.into_iter().for_each(|index| self.write(index));
    }
}

fn fallbacks(stats: &StatsSnapshot) -> u64 {
    stats.swpout_fallback.iter().sum()
}

/// Runs the rounds: with whole folios or single pages touched, and with an area of single-page folios or without.
fn folios_find_whole_runs(whole: bool, mixed: bool) {
    let arena = Arena::builder().memory(16 << 20).device(DeviceSpec::Ram { size: DEVICE_BYTES }).build().unwrap();
    let mut areas = vec![Area::new(&arena, AREA_BYTES, FOLIO_BYTES, whole)];
    if mixed {
        areas.push(Area::new(&arena, SMALL_AREA_BYTES, PAGE_BYTES, false));
    }
    arena.evict_all();
    let mut random = Rng::with_seed(SEED);
    let mut before = arena.stats();
    let whole_at_begin: u64 = before.swpout.iter().sum();
    for round in 1..=NR_ROUNDS {
        areas.iter_mut().for_each(|area| area.turn(&mut random));
        arena.evict_all();
        let now = arena.stats();
        let found_none = fallbacks(&now) - fallbacks(&before);
        assert!(round <= SETTLING_ROUNDS || found_none == 0, "seed {SEED}, round {round}: {found_none} fallbacks");
        before = now;
    }
    for area in &areas {
        (0..area.generations.len()).for_each(|index| area.check(index, area.bytes_of(index)));
    }
    let nr_whole = before.swpout.iter().sum::<u64>() - whole_at_begin;
    assert!(nr_whole > 1000, "without whole folios, no fallback would mean nothing: {nr_whole}");
}

#[test]
fn single_pages_are_touched() {
    folios_find_whole_runs(false, false);
}

#[test]
fn single_pages_are_touched_beside_folios_of_one_page() {
    folios_find_whole_runs(false, true);
}

#[test]
fn whole_folios_are_touched() {
    folios_find_whole_runs(true, false);
}
