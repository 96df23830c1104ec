//! Compaction of a device's slots: moves small folios together until whole clusters are free for folios of 2 MiB.
//!
//! A large folio that finds no run of slots, although an eighth of a device is free, wakes the background thread. That
//! makes as many clusters whole as such folios needed, and keeps as many while large folios go out. Slots have no
//! recorded owner: a walk of the folio table finds them, and each folio is checked again under its block's lock.
//!
//! **Invariant.** A folio's entry names its old slots until the new ones hold its verified content.
//!
//! **Locking.** Devices do not change during a run, which ends at once when a thread wants to change them. Inside the
//! fork gate, a block's lock is tried for, and held while one folio moves. A fault waits for at most that folio.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use folioswap_core::compact::{Compaction, Migrated, Mode, Outcome, Request, Space, Stage, Units};
use folioswap_core::{
    BLOCK_PAGES, BlockId, ClusterId, DeviceId, FolioId, List, MAX_ORDER, Order, PAGE_SIZE, SlotId, SpaceBlockId, State,
    UnitId,
};
use folioswap_sys::signals;

use crate::block::{Block, SlotRun};
use crate::device::checksum;
use crate::engine::Engine;
use crate::process::fatal;
use crate::process::turns::asleep;
use crate::swap::block::Buffer;
use crate::swap::devices::InUse;
use crate::swap::slot_work::LEAST_ORDER;

/// At most one in this many of a device's clusters is kept whole.
const KEPT_WHOLE_SHARE: usize = 16;

/// How long demand lasts after the last large folio that went out or found no run.
const DEMAND_LASTS: Duration = Duration::from_secs(1);

/// How often to check meanwhile whether the clusters kept whole have been taken.
const AGAIN: Duration = Duration::from_millis(10);

/// Moves are timed in groups of this length, because one short move does not show the device's queue.
const QUANTUM: Duration = Duration::from_millis(1);

/// While others use the device, a pause is this many times as long as the moves before it.
const PAUSES: u32 = 9;

/// How often a pause checks whether the run is interrupted.
const NAP: Duration = Duration::from_millis(2);

/// The background thread's state of this work.
#[derive(Default)]
pub(crate) struct SlotCompactor {
    compactions: BTreeMap<DeviceId, Compaction>,
    /// When slots in runs were last wanted, or used. `None`: they no longer are.
    wanted_last: Option<Instant>,
    nr_wanted: usize,
    /// Large folios that had gone out when it last looked.
    nr_large: u64,
    /// When it looks again, unless more runs are wanted.
    due: Option<Instant>,
}

impl SlotCompactor {
    /// Compacts slots if runs of them are wanted. Returns how long there is nothing to do; `None`: until the thread is
    /// woken.
    pub fn step(&mut self, engine: &Engine) -> Option<Duration> {
        let nr_more = engine.swap().slot_work().take_wanted();
        self.nr_wanted += nr_more;
        if nr_more == 0 && self.wanted_last.is_none() {
            return None;
        }
        if let Some(left) = self.due.map(|due| due.saturating_duration_since(Instant::now()))
            && nr_more == 0
            && !left.is_zero()
        {
            return Some(left);
        }
        let nr_large_before = std::mem::replace(&mut self.nr_large, nr_large_out(engine));
        // Large folios use the clusters kept whole. Without new ones they would soon find none.
        let in_use = self.wanted_last.is_some() && self.nr_large != nr_large_before;
        if nr_more > 0 || in_use {
            self.wanted_last = Some(Instant::now());
        }
        let lasts = self.wanted_last.is_some_and(|last| last.elapsed() <= DEMAND_LASTS);
        if !lasts || !compact_slots(engine, &mut self.compactions, self.nr_wanted) {
            (self.wanted_last, self.nr_wanted) = (None, 0);
        }
        self.due = self.wanted_last.map(|_| Instant::now() + AGAIN);
        self.due.map(|_| AGAIN)
    }
}

/// Large folios written to one run of slots.
fn nr_large_out(engine: &Engine) -> u64 {
    let orders = (LEAST_ORDER.exponent()..=MAX_ORDER).filter_map(Order::new);
    orders.map(|order| engine.stats().swpout.get(order)).sum()
}

/// Makes whole clusters for `nr_wanted` slots, on each device with room enough. `false`: given up, because a write
/// failed.
fn compact_slots(engine: &Engine, compactions: &mut BTreeMap<DeviceId, Compaction>, nr_wanted: usize) -> bool {
    let Some(_alone) = engine.swap().devices().try_changing() else { return true };
    let mut device = None;
    while let Some(id) = engine.swap().devices().next_scattered(device) {
        device = Some(id);
        let space = DeviceSpace::new(engine, id, nr_wanted.div_ceil(Order::HUGE.nr_pages()));
        let compaction = compactions.entry(id).or_insert_with(|| Compaction::new(space.nr_blocks(), Order::HUGE));
        let request = Request { wanted: Some(Order::HUGE), mode: Mode::Async, stage: Stage::WholeSplitting };
        let report = compaction.run(&space, request, &mut || space.is_over());
        match report.outcome {
            Outcome::Free => engine.stats().slot_compact_success.add(report.counters.compact_stall),
            Outcome::Met => engine.stats().slot_compact_fail.add(1),
            Outcome::Stopped | Outcome::Deferred => {}
        }
        if space.write_failed.get() {
            return false;
        }
    }
    true
}

/// A folio and the first of its slots. Packed into 12 bytes, because there may be a billion of them.
struct Owner {
    first: UnitId,
    block: BlockId,
    page: u16,
    order: Order,
}

const _: () = assert!(size_of::<Owner>() == 12, "an owner takes 12 bytes");

impl Owner {
    fn key(&self) -> (UnitId, Order) {
        (self.first, self.order)
    }

    fn units(&self) -> Units {
        Units { first: self.first, order: self.order }
    }

    fn folio(&self) -> FolioId {
        self.block.page(self.page.into())
    }
}

/// A device's slots as a space: units are slots, blocks are clusters.
struct DeviceSpace<'e> {
    engine: &'e Engine,
    device: DeviceId,
    nr_enough: usize,
    /// Sorted by slot. 12 bytes for each folio smaller than a block that has a copy on the device.
    owners: OnceCell<Vec<Owner>>,
    /// For folios that are read alone.
    buffer: RefCell<Option<Buffer>>,
    at_once: RefCell<AtOnce>,
    pace: Cell<Pace>,
    write_failed: Cell<bool>,
    /// Set once a failed read has been reported.
    read_failed: Cell<bool>,
}

/// A cluster's content, read in one go.
#[derive(Default)]
struct AtOnce {
    buffer: Option<Buffer>,
    /// The cluster that is being emptied, unless it could not be read.
    block: Option<SpaceBlockId>,
    is_read: bool,
}

/// Time spent on moves since the last pause.
#[derive(Copy, Clone)]
struct Pace {
    worked: Duration,
    /// Extra length of the next pause, for the sake of other threads: as long as the walk took.
    rests: Duration,
    /// Folios swapped in and out by the arena when the moves began.
    nr_swapped: u64,
}

impl<'e> DeviceSpace<'e> {
    fn new(engine: &'e Engine, device: DeviceId, nr_wanted: usize) -> Self {
        let most = engine.swap().devices().clusters(device, |clusters| clusters.nr_clusters()) / KEPT_WHOLE_SHARE;
        DeviceSpace {
            engine,
            device,
            nr_enough: nr_wanted.clamp(1, most.max(1)),
            owners: OnceCell::new(),
            buffer: RefCell::default(),
            at_once: RefCell::default(),
            pace: Cell::new(Pace { worked: Duration::ZERO, rests: Duration::ZERO, nr_swapped: nr_swapped(engine) }),
            write_failed: Cell::new(false),
            read_failed: Cell::new(false),
        }
    }

    /// Whether the run must end now.
    fn is_over(&self) -> bool {
        self.write_failed.get() || self.in_use().health.is_failing() || self.is_interrupted()
    }

    /// The device. Nobody removes it during the run.
    fn in_use(&self) -> InUse<'_> {
        self.engine.swap().devices().device(self.device)
    }

    fn is_interrupted(&self) -> bool {
        self.engine.stopping() || self.engine.gate().is_closed() || self.engine.swap().devices().is_change_wanted()
    }

    /// Frees pending slots. They have no owner, so they would look unmovable.
    fn flush(&self) {
        if self.in_use().nr_on_their_way() > 0 {
            let _pass = self.engine.gate().enter(signals::thread_id());
            self.in_use().flush();
        }
    }

    fn slot(&self, unit: UnitId) -> SlotId {
        self.engine.swap().devices().slot_on(self.device, SlotId::from_index(unit.index()))
    }

    /// The owners of all slots, as found by the walk.
    fn owners(&self) -> &[Owner] {
        self.owners.get_or_init(|| {
            let begun = Instant::now();
            let mut owners = Vec::new();
            // If the walk is interrupted, so is the run.
            let _ = self.engine.each_block_in_use(
                || self.is_interrupted(),
                |block| {
                    self.note_owners(&self.engine.lock(block), &mut owners);
                    Ok::<_, Infallible>(())
                },
            );
            owners.sort_unstable_by_key(Owner::key);
            // The walk does not use the device, so no pause is due yet: its result is used while it is fresh, and the
            // thread rests after the next moves.
            let pace = self.pace.get();
            self.pace.set(Pace { rests: pace.rests + begun.elapsed(), ..pace });
            owners
        })
    }

    fn note_owners(&self, block: &Block<'_>, owners: &mut Vec<Owner>) {
        let order = block.order();
        if order == Order::HUGE {
            return; // moving it makes no cluster whole
        }
        for (index, folio) in block.folios().iter().enumerate() {
            if let Some(slot) =
                folio.slot().and_then(|slot| self.engine.swap().devices().slot_within(self.device, slot))
            {
                let page = (index * order.nr_pages()) as u16;
                owners.push(Owner { first: UnitId::from_index(slot.index()), block: block.id(), page, order });
            }
        }
    }

    fn owner(&self, units: Units) -> Option<FolioId> {
        let owners = self.owners();
        let found = owners.binary_search_by_key(&(units.first, units.order), Owner::key);
        found.ok().map(|at| owners[at].folio())
    }

    fn move_folio(&self, folio: FolioId, from: Units, to: UnitId) -> Migrated {
        let engine = self.engine;
        let pass = engine.gate().enter(signals::thread_id());
        let Some(mut block) = engine.try_lock(folio.block()) else { return Migrated::Busy };
        let (index, slot) = (block.index_of(folio.page_in_block()), self.slot(from.first));
        if block.order() != from.order || block.name(index) != folio {
            return Migrated::Gone;
        }
        if block.folio(index).writing_to() == Some(slot) {
            return Migrated::Busy;
        }
        if block.folio(index).slot() != Some(slot) {
            return Migrated::Gone;
        }
        let is_clean = |frame| engine.ram().zone(frame).list(frame) == Some(List::Clean);
        match block.state(index) {
            State::Resident(_) => self.give_copy_up(&mut block, index),
            // Not clean: the folio may have been written to, and then its copy is stale.
            State::Standby(frame) if !is_clean(frame) => self.give_copy_up(&mut block, index),
            State::Standby(frame) => {
                // SAFETY: the block is locked and the folio is on standby, so its content is at home. Its slots change,
                // its frames do not.
                let bytes = unsafe { engine.ram().frames().bytes_at_home(frame, from.order) };
                self.write_elsewhere(&mut block, index, bytes, to)
            }
            State::Swapped(_) if self.wants_at_once(slot) => {
                // Read the cluster outside lock and gate: a fault waits for one folio only, and a fork for neither.
                drop((block, pass));
                self.read_at_once();
                self.move_folio(folio, from, to)
            }
            State::Swapped(_) => self.carry_folio(&mut block, index, slot, to),
            State::Empty => Migrated::Gone,
        }
    }

    /// Frees the copy of a folio in RAM. It can be written again.
    fn give_copy_up(&self, block: &mut Block<'_>, index: usize) -> Migrated {
        block.release_slot(index);
        Migrated::Gone
    }

    fn carry_folio(&self, block: &mut Block<'_>, index: usize, slot: SlotId, to: UnitId) -> Migrated {
        let nr_pages = block.order().nr_pages();
        let run = SlotRun { slot, pages: index * nr_pages..(index + 1) * nr_pages };
        if let Some(moved) = self.carry_as_read(block, index, slot, to) {
            return moved;
        }
        let mut buffer = self.buffer.borrow_mut();
        let bytes = buffer.get_or_insert_with(Buffer::new).pages(nr_pages);
        if let Err(lost) = asleep(run.read_alone(block, bytes)) {
            if !self.read_failed.replace(true) {
                fatal::say(&format!("{lost}; what cannot be read stays where it is"));
            }
            return Migrated::Busy;
        }
        self.write_elsewhere(block, index, bytes, to)
    }

    /// Moves a folio from the cluster read in one go, if its content is still the same.
    fn carry_as_read(&self, block: &mut Block<'_>, index: usize, slot: SlotId, to: UnitId) -> Option<Migrated> {
        let mut at_once = self.at_once.borrow_mut();
        let AtOnce { buffer: Some(buffer), block: Some(id), is_read: true } = &mut *at_once else { return None };
        let within = slot.get().checked_sub(self.slot(id.first_unit(Order::HUGE)).get())? as usize;
        let order = block.order();
        let folio = buffer.pages(BLOCK_PAGES).get(within * PAGE_SIZE..within * PAGE_SIZE + order.bytes())?;
        let right = checksum::verify(block, index * order.nr_pages(), folio);
        right.then(|| self.write_elsewhere(block, index, folio, to))
    }

    /// Whether the cluster that is being emptied should be read in one go first. There is nothing to gain on a device
    /// in memory.
    fn wants_at_once(&self, slot: SlotId) -> bool {
        let at_once = self.at_once.borrow();
        at_once.block.is_some() && !at_once.is_read && self.engine.swap().memory(slot).is_none()
    }

    fn read_at_once(&self) {
        let mut at_once = self.at_once.borrow_mut();
        let AtOnce { buffer, block: Some(block), is_read } = &mut *at_once else { return };
        let bytes = buffer.get_or_insert_with(Buffer::new).pages(BLOCK_PAGES);
        *is_read = self.engine.swap().read(self.slot(block.first_unit(Order::HUGE)), bytes).is_ok();
        if !*is_read {
            at_once.block = None; // its folios are read alone, where errors are reported
        }
    }

    fn write_elsewhere(&self, block: &mut Block<'_>, index: usize, bytes: &[u8], to: UnitId) -> Migrated {
        let first_page = index * block.order().nr_pages();
        if block.put_elsewhere(first_page, bytes, &[self.slot(to)]) {
            return Migrated::Moved;
        }
        self.write_failed.set(true);
        Migrated::Busy
    }

    /// Pauses now and then while others use the device, so that moves take a tenth of the time.
    fn keep_pace(&self, took: Duration) {
        let mut pace = self.pace.get();
        pace.worked += took;
        if pace.worked >= QUANTUM {
            if nr_swapped(self.engine) != pace.nr_swapped {
                self.pause(pace.worked * PAUSES + pace.rests);
            }
            pace = Pace { worked: Duration::ZERO, rests: Duration::ZERO, nr_swapped: nr_swapped(self.engine) };
        }
        self.pace.set(pace);
    }

    fn pause(&self, pause: Duration) {
        let begun = Instant::now();
        while !self.is_interrupted()
            && let Some(left) = pause.checked_sub(begun.elapsed())
        {
            folioswap_sys::futex::sleep(left.min(NAP));
        }
    }
}

/// Folios swapped in and out by the arena.
fn nr_swapped(engine: &Engine) -> u64 {
    engine.stats().swapped_in_folios.get() + engine.stats().swapped_out_folios.get()
}

fn cluster(block: SpaceBlockId) -> ClusterId {
    ClusterId::from_index(block.index())
}

impl Space for DeviceSpace<'_> {
    fn block_order(&self) -> Order {
        Order::HUGE
    }

    fn nr_blocks(&self) -> usize {
        self.engine.swap().devices().clusters(self.device, |clusters| clusters.nr_clusters())
    }

    fn has_free(&self, _order: Order) -> bool {
        self.flush();
        self.engine.swap().devices().clusters(self.device, |clusters| clusters.nr_whole_free()) >= self.nr_enough
    }

    fn occupied(&self, block: SpaceBlockId) -> Option<usize> {
        self.flush();
        self.engine.swap().devices().clusters(self.device, |clusters| clusters.nr_taken_in_parts(cluster(block)))
    }

    fn movable(&self, block: SpaceBlockId, each: &mut dyn FnMut(Units)) {
        self.at_once.replace_with(|last| AtOnce { buffer: last.buffer.take(), block: Some(block), is_read: false });
        let owners = self.owners();
        let first = owners.partition_point(|owner| owner.units().first.block(Order::HUGE) < block);
        let here = owners[first..].iter().map(Owner::units);
        here.take_while(|units| units.first.block(Order::HUGE) == block).for_each(each);
    }

    fn isolate(&self, block: SpaceBlockId, enough: usize, each: &mut dyn FnMut(Units)) -> usize {
        self.engine.swap().devices().clusters(self.device, |clusters| {
            clusters.isolate_in(cluster(block), enough, &mut |slot, order| {
                each(Units { first: UnitId::from_index(slot.index()), order });
            })
        })
    }

    /// A device has no lists of free runs by order.
    fn isolate_listed(&self, _least: Order, _most: Order, _from: SpaceBlockId) -> Option<Units> {
        None
    }

    fn put_back(&self, run: Units) {
        self.engine.swap().put_back_slots(self.slot(run.first), run.order);
    }

    fn migrate(&self, folio: Units, to: UnitId, _mode: Mode) -> Migrated {
        let begun = Instant::now();
        let moved = self.owner(folio).map_or(Migrated::Gone, |owner| self.move_folio(owner, folio, to));
        let stats = self.engine.stats();
        match moved {
            Migrated::Moved => stats.slots_migrated.add(folio.nr_units() as u64),
            Migrated::Busy => stats.slots_migrate_failed.add(folio.nr_units() as u64),
            Migrated::Gone | Migrated::Unsuited => {}
        }
        self.keep_pace(begun.elapsed());
        moved
    }

    /// A folio's slots stay together.
    fn split(&self, _folio: Units) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::arena::Arena;
    use crate::arena::advice::Advice;
    use crate::arena::tuning::Tuning;
    use crate::config::folio_size::FolioSize;
    use crate::device::DeviceSpec;
    use crate::swap::attached::Frees;
    use folioswap_core::{CpuId, PAGE_SIZE};
    use std::path::PathBuf;

    /// Content of a page that stays. Never 0.
    fn mark(page: usize) -> u8 {
        (page % 251) as u8 + 1
    }

    fn stays(page: usize) -> bool {
        page * 7 % 16 < 8
    }

    /// Reads all pages that stay, and counts the rounds in one of three of them, until `done`.
    fn use_pages(bytes: &mut [u8], first_page: usize, done: &AtomicBool) {
        let nr_pages = bytes.len() / PAGE_SIZE;
        for round in (0..=u8::MAX).cycle() {
            for page in (0..nr_pages).filter(|&page| stays(first_page + page)) {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let at = page * PAGE_SIZE;
                assert_eq!(bytes[at], mark(first_page + page), "page {page}");
                if page % 3 == 0 {
                    assert_eq!(bytes[at + PAGE_SIZE - 1], round, "page {page}");
                    bytes[at + PAGE_SIZE - 1] = round.wrapping_add(1);
                }
            }
        }
    }

    #[test]
    fn folios_are_used_while_they_are_moved() {
        move_folios_in_use(DeviceSpec::Ram { size: 128 << 20 }, 2000);
    }

    #[test]
    fn and_on_a_disk_while_the_gate_closes_again_and_again() {
        let path = PathBuf::from(format!("/var/tmp/folioswap-slots-{}", std::process::id()));
        move_folios_in_use(DeviceSpec::File { path, size: Some(128 << 20) }, 300);
    }

    fn move_folios_in_use(device: DeviceSpec, nr_moved: u64) {
        let builder = Arena::builder().memory(16 << 20).device(device).folio(Order::PAGE);
        // Keeps freed slots pending for a while: the thread ends as soon as whole clusters are free, but should move
        // folios here.
        let arena = builder.tuning(Tuning { frees: Frees::Collected, ..Tuning::default() }).build().unwrap();
        let mut region = arena.map_with(64 << 20, FolioSize::Fixed(Order::PAGE)).unwrap();
        let nr_pages = region.len() / PAGE_SIZE;
        (0..nr_pages).for_each(|page| region[page * PAGE_SIZE] = mark(page));
        arena.evict_all();
        for page in (0..nr_pages).filter(|&page| !stays(page)) {
            region.advise(page * PAGE_SIZE..(page + 1) * PAGE_SIZE, Advice::DontNeed);
        }
        let (done, engine) = (AtomicBool::new(false), arena.engine());
        std::thread::scope(|scope| {
            for (part, bytes) in region.chunks_mut(32 << 20).enumerate() {
                let done = &done;
                scope.spawn(move || use_pages(bytes, part * nr_pages / 2, done));
            }
            let begun = Instant::now();
            // Beside two busy loops on two CPUs, 158 were moved in a minute.
            while engine.stats().slots_migrated.get() < nr_moved && begun.elapsed() < Duration::from_secs(300) {
                let whole = || engine.swap().allocate(CpuId::new(0), Order::HUGE);
                let runs: Vec<_> = std::iter::from_fn(whole).collect();
                engine.swap().want_whole_clusters(Order::HUGE);
                std::thread::yield_now();
                runs.into_iter().for_each(|slot| engine.swap().free_slots(slot, Order::HUGE));
                engine.gate().close(signals::thread_id()); // as a fork does
                engine.gate().open();
            }
            done.store(true, Ordering::Relaxed);
        });
        let stats = arena.stats();
        assert!(stats.slots_migrated >= nr_moved, "{stats:?}");
        assert!(stats.verify_failures == 0 && stats.io_errors == 0, "{stats:?}");
        (0..nr_pages).for_each(|page| {
            assert_eq!(region[page * PAGE_SIZE], if stays(page) { mark(page) } else { 0 }, "page {page}");
        });
    }
}
