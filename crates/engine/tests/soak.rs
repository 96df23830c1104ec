//! Eight threads map, advise, read, write and drop at random against a shadow copy, in the four ways of running and
//! with two NUMA nodes. Meanwhile the budget changes, swap devices are replaced and RAM is compacted.
//!
//! `FOLIOSWAP_SOAK_SECONDS` sets the total time (default: 8). `FOLIOSWAP_SOAK_SEED` repeats a run's choices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use fastrand::Rng;
use folioswap::{Advice, Arena, DeviceSpec, FaultMode, FolioSize, Mapping, Order, Region, Topology};

const NR_THREADS: u64 = 8;
const MIB: usize = 1 << 20;

/// A region, and the expected value of every 4096th byte.
struct Shadowed {
    region: Region,
    bytes: Vec<u8>,
}

const STRIDE: usize = 4096;

impl Shadowed {
    fn map(arena: &Arena, choices: &mut Rng) -> Self {
        let len = (1 + choices.usize(..12)) * MIB + choices.usize(..MIB);
        let sizes = [FolioSize::Auto, Order::HUGE.into(), Order::new(4).unwrap().into(), Order::PAGE.into()];
        let region = arena.map_with(len, sizes[choices.usize(..sizes.len())]).expect("addresses suffice");
        Shadowed { bytes: vec![0; len.div_ceil(STRIDE)], region }
    }

    fn range(&self, choices: &mut Rng) -> std::ops::Range<usize> {
        let start = choices.usize(..self.bytes.len());
        start..start + 1 + choices.usize(..self.bytes.len() - start)
    }

    fn write(&mut self, choices: &mut Rng) {
        for at in self.range(choices) {
            self.bytes[at] = choices.u64(..) as u8;
            self.region[at * STRIDE] = self.bytes[at];
        }
    }

    fn check(&self, range: std::ops::Range<usize>) {
        for at in range {
            assert_eq!(self.region[at * STRIDE], self.bytes[at], "byte {at} of {:?}", self.region);
        }
    }

    fn advise(&mut self, choices: &mut Rng) {
        let range = self.range(choices);
        let advice = [Advice::WillNeed, Advice::Sequential, Advice::Random, Advice::Cold, Advice::DontNeed];
        let advice = advice[choices.usize(..advice.len())];
        if advice == Advice::DontNeed {
            self.bytes[range.clone()].fill(0);
        }
        let end = (range.end * STRIDE).min(self.region.len());
        self.region.advise(range.start * STRIDE..end, advice);
    }
}

fn work(arena: &Arena, seed: u64, end: Instant, steps: &AtomicU64) {
    let mut choices = Rng::with_seed(seed);
    let mut regions: Vec<Shadowed> = Vec::new();
    while Instant::now() < end {
        steps.fetch_add(1, Ordering::Relaxed);
        if regions.is_empty() || (regions.len() < 3 && choices.usize(..8) == 0) {
            regions.push(Shadowed::map(arena, &mut choices));
        }
        let at = choices.usize(..regions.len());
        match choices.usize(..16) {
            0 => drop(regions.swap_remove(at)),
            1..=3 => regions[at].advise(&mut choices),
            4..=8 => regions[at].write(&mut choices),
            _ => {
                let range = regions[at].range(&mut choices);
                regions[at].check(range);
            }
        }
    }
    regions.iter().for_each(|shadowed| shadowed.check(0..shadowed.bytes.len()));
}

/// Replaces the arena's device by another file, repeatedly.
fn replace_devices(arena: &Arena, end: Instant) -> usize {
    for nr_removed in 0.. {
        if Instant::now() >= end {
            return nr_removed;
        }
        let old = arena.devices()[0].name.clone();
        let path = folioswap::device::default_directory().join(format!("soak-{nr_removed}"));
        arena.add_device(&DeviceSpec::File { path, size: None }).expect("there is space");
        thread::sleep(Duration::from_millis(50)); // both are in use for a while
        arena.remove_device(&old).expect("a file grows as needed");
    }
    unreachable!("the range has no end")
}

#[test]
fn eight_threads_at_random_against_a_shadow_copy() {
    let seconds = env::var("FOLIOSWAP_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let fresh = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = env::var("FOLIOSWAP_SOAK_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(fresh);
    println!("FOLIOSWAP_SOAK_SEED={seed}");
    let two_nodes: Topology = "node 0 cpus 0\nnode 1 cpus 1-63".parse().unwrap();
    for faults in [FaultMode::Direct, FaultMode::Monitor] {
        for (mapping, nr_nodes) in [(Mapping::Move, 1), (Mapping::Move, 2), (Mapping::Copy, 1)] {
            let builder = Arena::builder().memory(48 << 20).faults(faults).mapping(mapping);
            let built = if nr_nodes == 2 { builder.topology(two_nodes.clone()) } else { builder }.build();
            let arena = match built {
                Ok(arena) => arena,
                Err(error) => {
                    println!("skipped: {faults} faults, mapping by {mapping}: {error}");
                    continue;
                }
            };
            let end = Instant::now() + Duration::from_millis(seconds * 1000 / 6);
            let steps = AtomicU64::new(0);
            thread::scope(|scope| {
                for thread in 0..NR_THREADS {
                    let (arena, steps) = (&arena, &steps);
                    let mut choices = Rng::with_seed(seed.wrapping_add(thread * 977));
                    choices.u64(..);
                    scope.spawn(move || work(arena, choices.u64(..), end, steps));
                }
                scope.spawn({
                    let arena = &arena;
                    move || {
                        let nr_removed = replace_devices(arena, end);
                        println!("{nr_removed} devices replaced");
                    }
                });
                scope.spawn({
                    let arena = &arena;
                    move || {
                        let mut choices = Rng::with_seed(seed);
                        while Instant::now() < end {
                            arena.set_memory((24 + choices.usize(..40) as u64) << 20).expect("above the least");
                            thread::yield_now();
                            let _ = arena.stats();
                        }
                    }
                });
                scope.spawn({
                    let arena = &arena;
                    move || {
                        while Instant::now() < end {
                            arena.compact();
                            thread::yield_now();
                        }
                    }
                });
            });
            let stats = arena.stats();
            println!(
                "{faults} {mapping} {nr_nodes}: {} steps, {} folios out, {} in, {} pages moved",
                steps.into_inner(),
                stats.swapped_out_folios,
                stats.swapped_in_folios,
                stats.pgmigrate_success
            );
            assert_eq!((stats.verify_failures, stats.io_errors), (0, 0));
            assert!(stats.swapped_in_folios > 0, "nothing was swapped: the soak tests nothing");
            assert!(stats.pgmigrate_success > 0, "nothing was compacted");
        }
    }
}
