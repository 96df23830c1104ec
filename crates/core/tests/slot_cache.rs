//! Freed slots on their way to their clusters, against a plain count of each CPU's batch and a plain map of slots:
//! random calls, and several threads with a worker, flushes and removal. A failure prints its seed.
#![cfg(not(loom))]

mod seeded;

use folioswap_core::*;
use seeded::Seed;
use std::sync::atomic::{AtomicBool, Ordering};

const NR_CPUS: usize = 3;

/// A batch is full with this many runs or this many slots.
const FULL: (usize, usize) = (64, 4096);

fn order(exponent: usize) -> Order {
    Order::new(exponent as u8).unwrap()
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    // To run one seed: SEED=17 cargo test --test slot_cache.
    let one = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    one.map_or(0..count, |seed: u64| seed..seed + 1)
}

/// The cache and its clusters, with a model of both.
struct Pair {
    clusters: Clusters,
    cache: SlotCache,
    /// Slots that a folio uses.
    in_use: Vec<bool>,
    /// The runs of folios: first slot and order.
    runs: Vec<(SlotId, usize)>,
    /// Runs and slots in each CPU's batch.
    batches: [(usize, usize); NR_CPUS],
    removing: bool,
}

impl Pair {
    fn new(nr_slots: usize, wants_discard: bool) -> Pair {
        let clusters = Clusters::new(nr_slots, NR_CPUS, wants_discard);
        clusters.grow(nr_slots);
        let (cache, in_use) = (SlotCache::new(NR_CPUS), vec![false; nr_slots]);
        Pair { clusters, cache, in_use, runs: Vec::new(), batches: [(0, 0); NR_CPUS], removing: false }
    }

    fn mark(&mut self, slot: SlotId, k: usize, now: bool) {
        for slot in &mut self.in_use[slot.index()..slot.index() + (1 << k)] {
            assert_ne!(std::mem::replace(slot, now), now, "a slot is two folios', or nobody's");
        }
    }

    /// Allocates as a device does: if nothing is found, flushes and tries once more.
    fn allocate(&mut self, cpu: usize, k: usize) {
        let take = |clusters: &Clusters| clusters.allocate(CpuId::from_index(cpu), order(k));
        let found = take(&self.clusters).or_else(|| {
            self.flush();
            take(&self.clusters)
        });
        match found {
            Some(slot) => {
                self.mark(slot, k, true);
                self.runs.push((slot, k));
            }
            None => assert!(k > 0 || self.removing || !self.in_use.contains(&false), "a slot was free"),
        }
    }

    fn free(&mut self, cpu: usize, at: usize) {
        let (slot, k) = self.runs.swap_remove(at);
        self.mark(slot, k, false);
        let freed = self.cache.free(&self.clusters, CpuId::from_index(cpu), slot, order(k));
        let is_full = |(nr_runs, nr_slots): (usize, usize)| nr_runs == FULL.0 || nr_slots >= FULL.1;
        let batch = &mut self.batches[cpu % NR_CPUS];
        let was_full = is_full(*batch);
        if self.removing {
            assert_eq!(freed, Freed::Immediate);
            return;
        }
        *batch = if was_full { (1, 1 << k) } else { (batch.0 + 1, batch.1 + (1 << k)) };
        let expected = match (was_full, is_full(*batch)) {
            (true, _) => Freed::Emptied,
            (false, true) => Freed::Filled,
            (false, false) => Freed::Collected,
        };
        assert_eq!(freed, expected);
    }

    fn work(&mut self) {
        let full = self.batches.iter_mut().filter(|batch| batch.0 == FULL.0 || batch.1 >= FULL.1);
        let nr_full = full.map(|batch| *batch = (0, 0)).count();
        assert_eq!(self.cache.give_full(&self.clusters), nr_full > 0);
    }

    fn flush(&mut self) {
        assert_eq!(self.cache.flush(&self.clusters), self.batches.iter().any(|batch| batch.0 > 0));
        self.batches = [(0, 0); NR_CPUS];
        self.check();
    }

    fn toggle_removal(&mut self) {
        self.removing = !self.removing;
        if self.removing {
            self.clusters.begin_removal();
            self.cache.switch_off(&self.clusters);
            self.batches = [(0, 0); NR_CPUS];
            self.check();
        } else {
            self.cache.switch_on();
            self.clusters.cancel_removal();
        }
    }

    /// The counts are always exact.
    fn check(&self) {
        let nr_in_use = self.in_use.iter().filter(|&&in_use| in_use).count();
        let nr_waiting: usize = self.batches.iter().map(|batch| batch.1).sum();
        assert_eq!((self.cache.nr_slots(), self.clusters.nr_used()), (nr_waiting, nr_in_use + nr_waiting));
    }
}

#[test]
fn counts_are_exact_whatever_comes_between() {
    for seed in seeds(300) {
        let _seed = Seed(seed);
        let mut random = seeded::rng(seed);
        let mut pair = Pair::new([700, 3000, 20_000][random.usize(..3)], seed % 2 == 0);
        let (nr_orders, mut allocations) = ([1, 3, 10][random.usize(..3)], 60);
        for call in 0..4000 {
            if call % 400 == 399 {
                allocations = [10, 50, 90][random.usize(..3)];
                pair.clusters.verify();
            }
            // One CPU more than there are batches, so it shares one.
            let cpu = random.usize(..NR_CPUS + 1);
            match random.usize(..100) {
                0 => pair.flush(),
                1..4 => pair.work(),
                4 if pair.removing || random.usize(..5) == 0 => pair.toggle_removal(),
                5 => {
                    let discards = pair.clusters.take_discards(3);
                    discards.into_iter().for_each(|cluster| pair.clusters.discarded(cluster));
                }
                dice if dice < allocations => pair.allocate(cpu, random.usize(..nr_orders)),
                _ if !pair.runs.is_empty() => {
                    let at = random.usize(..pair.runs.len());
                    pair.free(cpu, at);
                }
                _ => {}
            }
            pair.check();
        }
        while !pair.runs.is_empty() {
            pair.free(random.usize(..NR_CPUS), 0);
        }
        pair.flush();
        assert_eq!((pair.clusters.nr_used(), pair.cache.nr_slots()), (0, 0));
        pair.clusters.verify();
    }
}

#[test]
fn threads_a_worker_flushes_and_removal_lose_nothing() {
    const NR_SLOTS: usize = 8192;
    let clusters = Clusters::new(NR_SLOTS, NR_CPUS, false);
    clusters.grow(NR_SLOTS);
    let cache = SlotCache::new(NR_CPUS);
    let in_use: Vec<_> = (0..NR_SLOTS).map(|_| AtomicBool::new(false)).collect();
    let mark = |slot: SlotId, k: usize, now: bool| {
        for slot in &in_use[slot.index()..slot.index() + (1 << k)] {
            assert_ne!(slot.swap(now, Ordering::Relaxed), now, "a slot is two threads'");
        }
    };
    // The CPU of the call, not of the thread: threads migrate while they free.
    let use_slots = |seed: u64| {
        let (mut random, mut runs) = (seeded::rng(seed), Vec::new());
        for _ in 0..60_000 {
            let cpu = CpuId::from_index(random.usize(..NR_CPUS));
            if random.usize(..1000) < 500 {
                let k = [0, 0, 0, 1, 4, 9][random.usize(..6)];
                if let Some(slot) = clusters.allocate(cpu, order(k)) {
                    mark(slot, k, true);
                    runs.push((slot, k));
                }
            } else if !runs.is_empty() {
                let (slot, k) = runs.swap_remove(random.usize(..runs.len()));
                mark(slot, k, false);
                let _ = cache.free(&clusters, cpu, slot, order(k));
            }
        }
        for (slot, k) in runs {
            mark(slot, k, false);
            let _ = cache.free(&clusters, CpuId::new(0), slot, order(k));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..4).map(|seed| scope.spawn(move || use_slots(seed))).collect();
        let mut call = 0;
        while !threads.iter().all(|thread| thread.is_finished()) {
            call += 1;
            match call % 16 {
                0 => {
                    clusters.begin_removal();
                    cache.switch_off(&clusters);
                    assert_eq!(cache.nr_slots(), 0, "what was on its way has arrived, and all goes straight");
                    cache.switch_on();
                    clusters.cancel_removal();
                }
                8 => {
                    cache.flush(&clusters);
                }
                _ => {
                    cache.give_full(&clusters);
                }
            }
        }
    });
    cache.flush(&clusters);
    assert_eq!((clusters.nr_used(), cache.nr_slots()), (0, 0));
    clusters.verify();
}
