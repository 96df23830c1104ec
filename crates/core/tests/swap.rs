//! The slot allocator against a plain map of slots: random calls, every short sequence of calls on a tiny device, and
//! several threads. A failure prints its seed or sequence.
#![cfg(not(loom))]

mod seeded;

use fastrand::Rng;
use folioswap_core::*;
use seeded::Seed;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

fn order(exponent: usize) -> Order {
    Order::new(exponent as u8).unwrap()
}

/// Prints the failing case when a test panics.
struct Blame<T: std::fmt::Debug>(T);

impl<T: std::fmt::Debug> Drop for Blame<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this shows it: {:?}", self.0);
        }
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Slot {
    Free,
    Taken,
    Bad,
}

/// The allocator and its model.
struct Pair {
    real: Clusters,
    cluster_slots: usize,
    slots: Vec<Slot>,
    /// Runs that were handed out: first slot and order.
    runs: Vec<(usize, usize)>,
    discarding: BTreeSet<ClusterId>,
    removing: bool,
    rotational: bool,
}

impl Pair {
    fn new(real: Clusters, cluster_slots: usize, rotational: bool) -> Pair {
        let (slots, runs, discarding) = (Vec::new(), Vec::new(), BTreeSet::new());
        Pair { real, cluster_slots, slots, runs, discarding, removing: false, rotational }
    }

    fn grow(&mut self, nr_slots: usize) {
        self.real.grow(nr_slots);
        self.slots.resize(nr_slots.max(self.slots.len()), Slot::Free);
    }

    fn is_discarding(&self, slot: usize) -> bool {
        self.discarding.contains(&ClusterId::from_index(slot / self.cluster_slots))
    }

    fn allocate(&mut self, cpu: u32, k: usize) -> Option<usize> {
        let Some(slot) = self.real.allocate(CpuId::new(cpu), order(k)) else {
            let any = (0..self.slots.len()).any(|slot| self.slots[slot] == Slot::Free && !self.is_discarding(slot));
            assert!(self.removing || k > 0 || !any, "a slot was free and order 0 did not get it");
            return None;
        };
        let first = slot.index();
        assert!(!self.removing && first.is_multiple_of(1 << k) && !(self.rotational && k > 0));
        for slot in first..first + (1 << k) {
            assert_eq!(self.slots[slot], Slot::Free, "slot {slot}");
            assert!(!self.is_discarding(slot), "slot {slot} is being discarded");
            self.slots[slot] = Slot::Taken;
        }
        self.runs.push((first, k));
        Some(first)
    }

    fn free(&mut self, at: usize) {
        let (first, k) = self.runs.remove(at);
        self.real.free(SlotId::from_index(first), order(k));
        for slot in first..first + (1 << k) {
            assert_ne!(self.slots[slot], Slot::Free);
            if self.slots[slot] == Slot::Taken {
                self.slots[slot] = Slot::Free;
            }
        }
    }

    /// Splits a run into two that are freed separately.
    fn halve(&mut self, at: usize) {
        let (first, k) = self.runs[at];
        if k > 0 {
            self.runs[at] = (first, k - 1);
            self.runs.push((first + (1 << (k - 1)), k - 1));
        }
    }

    fn mark_bad(&mut self, at: usize, random: &mut Rng) {
        let (first, k) = self.runs[at];
        let exponent = random.usize(..k.min(2) + 1);
        let start = first + random.usize(..1 << (k - exponent)) * (1 << exponent);
        self.real.mark_bad(SlotId::from_index(start), order(exponent));
        self.slots[start..start + (1 << exponent)].fill(Slot::Bad);
    }

    /// Isolates runs of a cluster; from then on they are freed like any other.
    fn isolate(&mut self, cluster: usize, enough: usize) -> usize {
        let slots = cluster * self.cluster_slots..((cluster + 1) * self.cluster_slots).min(self.slots.len());
        let nr_taken = self.slots[slots.clone()].iter().filter(|&&slot| slot != Slot::Free).count();
        let id = ClusterId::from_index(cluster);
        let in_parts = self.real.nr_taken_in_parts(id);
        assert!(in_parts.is_none_or(|nr| nr == nr_taken && nr > 0 && slots.len() == self.cluster_slots));
        let mut found = Vec::new();
        let nr_scanned = self.real.isolate_in(id, enough, &mut |slot, order| found.push((slot.index(), order)));
        let nr_found: usize = found.iter().map(|(_, order)| order.nr_pages()).sum();
        assert!(found.is_empty() || !self.removing && nr_taken > 0, "what is whole, or leaves, stays as it is");
        assert!(nr_scanned <= slots.len() && nr_found <= nr_scanned);
        assert!(in_parts.is_none() || self.removing || nr_found >= enough.min(slots.len() - nr_taken));
        for &(first, order) in &found {
            assert!(slots.contains(&first) && first.is_multiple_of(order.nr_pages()));
            for slot in first..first + order.nr_pages() {
                assert_eq!(self.slots[slot], Slot::Free, "slot {slot}");
                self.slots[slot] = Slot::Taken;
            }
            self.runs.push((first, usize::from(order.exponent())));
        }
        found.len()
    }

    fn take_discards(&mut self, max: usize) {
        for cluster in self.real.take_discards(max) {
            let slots = self.real.slots_of(cluster);
            let mut slots = slots.start.index()..slots.end.index();
            assert!(slots.all(|slot| self.slots[slot] == Slot::Free), "a cluster to be discarded is empty");
            assert!(self.discarding.insert(cluster), "{cluster:?} is discarded already");
        }
    }

    fn discarded(&mut self) {
        if let Some(cluster) = self.discarding.pop_first() {
            self.real.discarded(cluster);
        }
    }

    fn toggle_removal(&mut self) {
        self.removing = !self.removing;
        if self.removing { self.real.begin_removal() } else { self.real.cancel_removal() }
    }

    fn verify(&self) {
        self.real.verify();
        let nr_used = self.slots.iter().filter(|&&slot| slot != Slot::Free).count();
        assert_eq!((self.real.nr_used(), self.real.nr_slots()), (nr_used, self.slots.len()));
        let is_free = |cluster: &&[Slot]| cluster.iter().all(|&slot| slot == Slot::Free);
        let nr_free = self.slots.chunks(self.cluster_slots).filter(is_free).count();
        let nr_whole = self.real.nr_whole_free() + self.discarding.len();
        assert!(self.rotational || nr_whole <= nr_free, "{nr_whole} are whole, and {nr_free} free");
    }
}

/// Random calls whose share of allocations varies, so that the device gets empty and full again and again.
fn wander(seed: u64, mut pair: Pair, max_slots: usize, max_order: usize, nr_calls: usize) {
    let _seed = Seed(seed);
    let mut random = seeded::rng(seed);
    // Some seeds use small orders only, others all orders.
    let nr_orders = 1 + random.usize(..max_order + 1);
    pair.grow(1 + random.usize(..max_slots));
    let mut allocations = 70;
    for call in 0..nr_calls {
        if call % 300 == 299 {
            allocations = [20, 50, 80, 95][random.usize(..4)];
            pair.verify();
        }
        let some = random.usize(..pair.runs.len().max(1));
        match random.usize(..100) {
            0 => pair.take_discards(1 + random.usize(..3)),
            1 => pair.discarded(),
            2 if random.usize(..10) == 0 => pair.grow((pair.slots.len() + random.usize(..700)).min(max_slots)),
            3 if pair.removing || random.usize(..5) == 0 => pair.toggle_removal(),
            4 if random.usize(..10) == 0 && !pair.runs.is_empty() => pair.mark_bad(some, &mut random),
            5..15 if !pair.runs.is_empty() => pair.halve(some),
            15 => {
                let (cluster, enough) =
                    (random.usize(..pair.slots.len().div_ceil(pair.cluster_slots)), random.usize(..200));
                pair.isolate(cluster, enough);
            }
            dice if dice < allocations => {
                pair.allocate(random.usize(..4) as u32, random.usize(..nr_orders));
            }
            _ if !pair.runs.is_empty() => pair.free(some),
            _ => {}
        }
    }
    pair.verify();
    while !pair.runs.is_empty() {
        pair.free(0);
    }
    pair.verify();
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    // To run one seed: SEED=17 cargo test --test swap.
    let one = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    one.map_or(0..count, |seed: u64| seed..seed + 1)
}

#[test]
fn clusters_are_a_map_of_slots() {
    for seed in seeds(200) {
        let real = Clusters::new(5000, 3, seed % 2 == 0);
        wander(seed, Pair::new(real, 512, false), 5000, 9, 3000);
    }
}

#[test]
fn small_clusters_are_a_map_of_slots() {
    for seed in seeds(400) {
        let real = Clusters::with_cluster_order(200, 2, seed % 2 == 0, order(3));
        wander(seed, Pair::new(real, 8, false), 200, 4, 2000);
    }
}

#[test]
fn a_rotational_device_is_a_map_of_slots() {
    for seed in seeds(50) {
        wander(seed, Pair::new(Clusters::rotational(2000), 512, true), 2000, 1, 3000);
    }
}

#[derive(Copy, Clone, Debug)]
enum Call {
    Allocate(u32, usize),
    FreeOldest,
    FreeNewest,
    FreeHalf,
    TakeDiscard,
    Discarded,
    ToggleRemoval,
    Isolate(usize),
}

const CALLS: [Call; 15] = [
    Call::Allocate(0, 0),
    Call::Allocate(0, 1),
    Call::Allocate(0, 2),
    Call::Allocate(0, 3),
    Call::Allocate(1, 0),
    Call::Allocate(1, 1),
    Call::Allocate(1, 2),
    Call::Allocate(1, 3),
    Call::FreeOldest,
    Call::FreeNewest,
    Call::FreeHalf,
    Call::TakeDiscard,
    Call::Discarded,
    Call::ToggleRemoval,
    Call::Isolate(0),
];

/// Returns false if the call is not applicable here, so that the sequence is not pursued.
fn make(pair: &mut Pair, call: Call) -> bool {
    let nr_runs = pair.runs.len();
    match call {
        Call::Allocate(cpu, k) => {
            pair.allocate(cpu, k);
        }
        Call::FreeOldest if nr_runs > 1 => pair.free(0),
        Call::FreeNewest if nr_runs > 0 => pair.free(nr_runs - 1),
        Call::FreeHalf if nr_runs > 0 && pair.runs[nr_runs - 1].1 > 0 => {
            pair.halve(nr_runs - 1);
            pair.free(nr_runs);
        }
        Call::TakeDiscard => {
            let before = pair.discarding.len();
            pair.take_discards(1);
            return pair.discarding.len() > before;
        }
        Call::Discarded if !pair.discarding.is_empty() => pair.discarded(),
        Call::ToggleRemoval => pair.toggle_removal(),
        Call::Isolate(cluster) => return pair.isolate(cluster, 3) > 0,
        _ => return false,
    }
    true
}

/// Every sequence of `depth` calls after those of `start`, on two clusters of 8 slots and two CPUs.
fn exhaust(start: &[Call], depth: u32) {
    let replay = |blame: &Blame<Vec<Call>>| {
        let real = Clusters::with_cluster_order(16, 2, true, order(3));
        let mut pair = Pair::new(real, 8, false);
        pair.grow(16);
        let meant = blame.0.iter().all(|&call| make(&mut pair, call));
        pair.verify();
        meant
    };
    fn deeper(blame: &mut Blame<Vec<Call>>, depth: u32, replay: &dyn Fn(&Blame<Vec<Call>>) -> bool) {
        if depth == 0 {
            return;
        }
        for call in CALLS {
            blame.0.push(call);
            if replay(blame) {
                deeper(blame, depth - 1, replay);
            }
            blame.0.pop();
        }
    }
    let mut blame = Blame(start.to_vec());
    assert!(replay(&blame), "the start has a meaning");
    deeper(&mut blame, depth, &replay);
}

#[test]
fn every_short_sequence_on_an_empty_device() {
    exhaust(&[], 5);
}

#[test]
fn every_short_sequence_on_a_nearly_full_device() {
    use Call::Allocate;
    exhaust(&[Allocate(0, 2), Allocate(1, 1), Allocate(1, 1), Allocate(1, 1), Allocate(0, 0)], 5);
    exhaust(&[Allocate(0, 3), Call::FreeHalf, Allocate(1, 1), Allocate(1, 1), Allocate(1, 0), Allocate(0, 0)], 5);
}

#[test]
fn neighbours_of_one_cpu_lie_together_and_cpus_apart() {
    let clusters = Clusters::new(1 << 16, 2, false);
    clusters.grow(1 << 16);
    for k in 0..=9 {
        let mut last = [None; 2];
        for _ in 0..(512 >> k) {
            for cpu in 0..2 {
                let slot = clusters.allocate(CpuId::new(cpu), order(k)).unwrap().index();
                assert!(last[cpu as usize].is_none_or(|last| slot == last + (1 << k)), "order {k}");
                last[cpu as usize] = Some(slot);
            }
        }
    }
    clusters.verify();
}

#[test]
fn a_full_device_gives_its_last_slots_to_order_0() {
    let clusters = Clusters::new(4 * 512 + 100, 4, true);
    clusters.grow(4 * 512 + 100);
    // Each CPU holds a cluster of another order, so most slots are reserved.
    for cpu in 0..4 {
        clusters.allocate(CpuId::new(cpu), order(cpu as usize + 1)).unwrap();
    }
    let nr_left = clusters.nr_slots() - clusters.nr_used();
    let got: BTreeSet<_> = (0..nr_left).map(|_| clusters.allocate(CpuId::new(7), Order::PAGE).unwrap()).collect();
    assert_eq!((got.len(), clusters.nr_used()), (nr_left, clusters.nr_slots()));
    clusters.verify();
    for cpu in 0..4 {
        assert_eq!(clusters.allocate(CpuId::new(cpu), Order::PAGE), None);
        assert_eq!(clusters.allocate(CpuId::new(cpu), order(cpu as usize + 1)), None);
    }
    for slot in got {
        clusters.free(slot, Order::PAGE);
    }
    clusters.verify();
}

#[test]
fn an_aligned_hole_is_found_again() {
    let clusters = Clusters::new(512 * 8, 1, false);
    clusters.grow(512 * 8);
    let cpu = CpuId::new(0);
    let runs: Vec<_> = std::iter::from_fn(|| clusters.allocate(cpu, order(4))).collect();
    assert_eq!(runs.len(), 256);
    clusters.free(SlotId::from_index(77 * 16), order(3));
    assert_eq!(clusters.allocate(cpu, order(4)), None);
    clusters.free(SlotId::from_index(77 * 16 + 8), order(3));
    assert_eq!(clusters.allocate(cpu, order(4)), Some(SlotId::new(77 * 16)));
    clusters.verify();
}

#[test]
fn what_awaits_its_discard_is_used_last() {
    let clusters = Clusters::new(512 * 3, 1, true);
    clusters.grow(512 * 3);
    let huge = || clusters.allocate(CpuId::new(0), Order::HUGE).map(SlotId::get);
    assert_eq!((huge(), huge()), (Some(0), Some(512)));
    clusters.free(SlotId::new(0), order(8));
    clusters.free(SlotId::new(256), order(8));
    assert_eq!((huge(), clusters.nr_awaiting()), (Some(1024), 1));
    clusters.free(SlotId::new(512), Order::HUGE);
    assert_eq!(clusters.take_discards(1), [ClusterId::new(0)]);
    assert_eq!((huge(), huge()), (Some(512), None));
    assert!(clusters.take_discards(9).is_empty());
    clusters.discarded(ClusterId::new(0));
    assert_eq!((huge(), huge()), (Some(0), None));
    clusters.verify();
}

#[test]
fn memory_stays_within_its_budget() {
    let clusters = Clusters::new(1 << 24, 64, true);
    let empty = clusters.bytes();
    clusters.grow(1 << 20);
    assert!(clusters.bytes() - empty <= (1 << 20) * 2 + (1 << 20) / 512 * 64);
    assert!(empty < 128 << 10, "{empty}");
}

#[test]
fn a_rotational_device_goes_round() {
    let clusters = Clusters::rotational(1000);
    assert!(clusters.serves(Order::PAGE) && !clusters.serves(order(1)));
    clusters.grow(1000);
    let next = || clusters.allocate(CpuId::new(5), Order::PAGE).map(SlotId::index);
    assert!((0..600).all(|slot| next() == Some(slot)));
    clusters.free(SlotId::new(3), Order::PAGE);
    assert_eq!(clusters.allocate(CpuId::new(0), order(1)), None);
    assert!((600..1000).all(|slot| next() == Some(slot)));
    assert_eq!((next(), next()), (Some(3), None));
    clusters.verify();
}

fn small() -> Clusters {
    let clusters = Clusters::new(1024, 1, false);
    clusters.grow(600);
    clusters.allocate(CpuId::new(0), order(2)).unwrap();
    clusters
}

#[test]
#[should_panic(expected = "not taken")]
fn freeing_what_is_free_is_refused() {
    small().free(SlotId::new(0), order(3));
}

#[test]
#[should_panic(expected = "not taken")]
fn a_free_slot_cannot_be_marked_bad() {
    small().mark_bad(SlotId::new(4), order(0));
}

#[test]
#[should_panic(expected = "not aligned")]
fn a_run_starts_at_a_multiple_of_its_size() {
    small().free(SlotId::new(1), order(1));
}

#[test]
#[should_panic(expected = "is no run")]
fn a_run_lies_within_the_device() {
    small().free(SlotId::new(600), order(0));
}

#[test]
#[should_panic(expected = "was not taken to be discarded")]
fn what_was_not_taken_is_not_discarded() {
    small().discarded(ClusterId::new(1));
}

#[test]
fn threads_never_share_a_slot_and_removal_stops_them() {
    let clusters = Clusters::new(4096, 3, true);
    clusters.grow(2048);
    let taken: Vec<_> = (0..4096).map(|_| AtomicBool::new(false)).collect();
    let mark = |slot: SlotId, k: usize, now: bool| {
        for slot in &taken[slot.index()..slot.index() + (1 << k)] {
            assert_ne!(slot.swap(now, Ordering::Relaxed), now, "a slot is two threads'");
        }
    };
    let work = |seed: u32| {
        let (mut random, mut runs) = (seeded::rng(u64::from(seed)), Vec::new());
        for call in 0..20_000 {
            let k = [0, 0, 0, 1, 4, 9][random.usize(..6)];
            if random.usize(..1000) < 500 {
                if let Some(slot) = clusters.allocate(CpuId::new(seed), order(k)) {
                    mark(slot, k, true);
                    runs.push((slot, k));
                }
            } else if !runs.is_empty() {
                let (slot, k) = runs.swap_remove(random.usize(..runs.len()));
                mark(slot, k, false);
                clusters.free(slot, order(k));
            }
            if call % 64 == 0 {
                clusters.take_discards(2).into_iter().for_each(|cluster| clusters.discarded(cluster));
            }
        }
        runs
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || work(seed))).collect();
        clusters.grow(4096);
        for _ in 0..20 {
            clusters.verify();
            clusters.begin_removal();
            let nr_used = clusters.nr_used();
            assert_eq!(clusters.allocate(CpuId::new(0), Order::PAGE), None);
            assert!(clusters.nr_used() <= nr_used, "slots were handed out during removal");
            clusters.cancel_removal();
        }
        for (slot, k) in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
            mark(slot, k, false);
            clusters.free(slot, order(k));
        }
    });
    assert_eq!(clusters.nr_used(), 0);
    clusters.verify();
}
