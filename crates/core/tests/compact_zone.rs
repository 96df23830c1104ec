//! Compaction of a real zone, with a mover that models the content of frames: nothing is lost, the zone's own check
//! passes throughout, and the cost of a whole pageblock in copied frames is bounded. A failure prints its seed.
#![cfg(not(loom))]

mod seeded;
mod simulated;

use fastrand::Rng;
use folioswap_core::compact::{CompactCounters, Compaction, Migrated, Mode, Mover, Outcome, Request, Stage, ZoneSpace};
use folioswap_core::frame::{List, Zone};
use folioswap_core::{CpuId, FolioId, FrameId, Order};
use seeded::Seed;
use simulated::{one_in, order};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

const BLOCK: usize = 512;

/// Where each folio is, its order, and its content: for each page, the folio's number plus the page's index.
struct World {
    zone: Zone,
    contents: RefCell<Vec<u64>>,
    folios: RefCell<BTreeMap<u64, (FrameId, Order)>>,
    random: RefCell<Rng>,
    next_folio: Cell<u64>,
    /// Whether folios that move leave frames without memory, and which frames have memory.
    exchanges: Cell<bool>,
    has_memory: RefCell<Vec<bool>>,
    nr_made_whole: Cell<usize>,
    /// A folio is busy, a folio is gone, other threads interfere: each one time in this many, never when 0.
    trouble: [usize; 3],
    /// Whether other threads take frames; they always give some back.
    others_take: Cell<bool>,
}

impl World {
    fn new(nr_blocks: usize, seed: u64, trouble: [usize; 3]) -> World {
        // The lists of two CPUs hold up to an eighth of a small zone.
        let before = seed as usize % 3; // pageblocks of other zones
        let zone = Zone::new(before..before + nr_blocks, 2, 8);
        zone.set_limit(nr_blocks * BLOCK);
        let nr_blocks = before + nr_blocks;
        World {
            zone,
            contents: RefCell::new(vec![u64::MAX; nr_blocks * BLOCK]),
            folios: RefCell::default(),
            random: RefCell::new(seeded::rng(seed)),
            next_folio: Cell::new(0),
            exchanges: Cell::new(seed % 2 == 1),
            has_memory: RefCell::new(vec![true; nr_blocks * BLOCK]),
            nr_made_whole: Cell::new(0),
            trouble,
            others_take: Cell::new(true),
        }
    }

    fn below(&self, bound: usize) -> usize {
        self.random.borrow_mut().usize(..bound)
    }

    fn cpu(&self) -> CpuId {
        CpuId::from_index(self.below(2))
    }

    /// Takes frames as the engine does, and fills them.
    fn take(&self, order: Order) -> bool {
        let Some(taken) = self.zone.take_on(self.cpu(), order) else { return false };
        let frame = if taken.order == order { taken.frame } else { self.zone.carve(taken.frame, order) };
        assert!(self.all_have_memory(frame, order), "frames that were taken");
        let folio = self.next_folio.get();
        self.next_folio.set(folio + 512);
        self.zone.set_owner(frame, FolioId::new(folio));
        self.zone.insert(frame, [List::Active, List::Clean][self.below(2)]);
        for (at, page) in (frame.index()..frame.index() + order.nr_pages()).zip(folio..) {
            self.contents.borrow_mut()[at] = page;
        }
        self.folios.borrow_mut().insert(folio, (frame, order));
        true
    }

    fn give(&self, folio: u64) {
        let (frame, order) = self.folios.borrow_mut().remove(&folio).unwrap();
        self.contents.borrow_mut()[frame.index()..][..order.nr_pages()].fill(u64::MAX);
        self.zone.give_on(self.cpu(), frame);
    }

    fn any_folio(&self) -> Option<u64> {
        let nr = self.folios.borrow().len();
        let at = self.below(nr.max(1));
        self.folios.borrow().keys().nth(at).copied()
    }

    fn goes_wrong(&self, which: usize) -> bool {
        one_in(&mut self.random.borrow_mut(), self.trouble[which])
    }

    fn meddle(&self) {
        if self.goes_wrong(2) {
            match self.any_folio().filter(|_| self.below(2) == 0) {
                Some(folio) => self.give(folio),
                None if self.others_take.get() => _ = self.take(order(self.below(5))),
                None => {}
            }
        }
    }

    /// Fills the zone with small folios of these orders, then drops each with a chance of one half.
    fn scatter(&self, orders: &[usize]) {
        while self.take(order(orders[self.below(orders.len())])) {}
        let folios: Vec<_> = self.folios.borrow().keys().copied().collect();
        for folio in folios {
            if self.below(2) == 0 {
                self.give(folio);
            }
        }
    }

    fn all_have_memory(&self, frame: FrameId, order: Order) -> bool {
        self.has_memory.borrow()[frame.index()..][..order.nr_pages()].iter().all(|&has_memory| has_memory)
    }

    fn set_memory(&self, frame: FrameId, order: Order, has_memory: bool) {
        self.has_memory.borrow_mut()[frame.index()..][..order.nr_pages()].fill(has_memory);
    }

    fn verify(&self) {
        self.zone.verify();
        let mut nr_taken = 0;
        for (&folio, &(frame, order)) in &*self.folios.borrow() {
            assert_eq!((self.zone.owner(frame), self.zone.order(frame)), (Some(FolioId::new(folio)), Some(order)));
            assert!(self.zone.list(frame).is_some(), "folio {folio} is on its list");
            nr_taken += order.nr_pages();
            let contents = &self.contents.borrow()[frame.index()..][..order.nr_pages()];
            assert!(contents.iter().copied().eq(folio..folio + order.nr_pages() as u64), "the content of {folio}");
        }
        let counts = self.zone.counts();
        assert_eq!(counts.in_use, nr_taken);
        assert!(counts.in_use + counts.isolated <= counts.limit && counts.free <= counts.limit - counts.in_use);
    }

    fn is_at(&self, folio: FolioId, from: FrameId, order: Order) -> bool {
        self.folios.borrow().get(&folio.get()) == Some(&(from, order))
    }
}

impl Mover for World {
    fn prepare(&self, places: &mut dyn Iterator<Item = (FrameId, Order)>) {
        if self.exchanges.get() {
            places.for_each(|(frame, order)| self.set_memory(frame, order, false));
        }
    }

    fn forgo(&self, place: FrameId, order: Order) {
        assert_eq!(self.all_have_memory(place, order), !self.exchanges.get());
        self.set_memory(place, order, true);
    }

    fn finish(&self, block: FrameId) {
        self.meddle();
        if let Some(taken) = self.zone.pageblocks().take_emptied(block) {
            self.set_memory(taken.frame, Order::HUGE, true);
            self.zone.verify();
            self.zone.give(taken.frame);
            self.nr_made_whole.set(self.nr_made_whole.get() + 1);
        }
        while let Some((frame, order)) = self.zone.pageblocks().isolated_in(block) {
            self.set_memory(frame, order, true);
            self.zone.put_back(frame, order);
        }
    }

    fn migrate(&self, folio: FolioId, from: FrameId, order: Order, to: FrameId, _mode: Mode) -> Migrated {
        self.meddle();
        if self.is_at(folio, from, order) && self.goes_wrong(1) {
            self.give(folio.get());
        }
        if !self.is_at(folio, from, order) {
            return Migrated::Gone;
        }
        if self.goes_wrong(0) {
            return Migrated::Busy;
        }
        let list = self.zone.list(from);
        self.contents.borrow_mut().copy_within(from.index()..from.index() + order.nr_pages(), to.index());
        self.zone.occupy(to, from);
        self.contents.borrow_mut()[from.index()..][..order.nr_pages()].fill(u64::MAX);
        assert_eq!((self.zone.list(from), self.zone.owner(from), self.zone.list(to)), (None, None, list));
        if self.exchanges.get() {
            assert!(
                !self.has_memory.borrow()[to.index()..][..order.nr_pages()].contains(&true),
                "the place is prepared"
            );
            self.set_memory(to, order, true);
            self.set_memory(from, order, false);
            self.zone.isolate_left(from);
        } else {
            self.zone.give(from);
        }
        self.folios.borrow_mut().insert(folio.get(), (to, order));
        Migrated::Moved
    }

    fn split(&self, folio: FolioId, from: FrameId, order: Order) -> bool {
        if !self.is_at(folio, from, order) {
            return false;
        }
        self.zone.split(from, Order::PAGE);
        for at in 0..order.nr_pages() {
            self.folios.borrow_mut().insert(folio.get() + at as u64, (from.plus(at), Order::PAGE));
        }
        true
    }
}

#[test]
fn no_frame_is_lost_and_none_is_there_twice() {
    let stages = [Stage::Split, Stage::Whole, Stage::WholeSplitting];
    let troubles = [[0, 0, 0], [5, 0, 0], [20, 20, 0], [20, 20, 4]];
    let (mut nr_moved, mut nr_failed, mut nr_made_whole) = (0, 0, 0);
    for seed in 0..150 {
        let _seed = Seed(seed);
        let world = World::new(2 + seed as usize % 5, seed, troubles[seed as usize % 4]);
        world.scatter(&[0, 2, 4, 6, 8]);
        if seed % 5 == 0 {
            // Hardly more may be in use than is.
            world.zone.set_limit(world.zone.counts().in_use.next_multiple_of(BLOCK));
        }
        // 1000 is more than there are.
        let space = ZoneSpace::new(&world.zone, &world, [1, 3, 1000][world.below(3)]);
        let mut compaction = Compaction::new(8, Order::HUGE);
        for _ in 0..6 {
            let wanted = [None, Some(Order::HUGE), Some(order(1 + world.below(8)))][world.below(3)];
            let mode = [Mode::Async, Mode::Sync][world.below(2)];
            let (patience, mut nr_asked) = (world.below(600), 0);
            let request = Request { wanted, mode, stage: stages[seed as usize % 3] };
            let report = compaction.run(&space, request, &mut || {
                nr_asked += 1;
                if nr_asked % 4 == 0 {
                    world.verify();
                }
                nr_asked > patience
            });
            assert_eq!(world.zone.counts().isolated, 0, "what was isolated is back");
            world.verify();
            nr_moved += report.counters.pgmigrate_success;
            nr_failed += report.counters.pgmigrate_fail;
        }
        assert!(!world.has_memory.borrow().contains(&false), "all frames have memory again");
        nr_made_whole += world.nr_made_whole.get();
    }
    assert!(nr_made_whole > 20, "too few pageblocks were emptied at once: {nr_made_whole}");
    assert!(nr_moved > 10_000 && nr_failed > 1000, "too little was tried: {nr_moved}, {nr_failed}");
}

/// Frames on CPU lists are in no free run, so compaction has to drain the lists, also of frames freed meanwhile.
#[test]
fn a_pageblock_becomes_whole_though_cpus_had_listed_some_of_its_frames() {
    for seed in 0..40 {
        let _seed = Seed(seed);
        let world = World::new(4, seed, [0, 0, 30]);
        world.others_take.set(false); // or they might take the frames for which compaction works
        while world.take(Order::PAGE) {}
        // Three of four frames of each pageblock are free, the last of them on CPU lists.
        let folios: Vec<_> = world.folios.borrow().iter().map(|(&folio, &(frame, _))| (folio, frame)).collect();
        for &(folio, _) in folios.iter().filter(|(_, frame)| frame.get() % 4 != seed as u32 % 4) {
            world.give(folio);
        }
        let listed = |world: &World| -> usize {
            let lists = [0, 1].map(CpuId::new).map(|cpu| world.zone.listed_on(cpu, Order::PAGE).len());
            lists.into_iter().sum()
        };
        assert!(listed(&world) > 0, "{:?}", world.zone);
        assert_eq!(world.zone.free_runs(Order::HUGE), 0);
        let mut compaction = Compaction::new(4, Order::HUGE);
        let request = Request { wanted: Some(Order::HUGE), mode: Mode::Sync, stage: Stage::WholeSplitting };
        let report = compaction.run(&ZoneSpace::new(&world.zone, &world, 2), request, &mut || {
            assert_eq!(listed(&world), 0);
            false
        });
        assert_eq!(report.outcome, Outcome::Free);
        world.verify();
        // Checked before anything drains the lists again.
        assert!(world.zone.free_runs(Order::HUGE) >= 2);
    }
}

/// The cost of making this many pageblocks whole.
struct Cost {
    nr_whole: usize,
    runs: Vec<CompactCounters>,
}

impl Cost {
    fn sum(&self, counter: fn(&CompactCounters) -> u64) -> u64 {
        self.runs.iter().map(counter).sum()
    }

    fn copied_per_whole(&self) -> f64 {
        self.sum(|n| n.pgmigrate_success) as f64 / self.nr_whole as f64
    }
}

/// 64 pageblocks full of small folios, each dropped with a chance of one half. Then whole folios are taken one after
/// another and stay. A folio is busy one time in `busy`.
fn cost(stage: Stage, orders: &[usize], busy: usize, nr_wanted: usize) -> Cost {
    let mut cost = Cost { nr_whole: 0, runs: Vec::new() };
    for seed in 0..4 {
        let _seed = Seed(seed);
        let world = World::new(64, seed, [busy, 0, 0]);
        world.scatter(orders);
        let mut compaction = Compaction::new(8, Order::HUGE);
        let request = Request { wanted: Some(Order::HUGE), mode: Mode::Async, stage };
        let mut whole = Vec::new();
        for _ in 0..nr_wanted {
            let report = compaction.run(&ZoneSpace::new(&world.zone, &world, 1), request, &mut || false);
            cost.runs.push(report.counters);
            whole.extend(world.zone.take(Order::HUGE, 0));
        }
        cost.nr_whole += whole.len();
        whole.into_iter().for_each(|taken| world.zone.give(taken.frame));
        world.verify();
    }
    cost
}

fn print_cost(what: &str, cost: &Cost) {
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    println!(
        "{what:<44} {:>4} whole, {:>4.0} copied for each; runs {:.3}, moves {:.4}, scan {:.3}",
        cost.nr_whole,
        cost.copied_per_whole(),
        share(cost.sum(|n| n.compact_success), cost.sum(|n| n.compact_stall)),
        share(cost.sum(|n| n.pgmigrate_success), cost.sum(|n| n.pgmigrate_success + n.pgmigrate_fail)),
        share(cost.sum(|n| n.compact_isolated), cost.sum(|n| n.compact_free_scanned + n.compact_migrate_scanned)),
    );
}

#[test]
fn what_a_whole_pageblock_costs() {
    const NR_WANTED: usize = 24;
    for orders in [&[0, 2, 4][..], &[0, 1, 2, 3, 4, 5, 6]] {
        let mut undisturbed = None;
        for busy in [0, 200, 50, 20] {
            let stages = [Stage::Split, Stage::Whole, Stage::WholeSplitting];
            let costs = stages.map(|stage| cost(stage, orders, busy, NR_WANTED));
            for (stage, cost) in stages.iter().zip(&costs) {
                print_cost(&format!("orders {orders:?}, busy 1/{busy}, {stage:?}"), cost);
            }
            let [split, whole, splitting] = &costs;
            // Half of the 64 pageblocks' frames are free, so 24 can become whole.
            assert_eq!(splitting.nr_whole, 4 * NR_WANTED);
            assert!(whole.nr_whole < splitting.nr_whole, "it ends although frames are free");
            let (ours, theirs) = (splitting.copied_per_whole(), split.copied_per_whole());
            assert!(ours <= theirs, "{ours} frames copied, {theirs} when every folio is split");
            // A briefly busy folio is retried, and does not waste a block that was nearly empty.
            assert!(ours <= 1.05 * *undisturbed.get_or_insert(ours), "{ours} with 1 of {busy} busy");
        }
    }
}
