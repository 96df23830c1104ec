//! The concurrent parts under a model checker, which tries every interleaving up to a bound of preemptions:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p folioswap-core --test loom`.
//!
//! Whoever waits for ever shows as a deadlock, which loom reports.
#![cfg(loom)]

use folioswap_core::{
    BlockId, ClusterId, Clusters, CpuId, DropBehind, FolioId, FolioTable, FrameId, Freed, List, Memory, Order, PIECE,
    Room, Size, SlotCache, SlotId, State, Streams, Zone,
};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

const BLOCK: BlockId = BlockId::new(0);
const OTHER: BlockId = BlockId::new(1);

const HALF: Order = Order::new(8).unwrap();
const PAIR: Order = Order::new(1).unwrap();

/// Frames of a pageblock.
const PAGEBLOCK: usize = Order::HUGE.nr_pages();

fn check(model: impl Fn() + Sync + Send + 'static) {
    check_within(2, model);
}

fn check_within(nr_preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(nr_preemptions);
    builder.check(model);
}

/// A part of the model on a thread of its own.
fn beside<W, R: 'static>(world: &Arc<W>, run: impl FnOnce(&W) -> R + 'static) -> thread::JoinHandle<R>
where
    W: 'static,
{
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}

struct World {
    table: FolioTable,
    /// Guarded by the lock of the block, so neither load nor store orders anything.
    guarded: AtomicUsize,
}

fn world() -> Arc<World> {
    let table = FolioTable::new(2);
    table.ensure(BLOCK..BlockId::new(2));
    Arc::new(World { table, guarded: AtomicUsize::new(0) })
}

impl World {
    /// Adds one to the guarded number in two steps, which only the lock makes one.
    fn count(&self) {
        let seen = self.guarded.load(Ordering::Relaxed);
        thread::yield_now();
        self.guarded.store(seen + 1, Ordering::Relaxed);
    }
}

#[test]
fn one_holder_at_a_time_and_nobody_sleeps_for_ever() {
    check(|| {
        let world = world();
        let hold = |world: &World| {
            let _locked = world.table.lock(BLOCK);
            world.count();
        };
        let others = [(); 2].map(|()| beside(&world, hold));
        hold(&world);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.guarded.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn two_threads_change_one_block_and_both_changes_stay() {
    check_within(4, || {
        let world = world();
        let splits = beside(&world, |world| {
            let mut locked = world.table.lock(BLOCK);
            let before = locked.state(0);
            locked.split(HALF);
            locked.folio_mut(1).set_in_ram(FrameId::new(256), true);
            before
        });
        let first = {
            let mut locked = world.table.lock(BLOCK);
            locked.folio_mut(0).set_slot(Some(SlotId::new(512)));
            locked.order()
        };
        let before = splits.join().unwrap();
        let locked = world.table.lock(BLOCK);
        // The slot of the folio that was whole is that of its first half; the second half has one if it came first.
        assert_eq!((locked.order(), locked.state(0)), (HALF, State::Swapped(SlotId::new(512))));
        assert_eq!(locked.state(1), State::Resident(FrameId::new(256)));
        assert_eq!(before != State::Empty, first == Order::HUGE, "each saw what came before it");
        assert_eq!(locked.folio(1).slot(), (first == Order::HUGE).then_some(SlotId::new(768)));
    });
}

#[test]
fn a_held_block_is_not_had_by_trying_and_its_neighbour_is() {
    check(|| {
        let world = world();
        let mut locked = world.table.lock(BLOCK);
        let tries = beside(&world, |world| {
            assert!(world.table.try_lock(BLOCK).is_none(), "somebody holds it");
            assert!(world.table.try_lock(OTHER).is_some(), "nobody holds it");
        });
        locked.pinned = true;
        tries.join().unwrap();
        drop(locked);
        assert!(world.table.try_lock(BLOCK).is_some_and(|locked| locked.pinned));
    });
}

#[test]
fn who_tries_in_vain_unlocks_nothing() {
    check(|| {
        let world = world();
        let tries = |world: &World| {
            let locked = world.table.try_lock(BLOCK);
            if locked.is_some() {
                world.count();
            }
            usize::from(locked.is_some())
        };
        let others = [(); 2].map(|()| beside(&world, tries));
        let locked = world.table.lock(BLOCK);
        world.count();
        drop(locked);
        let got: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(world.guarded.load(Ordering::Relaxed), 1 + got);
    });
}

#[test]
fn two_who_hold_a_block_and_try_the_others_both_go_on() {
    check_within(4, || {
        let world = world();
        let both = |world: &World, first, second| {
            let mut own = world.table.lock(first);
            own.left_at += 1;
            let Some(mut other) = world.table.try_lock(second) else { return false };
            (own.left_at, other.left_at) = (own.left_at + 1, other.left_at + 1);
            true
        };
        let crossed = beside(&world, move |world| both(world, OTHER, BLOCK));
        let nr_both = [both(&world, BLOCK, OTHER), crossed.join().unwrap()].into_iter().filter(|&got| got).count();
        let sum: u32 = [BLOCK, OTHER].map(|block| world.table.lock(block).left_at).iter().sum();
        assert_eq!(sum as usize, 2 + 2 * nr_both);
    });
}

#[test]
fn what_moves_is_in_one_of_two_blocks() {
    check_within(4, || {
        let world = world();
        world.table.lock(BLOCK).folio_mut(0).set_slot(Some(SlotId::new(7)));
        let moves = beside(&world, |world| {
            let mut source = world.table.lock(BLOCK);
            let Some(mut target) = world.table.try_lock(OTHER) else { return false };
            source.move_to(&mut target);
            true
        });
        // Who holds the source sees it there, or finds that it has arrived.
        let source = world.table.lock(BLOCK);
        if source.is_empty() {
            assert_eq!(world.table.lock(OTHER).state(0), State::Swapped(SlotId::new(7)));
        } else {
            assert!(world.table.try_lock(OTHER).is_none_or(|target| target.is_empty()));
        }
        drop(source);
        let moved = moves.join().unwrap();
        assert_eq!([BLOCK, OTHER].map(|block| world.table.lock(block).is_empty()), [moved, !moved]);
    });
}

/// A zone whose pageblocks may all be in use.
fn zone(nr_pageblocks: usize) -> Zone {
    let zone = Zone::new(nr_pageblocks);
    zone.set_limit(nr_pageblocks * PAGEBLOCK);
    zone
}

/// Frames of this order, taken as the engine takes them.
fn take(zone: &Zone, order: Order) -> Option<FrameId> {
    let taken = zone.take(order, 0)?;
    Some(if taken.order == order { taken.frame } else { zone.carve(taken.frame, order) })
}

struct Frames {
    zone: Zone,
    /// Who is in which half of the first and of the second pageblock.
    holders: [AtomicUsize; 4],
}

impl Frames {
    fn new(nr_pageblocks: usize) -> Arc<Frames> {
        Arc::new(Frames { zone: zone(nr_pageblocks), holders: std::array::from_fn(|_| AtomicUsize::new(0)) })
    }

    /// Takes frames, is in them for a while, and gives them back. Says whether there were any.
    fn use_one(&self, order: Order) -> bool {
        let Some(frame) = take(&self.zone, order) else { return false };
        let first = frame.index() / HALF.nr_pages();
        let halves = first..first + order.nr_pages().div_ceil(HALF.nr_pages());
        for half in halves.clone() {
            assert_eq!(self.holders[half].fetch_add(1, Ordering::Relaxed), 0, "one frame for two threads");
        }
        self.zone.set_owner(frame, FolioId::new(0));
        self.zone.insert(frame, List::Standby);
        for half in halves {
            self.holders[half].fetch_sub(1, Ordering::Relaxed);
        }
        self.zone.give(frame);
        true
    }

    fn check_unused(&self) {
        let counts = self.zone.counts();
        assert_eq!((counts.in_use, counts.standby, counts.free), (0, 0, counts.limit));
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
            let frame = zone.take_surplus();
            frame.into_iter().for_each(|frame| zone.give_unpopulated(frame));
            frame
        };
        let others = [(); 2].map(|()| beside(&zone, leave));
        let taken = zone.take(Order::HUGE, 0).expect("one of them may be in use");
        let left = others.map(|other| other.join().unwrap());
        assert_eq!(left.iter().flatten().count(), 1, "{left:?}");
        assert!(taken.memory == Memory::Huge && !left.contains(&Some(taken.frame)));
        assert_eq!((zone.counts().populated, zone.surplus()), (PAGEBLOCK, 0));
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
        frames.zone.isolate_in(folio, 1, &mut |frame, order| isolated = Some((frame, order)));
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
            assert_eq!(oldest.folio.get() - 3, u32::from(oldest.frame == second), "a folio and another's frames");
            zone.rotate(oldest.frame, List::Inactive);
        }
        gives.join().unwrap();
        assert_eq!((zone.list(first), zone.list(second)), (None, Some(List::Active)));
        let counts = zone.counts();
        assert_eq!((counts.active, counts.inactive, counts.free), (256, 0, 256));
        zone.verify();
    });
}

/// Takes 64 KiB on a CPU, as the engine does.
fn take_on(zone: &Zone, cpu: u32) -> Option<FrameId> {
    let taken = zone.take_on(CpuId::new(cpu), PIECE)?;
    Some(if taken.order == PIECE { taken.frame } else { zone.carve(taken.frame, PIECE) })
}

/// One pageblock, and two CPUs that may keep many of its frames.
fn zone_by_cpu() -> Zone {
    let zone = Zone::with_share(1, 2, 1);
    zone.set_limit(PAGEBLOCK);
    zone
}

/// A divided pageblock whose frames CPUs keep, and for each 64 KiB of it how many have it.
struct ByCpu {
    zone: Zone,
    holders: Vec<AtomicUsize>,
}

impl ByCpu {
    /// Takes frames and gives them back; as a folio's, or nobody's.
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
        // Two threads on one CPU, as after one has moved on, and one that wants all of the lists.
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

/// Small folios over a zone: what faults, compaction and drops do in the engine, without the content.
struct Ram {
    table: FolioTable,
    zone: Zone,
}

impl Ram {
    /// The first folio of each block is in RAM: the one unmapped, the other mapped.
    fn new() -> Arc<Ram> {
        let ram = Ram { table: FolioTable::new(2), zone: zone_by_cpu() };
        ram.table.ensure(BLOCK..BlockId::new(2));
        for (block, mapped) in [(BLOCK, false), (OTHER, true)] {
            let mut locked = ram.table.lock(block);
            locked.split(PIECE);
            let frame = take_on(&ram.zone, 0).unwrap();
            locked.folio_mut(0).set_in_ram(frame, mapped);
            ram.zone.insert_for(locked.name(0), frame, if mapped { List::Active } else { List::Standby });
        }
        Arc::new(ram)
    }

    /// A touch of the first folio of a block: it is mapped afterwards.
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

    /// Moves the first folio that it finds. Says whether it has moved.
    fn compact(&self) -> bool {
        let _paused = self.zone.pause_cpus();
        let mut found = None;
        self.zone.folios_in(FrameId::new(0), &mut |frame, folio, _| found = found.or(Some((frame, folio))));
        let Some((from, folio)) = found else { return false };
        let Some((run, order)) = self.zone.isolate_listed(PIECE, HALF, FrameId::new(0)) else { return false };
        // The last part of the run, so that it is halved until that is a run of its own.
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

    /// Every folio has its frames and no other has them; all others are free.
    fn check(&self) -> usize {
        self.zone.verify();
        let mut homes = Vec::new();
        for block in [BLOCK, OTHER] {
            let locked = self.table.lock(block);
            let Some(frame) = locked.folio(0).frame() else { continue };
            let (owner, order, list) = (self.zone.owner(frame), self.zone.order(frame), self.zone.list(frame));
            assert_eq!((owner, order), (Some(locked.name(0)), Some(PIECE)), "the frames of {block:?}");
            let mapped = matches!(locked.state(0), State::Resident(_));
            assert_eq!(list, Some(if mapped { List::Active } else { List::Standby }));
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

#[test]
fn streams_of_two_threads_are_two_whoever_ends() {
    const ROOM: Room = Room { max_window: 4, max_total: 12 };
    check_within(4, || {
        let streams = Arc::new(Streams::new());
        let walk = |streams: &Streams, thread: u32| {
            let [first, second] =
                [0, 1].map(|at| streams.observe(thread.into(), BlockId::new(100 * thread + at), ROOM));
            assert_eq!(first, None, "one touch is no stream");
            second
        };
        let ends = beside(&streams, move |streams| {
            let advice = walk(streams, 2);
            streams.forget_thread(2);
            advice
        });
        for (thread, advice) in [(1, walk(&streams, 1)), (2, ends.join().unwrap())] {
            let windows = advice.expect("two touches are one").windows;
            assert_eq!(windows[0].start, BlockId::new(100 * thread + 2), "each its own");
            let nr_ahead = windows[windows.len() - 1].end.index() - windows[0].start.index();
            assert!((2..=ROOM.max_total).contains(&nr_ahead));
        }
        assert_eq!(streams.len(), 1);
    });
}

#[test]
fn drop_behind_goes_on_once_for_two_who_pass_half_a_budget() {
    check_within(4, || {
        let drop_behind = Arc::new(DropBehind::new());
        let other = beside(&drop_behind, |drop_behind| drop_behind.passed(50, 100));
        let mine = drop_behind.passed(50, 100);
        assert_ne!(mine, other.join().unwrap(), "who came second");
        assert!(drop_behind.is_on());
        let other = beside(&drop_behind, |drop_behind| (0..4).for_each(|_| drop_behind.refaulted()));
        (0..4).for_each(|_| drop_behind.refaulted());
        other.join().unwrap();
        assert!(!drop_behind.is_on(), "no refault is lost");
    });
}

/// Clusters of two slots for two CPUs, all of them free.
fn clusters(nr_slots: usize, wants_discard: bool) -> Arc<Clusters> {
    let clusters = Clusters::with_cluster_order(nr_slots, 2, wants_discard, PAIR);
    clusters.grow(nr_slots);
    Arc::new(clusters)
}

/// One slot, on a thread of its own.
fn one_slot(clusters: &Arc<Clusters>, cpu: u32) -> thread::JoinHandle<Option<SlotId>> {
    let clusters = Arc::clone(clusters);
    thread::spawn(move || clusters.allocate(CpuId::new(cpu), Order::PAGE))
}

#[test]
fn the_last_slots_go_to_one_cpu_each() {
    check_within(4, || {
        let clusters = clusters(2, false);
        let other = one_slot(&clusters, 1);
        let mine = clusters.allocate(CpuId::new(0), Order::PAGE).expect("there is one for each");
        let others = other.join().unwrap().expect("there is one for each");
        assert_ne!(mine, others);
        assert_eq!((clusters.allocate(CpuId::new(0), Order::PAGE), clusters.nr_used()), (None, 2));
        clusters.verify();
    });
}

#[test]
fn three_threads_of_two_cpus_share_three_slots() {
    check_within(4, || {
        let clusters = clusters(3, false);
        let others = [one_slot(&clusters, 1), one_slot(&clusters, 1)];
        let mine = clusters.allocate(CpuId::new(0), Order::PAGE).expect("there is one for each");
        let [a, b] = others.map(|other| other.join().unwrap().expect("there is one for each"));
        assert!(a != b && a != mine && b != mine);
        clusters.verify();
    });
}

#[test]
fn a_free_and_a_steal_pass_each_other() {
    check_within(4, || {
        let clusters = clusters(2, false);
        let first = clusters.allocate(CpuId::new(0), Order::PAGE).unwrap();
        let other = one_slot(&clusters, 1);
        // The cluster is this CPU's, so the other steals from it; or is given what is freed; or finds it empty.
        clusters.free(first, Order::PAGE);
        let stolen = other.join().unwrap().expect("the second slot was free all along");
        let rest = clusters.allocate(CpuId::new(0), Order::PAGE).expect("one of two is free");
        assert_ne!(stolen, rest);
        assert_eq!((clusters.allocate(CpuId::new(1), Order::PAGE), clusters.nr_used()), (None, 2));
        clusters.verify();
    });
}

#[test]
fn a_slot_of_a_full_cluster_is_freed_while_another_looks_for_one() {
    check_within(4, || {
        let clusters = clusters(2, true);
        let run = clusters.allocate(CpuId::new(0), PAIR).unwrap();
        let other = one_slot(&clusters, 1);
        clusters.free(run, Order::PAGE);
        let got = other.join().unwrap();
        assert!(got.is_none_or(|got| got == run));
        assert_eq!(clusters.allocate(CpuId::new(0), Order::PAGE).is_some(), got.is_none());
        clusters.verify();
    });
}

#[test]
fn a_free_slot_is_isolated_or_handed_out_and_never_both() {
    check_within(4, || {
        let clusters = clusters(2, false);
        let run = clusters.allocate(CpuId::new(0), PAIR).unwrap();
        clusters.free(run, Order::PAGE);
        let other = one_slot(&clusters, 1);
        let mut isolated = None;
        clusters.isolate_in(ClusterId::new(0), 1, &mut |slot, _| isolated = Some(slot));
        let got = other.join().unwrap();
        assert!(isolated.is_some() != got.is_some() && isolated.or(got) == Some(run));
        clusters.verify();
        clusters.free(run, Order::PAGE);
        clusters.free(run.plus(1), Order::PAGE);
        assert_eq!(clusters.nr_used(), 0);
        clusters.verify();
    });
}

#[test]
fn removal_and_allocation_pass_each_other() {
    check_within(4, || {
        let clusters = clusters(4, false);
        let others = [one_slot(&clusters, 0), one_slot(&clusters, 1)];
        clusters.begin_removal();
        // What was handed out was handed out before that returned.
        let nr_used = clusters.nr_used();
        let got = others.map(|other| other.join().unwrap());
        assert_eq!((got.iter().flatten().count(), clusters.nr_used()), (nr_used, nr_used));
        assert!(got[0].is_none() || got[0] != got[1]);
        assert_eq!(clusters.allocate(CpuId::new(0), Order::PAGE), None);
        clusters.verify();
        clusters.cancel_removal();
        assert!(clusters.allocate(CpuId::new(0), Order::PAGE).is_some());
    });
}

#[test]
fn a_cluster_is_discarded_or_used_again_and_never_both() {
    check_within(4, || {
        let clusters = clusters(2, true);
        let run = clusters.allocate(CpuId::new(0), PAIR).unwrap();
        let other = one_slot(&clusters, 1);
        clusters.free(run, PAIR);
        let discards = clusters.take_discards(1);
        let got = other.join().unwrap();
        assert!(discards.is_empty() || got.is_none(), "a slot was handed out while it was being discarded");
        clusters.verify();
        discards.into_iter().for_each(|cluster| clusters.discarded(cluster));
        assert!(clusters.allocate(CpuId::new(0), Order::PAGE).is_some());
        clusters.verify();
    });
}

#[test]
fn what_is_new_is_handed_out_once_it_is_there() {
    check_within(4, || {
        let clusters = Arc::new(Clusters::with_cluster_order(4, 2, false, PAIR));
        clusters.grow(1);
        let others = [one_slot(&clusters, 0), one_slot(&clusters, 1)];
        clusters.grow(2);
        let got = others.map(|other| other.join().unwrap());
        assert!(got.iter().any(Option::is_some) && got[0] != got[1]);
        for slot in got.into_iter().flatten() {
            clusters.free(slot, Order::PAGE);
        }
        clusters.verify();
    });
}

/// A device of two clusters, and single slots of it that are in use until they are freed by way of the cache, all on one
/// CPU. A batch is two runs here.
struct Freeing {
    clusters: Clusters,
    cache: SlotCache,
    slots: Vec<SlotId>,
}

fn freeing(nr_in_use: usize) -> Arc<Freeing> {
    let clusters = Clusters::with_cluster_order(4, 1, false, PAIR);
    clusters.grow(4);
    let slots = (0..nr_in_use).map(|_| clusters.allocate(CpuId::new(0), Order::PAGE).unwrap()).collect();
    Arc::new(Freeing { clusters, cache: SlotCache::new(1), slots })
}

impl Freeing {
    fn free(&self, at: usize) -> Freed {
        self.cache.free(&self.clusters, CpuId::new(0), self.slots[at], Order::PAGE)
    }

    fn flush(&self) -> bool {
        self.cache.flush(&self.clusters)
    }

    fn work(&self) -> bool {
        self.cache.give_full(&self.clusters)
    }

    /// Everything has arrived, once: a slot that is freed twice makes the clusters panic.
    fn check_free(&self) {
        assert_eq!((self.clusters.nr_used(), self.cache.nr_slots()), (0, 0));
        self.clusters.verify();
    }
}

#[test]
fn a_batch_is_given_back_once_whoever_comes_first() {
    check_within(3, || {
        let freeing = freeing(3);
        assert_eq!([freeing.free(0), freeing.free(1)], [Freed::Collected, Freed::Filled]);
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| freeing.free(2));
        freeing.flush();
        let nr_used = freeing.clusters.nr_used();
        assert!(nr_used <= 1, "what was freed before the flush is free after it, not {nr_used} in use");
        worker.join().unwrap();
        assert_ne!(other.join().unwrap(), Freed::Filled);
        freeing.flush();
        freeing.check_free();
    });
}

#[test]
fn a_free_takes_a_full_batch_or_the_worker_has() {
    check_within(3, || {
        let freeing = freeing(4);
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| [freeing.free(0), freeing.free(1)]);
        let mine = [freeing.free(2), freeing.free(3)];
        let all = [mine, other.join().unwrap()].concat();
        let count = |what| all.iter().filter(|&&freed| freed == what).count();
        let worked = worker.join().unwrap();
        // A full batch goes by the worker or by a free, and the second of two that fill it may fill it again.
        assert!(count(Freed::Filled) >= 1 && count(Freed::Emptied) + usize::from(worked) <= count(Freed::Filled));
        freeing.flush();
        freeing.check_free();
    });
}

#[test]
fn a_flush_waits_for_the_worker() {
    check_within(4, || {
        let freeing = freeing(2);
        let _ = [freeing.free(0), freeing.free(1)];
        let worker = beside(&freeing, Freeing::work);
        freeing.flush();
        freeing.check_free();
        worker.join().unwrap();
    });
}

#[test]
fn a_flush_waits_for_a_free_that_gives_a_batch_back() {
    check_within(4, || {
        let freeing = freeing(3);
        let _ = [freeing.free(0), freeing.free(1)];
        let other = beside(&freeing, |freeing| freeing.free(2));
        let flushed = freeing.flush();
        let nr_used = freeing.clusters.nr_used();
        assert!(nr_used == 0 || nr_used == 1, "the batch is not back: {nr_used}");
        let freed = other.join().unwrap();
        assert!(flushed || freed == Freed::Emptied, "nothing was on its way, so a free had brought it all back");
        freeing.flush();
        freeing.check_free();
    });
}

#[test]
fn two_flushes_both_wait() {
    check_within(4, || {
        let freeing = freeing(2);
        let _ = freeing.free(0);
        let other = beside(&freeing, |freeing| {
            freeing.flush();
            assert!(freeing.clusters.nr_used() <= 1);
        });
        let _ = freeing.free(1);
        freeing.flush();
        freeing.check_free();
        other.join().unwrap();
    });
}

#[test]
fn from_removal_on_frees_go_straight_and_none_is_left_behind() {
    check_within(3, || {
        let freeing = freeing(3);
        let _ = [freeing.free(0), freeing.free(1)];
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| freeing.free(2));
        freeing.clusters.begin_removal();
        freeing.cache.switch_off(&freeing.clusters);
        assert!(freeing.cache.nr_slots() == 0 && freeing.clusters.nr_used() <= 1);
        let freed = other.join().unwrap();
        assert!(freed != Freed::Filled || freeing.clusters.nr_used() == 0);
        freeing.check_free();
        worker.join().unwrap();
    });
}

#[test]
fn slots_on_their_way_are_handed_out_after_a_flush() {
    check_within(4, || {
        let freeing = freeing(4);
        let _ = freeing.free(0);
        let worker = beside(&freeing, Freeing::work);
        let other = beside(&freeing, |freeing| freeing.free(1));
        let take = || freeing.clusters.allocate(CpuId::new(0), Order::PAGE);
        let got = take().or_else(|| {
            freeing.flush();
            take()
        });
        assert!(got.is_some(), "a full device with slots in batches does not fail");
        worker.join().unwrap();
        let _ = other.join().unwrap();
        freeing.flush();
        assert_eq!(freeing.clusters.nr_used(), 3);
        freeing.clusters.verify();
    });
}
