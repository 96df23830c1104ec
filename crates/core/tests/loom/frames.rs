//! Frames: the zone, its CPU lists, and compaction concurrent with faults and drops.

use folioswap_core::{BlockId, CpuId, FolioId, FolioTable, FrameId, List, Memory, Order, PIECE, Size, State, Zone};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use crate::{BLOCK, HALF, OTHER, PAGEBLOCK, beside, check, check_within};

/// A zone all of whose pageblocks may be in use.
fn zone(nr_pageblocks: usize) -> Zone {
    let zone = Zone::new(0..nr_pageblocks, 0, 1);
    zone.set_limit(nr_pageblocks * PAGEBLOCK);
    zone
}

/// Takes frames of this order as the engine does.
fn take(zone: &Zone, order: Order) -> Option<FrameId> {
    let taken = zone.take(order, 0)?;
    Some(if taken.order == order { taken.frame } else { zone.carve(taken.frame, order) })
}

struct Frames {
    zone: Zone,
    /// How many threads hold each half of the first and of the second pageblock.
    holders: [AtomicUsize; 4],
}

impl Frames {
    fn new(nr_pageblocks: usize) -> Arc<Frames> {
        Arc::new(Frames { zone: zone(nr_pageblocks), holders: std::array::from_fn(|_| AtomicUsize::new(0)) })
    }

    /// Takes frames, holds them for a while and gives them back. Returns whether there were any.
    fn use_one(&self, order: Order) -> bool {
        let Some(frame) = take(&self.zone, order) else { return false };
        let first = frame.index() / HALF.nr_pages();
        let halves = first..first + order.nr_pages().div_ceil(HALF.nr_pages());
        for half in halves.clone() {
            assert_eq!(self.holders[half].fetch_add(1, Ordering::Relaxed), 0, "one frame for two threads");
        }
        self.zone.set_owner(frame, FolioId::new(0));
        self.zone.insert(frame, List::Clean);
        for half in halves {
            self.holders[half].fetch_sub(1, Ordering::Relaxed);
        }
        self.zone.give(frame);
        true
    }

    fn check_unused(&self) {
        let counts = self.zone.counts();
        assert_eq!((counts.in_use, counts.lists.clean, counts.free), (0, 0, counts.limit));
        self.zone.verify();
    }
}

#[test]
fn a_pageblock_is_taken_by_one_thread_only() {
    check(|| {
        let frames = Frames::new(2);
        let others = [(); 2].map(|()| beside(&frames, |frames| frames.use_one(Order::HUGE)));
        let mine = frames.use_one(Order::HUGE);
        assert!(others.into_iter().fold(mine, |got, other| got | other.join().unwrap()), "the first has its choice");
        frames.check_unused();
    });
}

#[test]
fn a_pageblock_is_carved_by_one_thread_while_others_take_parts_of_it_or_none() {
    check(|| {
        let frames = Frames::new(1);
        let other = beside(&frames, |frames| frames.use_one(HALF));
        let mine = frames.use_one(HALF);
        assert!(mine | other.join().unwrap(), "one of them came first");
        assert!(frames.use_one(HALF));
        frames.check_unused();
    });
}

#[test]
fn whole_pageblocks_and_parts_of_them_do_not_overlap() {
    check(|| {
        let frames = Frames::new(2);
        let others = [Order::HUGE, HALF].map(|order| beside(&frames, move |frames| frames.use_one(order)));
        let mine = frames.use_one(HALF);
        assert!(others.into_iter().fold(mine, |got, other| got | other.join().unwrap()));
        frames.check_unused();
    });
}

#[test]
fn what_is_beyond_the_limit_leaves_once() {
    check_within(3, || {
        let zone = Arc::new(zone(2));
        let held = [(); 2].map(|()| zone.take(Order::HUGE, 0).unwrap().frame);
        held.into_iter().for_each(|frame| zone.give(frame));
        zone.set_limit(PAGEBLOCK);
        let leave = |zone: &Zone| {
            let frame = zone.pageblocks().take_surplus();
            frame.into_iter().for_each(|frame| zone.pageblocks().give_unpopulated(frame));
            frame
        };
        let others = [(); 2].map(|()| beside(&zone, leave));
        let taken = zone.take(Order::HUGE, 0).expect("one of them may be in use");
        let left = others.map(|other| other.join().unwrap());
        assert_eq!(left.iter().flatten().count(), 1, "{left:?}");
        assert!(taken.memory == Memory::Huge && !left.contains(&Some(taken.frame)));
        assert_eq!((zone.counts().populated, zone.counts().surplus), (PAGEBLOCK, 0));
        zone.verify();
    });
}

#[test]
fn what_is_isolated_is_nobody_elses() {
    check_within(3, || {
        let frames = Frames::new(1);
        let folio = take(&frames.zone, HALF).unwrap();
        frames.zone.set_owner(folio, FolioId::new(7));
        let other = beside(&frames, |frames| frames.use_one(HALF));
        let mut isolated = None;
        frames.zone.pageblocks().isolate_in(folio, 1, &mut |frame, order| isolated = Some((frame, order)));
        if let Some((to, order)) = isolated {
            assert_eq!((order, frames.holders[1].fetch_add(1, Ordering::Relaxed)), (HALF, 0), "one frame for two");
            frames.zone.occupy(to, folio);
            assert_eq!(frames.zone.owner(to), Some(FolioId::new(7)));
            frames.holders[1].fetch_sub(1, Ordering::Relaxed);
            frames.zone.give(folio);
            frames.zone.give(to);
        }
        let theirs = other.join().unwrap();
        assert!(theirs || isolated.is_some(), "one of them came first");
        if isolated.is_none() {
            frames.zone.give(folio);
        }
        frames.check_unused();
    });
}

#[test]
fn a_pageblock_that_was_emptied_is_taken_whole_or_in_parts_by_others() {
    check_within(3, || {
        let frames = Frames::new(1);
        let folio = take(&frames.zone, HALF).unwrap();
        let other = beside(&frames, |frames| frames.use_one(HALF));
        frames.zone.isolate_left(folio);
        let emptied = frames.zone.pageblocks().take_emptied(folio);
        match emptied {
            Some(taken) => {
                for half in 0..2 {
                    assert_eq!(frames.holders[half].fetch_add(1, Ordering::Relaxed), 0, "one frame for two");
                    frames.holders[half].fetch_sub(1, Ordering::Relaxed);
                }
                frames.zone.give(taken.frame);
            }
            // The other thread holds the half that was free.
            None => {
                let (run, order) = frames.zone.pageblocks().isolated_in(folio).unwrap();
                assert_eq!((run, order), (folio, HALF));
                frames.zone.put_back(run, order);
            }
        }
        other.join().unwrap();
        frames.check_unused();
    });
}

#[test]
fn reclaim_looks_at_a_folio_whose_frames_are_given_back() {
    check_within(4, || {
        let zone = Arc::new(zone(1));
        let [first, second] = [3, 4].map(|folio| {
            let frame = take(&zone, HALF).unwrap();
            zone.set_owner(frame, FolioId::new(folio));
            zone.insert(frame, List::Inactive);
            frame
        });
        let gives = beside(&zone, move |zone| {
            zone.give(first);
            zone.insert(second, List::Active);
        });
        if let Some(oldest) = zone.oldest(Size::Small, List::Inactive) {
            assert_eq!(oldest.folio.get() - 3, u64::from(oldest.frame == second), "a folio and another's frames");
            zone.rotate(oldest.frame, List::Inactive);
        }
        gives.join().unwrap();
        assert_eq!((zone.list(first), zone.list(second)), (None, Some(List::Active)));
        let counts = zone.counts();
        assert_eq!((counts.lists.active, counts.lists.inactive, counts.free), (256, 0, 256));
        zone.verify();
    });
}

/// Takes 64 KiB on a CPU as the engine does.
fn take_on(zone: &Zone, cpu: u32) -> Option<FrameId> {
    let taken = zone.take_on(CpuId::new(cpu), PIECE)?;
    Some(if taken.order == PIECE { taken.frame } else { zone.carve(taken.frame, PIECE) })
}

/// One pageblock, and two CPUs that may list many of its frames.
fn zone_by_cpu() -> Zone {
    let zone = Zone::new(0..1, 2, 1);
    zone.set_limit(PAGEBLOCK);
    zone
}

/// A divided pageblock whose frames CPUs list, and how many threads hold each 64 KiB of it.
struct ByCpu {
    zone: Zone,
    holders: Vec<AtomicUsize>,
}

impl ByCpu {
    /// Takes frames and gives them back, with or without an owner.
    fn use_one(&self, cpu: u32, owner: Option<FolioId>) {
        let frame = take_on(&self.zone, cpu).expect("there are enough for all");
        let holders = &self.holders[frame.index() / PIECE.nr_pages()];
        assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "one frame for two threads");
        if let Some(folio) = owner {
            self.zone.insert_for(folio, frame, List::Active);
        }
        holders.fetch_sub(1, Ordering::Relaxed);
        self.zone.give_on(CpuId::new(cpu), frame);
    }
}

#[test]
fn what_a_cpu_keeps_is_one_threads_or_the_zones() {
    check_within(4, || {
        let world = ByCpu {
            zone: zone_by_cpu(),
            holders: (0..PAGEBLOCK / PIECE.nr_pages()).map(|_| AtomicUsize::new(0)).collect(),
        };
        let first = take_on(&world.zone, 0).unwrap();
        let world = Arc::new(world);
        // Two threads on one CPU, as after a migration, and one that wants all lists empty.
        let others = [Some(FolioId::new(512)), None].map(|owner| beside(&world, move |world| world.use_one(0, owner)));
        let paused = world.zone.pause_cpus();
        assert!(world.zone.listed_on(CpuId::new(0), PIECE).is_empty(), "nothing is kept during a pause");
        drop(paused);
        others.into_iter().for_each(|other| other.join().unwrap());
        world.zone.verify();
        world.zone.give_on(CpuId::new(1), first);
        assert_eq!((world.zone.counts().in_use, world.zone.counts().free), (0, PAGEBLOCK));
        world.zone.verify();
        assert!(world.zone.take(Order::HUGE, 0).is_some(), "who takes all has what CPUs keep too");
        world.zone.verify();
    });
}

/// Small folios in a zone: what faults, compaction and drops do in the engine, without the content.
struct Ram {
    table: FolioTable,
    zone: Zone,
}

impl Ram {
    /// The first folio of each block is in RAM: unmapped in the one, mapped in the other.
    fn new() -> Arc<Ram> {
        let ram = Ram { table: FolioTable::new(2), zone: zone_by_cpu() };
        ram.table.ensure(BLOCK..BlockId::new(2));
        for (block, mapped) in [(BLOCK, false), (OTHER, true)] {
            let mut locked = ram.table.lock(block);
            locked.split(PIECE);
            let frame = take_on(&ram.zone, 0).unwrap();
            locked.folio_mut(0).set_in_ram(frame, mapped);
            ram.zone.insert_for(locked.name(0), frame, if mapped { List::Active } else { List::Clean });
        }
        Arc::new(ram)
    }

    /// A touch of the first folio of a block; it is mapped afterwards.
    fn fault(&self, block: BlockId) {
        let mut locked = self.table.lock(block);
        let frame = match locked.state(0) {
            State::Resident(_) => return,
            State::Standby(frame) => frame,
            State::Empty | State::Swapped(_) => take_on(&self.zone, 0).expect("there are enough for all"),
        };
        locked.folio_mut(0).set_in_ram(frame, true);
        self.zone.insert_for(locked.name(0), frame, List::Active);
    }

    fn drop_folio(&self, block: BlockId) {
        let mut locked = self.table.lock(block);
        if let Some(frame) = locked.folio(0).frame() {
            self.zone.give_on(CpuId::new(1), frame);
        }
        locked.folio_mut(0).set_empty();
    }

    /// Moves the first folio that it finds. Returns whether it has moved.
    fn compact(&self) -> bool {
        let _paused = self.zone.pause_cpus();
        let mut found = None;
        self.zone
            .pageblocks()
            .folios_in(FrameId::new(0), &mut |frame, folio, _| found = found.or(Some((frame, folio))));
        let Some((from, folio)) = found else { return false };
        let Some((run, order)) = self.zone.pageblocks().isolate_listed(PIECE, HALF, FrameId::new(0)) else {
            return false;
        };
        // The last part of the run, so that the run is halved until that part is a run of its own.
        let to = run.plus(order.nr_pages() - PIECE.nr_pages());
        let moved = self.rehome(folio, from, to);
        if !moved {
            self.zone.put_back(to, PIECE);
        }
        for at in (0..order.nr_pages() - PIECE.nr_pages()).step_by(PIECE.nr_pages()) {
            self.zone.put_back(run.plus(at), PIECE);
        }
        moved
    }

    fn rehome(&self, folio: FolioId, from: FrameId, to: FrameId) -> bool {
        let Some(mut locked) = self.table.try_lock(folio.block()) else { return false };
        let index = locked.index_of(folio.page_in_block());
        let mapped = match locked.state(index) {
            State::Resident(frame) if frame == from => true,
            State::Standby(frame) if frame == from => false,
            _ => return false,
        };
        locked.folio_mut(index).set_in_ram(to, mapped);
        self.zone.occupy(to, from);
        self.zone.give(from);
        true
    }

    /// Every folio has frames of its own; all other frames are free.
    fn check(&self) -> usize {
        self.zone.verify();
        let mut homes = Vec::new();
        for block in [BLOCK, OTHER] {
            let locked = self.table.lock(block);
            let Some(frame) = locked.folio(0).frame() else { continue };
            let (owner, order, list) = (self.zone.owner(frame), self.zone.order(frame), self.zone.list(frame));
            assert_eq!((owner, order), (Some(locked.name(0)), Some(PIECE)), "the frames of {block:?}");
            let mapped = matches!(locked.state(0), State::Resident(_));
            assert_eq!(list, Some(if mapped { List::Active } else { List::Clean }));
            homes.push(frame);
        }
        assert!(homes.len() < 2 || homes[0] != homes[1], "one frame for two folios");
        let counts = self.zone.counts();
        let in_use = homes.len() * PIECE.nr_pages();
        assert_eq!((counts.in_use, counts.isolated, counts.free), (in_use, 0, PAGEBLOCK - in_use));
        homes.len()
    }
}

#[test]
fn a_fault_compaction_and_a_drop_of_one_folio_at_once() {
    check_within(4, || {
        let ram = Ram::new();
        let faults = beside(&ram, |ram| ram.fault(BLOCK));
        let drops = beside(&ram, |ram| ram.drop_folio(BLOCK));
        ram.compact();
        faults.join().unwrap();
        drops.join().unwrap();
        assert!(ram.check() >= 1, "the other folio is where it was");
        ram.fault(BLOCK);
        assert_eq!(ram.check(), 2);
    });
}

#[test]
fn compaction_while_one_folio_comes_and_another_goes() {
    check_within(4, || {
        let ram = Ram::new();
        ram.drop_folio(BLOCK);
        let faults = beside(&ram, |ram| ram.fault(BLOCK));
        let drops = beside(&ram, |ram| ram.drop_folio(OTHER));
        ram.compact();
        faults.join().unwrap();
        drops.join().unwrap();
        assert_eq!(ram.check(), 1);
    });
}
