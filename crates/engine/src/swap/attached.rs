//! A swap device in use: its slots, the space that they have on the disk, and its state.
//!
//! A slot is handed out only after its space was reserved, so a full disk is noticed before a write and never during
//! one. The device grows in large steps. Space of emptied clusters goes back to the file system when most of it has
//! been free for a while (`discard`); such a cluster is used again only after its space was reserved anew. A free
//! takes 0.3 us if it finds its cluster unlocked and the device needs no notice of frees. Other freed slots wait in a
//! [`SlotCache`] for the background thread (`free`). No allocation fails, and the device does not grow, while the cache
//! holds freed slots.
//!
//! **Locking.** `space` before the locks of [`Clusters`]. Discards are done while holding neither.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use folioswap_core::{ClusterId, Clusters, CpuId, Freed, NodeId, Order, SlotCache, SlotId};

use crate::device::Device;
use crate::process::fatal;
use crate::process::shared_stats::SharedCounters;
use crate::swap::figures::IoFigures;
use crate::swap::health::{DeviceState, Health};
use crate::swap::held::HeldSlots;

/// Growth step of a file. It is large so that a full disk is noticed long before a write.
const GROWTH_BYTES: u64 = 256 << 20;

/// Clusters whose space is reserved anew in one step.
const RENEWED_CLUSTERS: usize = 16;

/// Clusters whose space is discarded by a free that finds it worthwhile, with [`Frees::Synchronous`].
const GIVEN_BACK_BY_A_FREE: usize = 4;

/// Emptied clusters below which a discard is not worthwhile: 128 MiB.
const WORTH_DISCARDING: usize = 64;

/// Bits of a slot's number that count slots within a device.
pub(crate) const DEVICE_SHIFT: u32 = Clusters::MAX_SLOTS.trailing_zeros();

/// Setup of an arena's devices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Slots that one device could ever need.
    pub most_slots: usize,
    /// Bits of a slot's number that count slots within a device: [`DEVICE_SHIFT`], or fewer in tests that fill devices.
    pub device_shift: u32,
    pub nr_cpus: usize,
    /// Whether devices are treated as rotational disks. `None`: as the kernel reports.
    pub rotational: Option<bool>,
    pub frees: Frees,
}

/// How freed slots get back to their clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frees {
    /// At once if that costs next to nothing, otherwise in batches by a thread.
    Cheapest,
    /// In batches by a thread. For tests.
    Collected,
    /// In batches by the free that fills the batch. It waits for others that do the same, and discards emptied
    /// clusters. For comparison.
    Synchronous,
}

/// What a device has of the disk.
struct DiskSpace {
    /// Slots that have ever had space.
    nr_slots: usize,
    /// Clusters among them whose space was given back.
    given_back: Vec<ClusterId>,
}

pub(crate) struct Attached {
    pub name: String,
    /// I/O figures of this device; shared with transfers in flight.
    pub figures: Arc<IoFigures>,
    pub device: Arc<dyn Device>,
    pub clusters: Clusters,
    /// Freed slots that are not with the clusters yet.
    cache: SlotCache,
    frees: Frees,
    /// Largest request that the disk takes in one piece.
    pub most_bytes_at_once: usize,
    /// Node whose CPUs prefer this device because it is attached there. `None` if its priority was given explicitly.
    pub home: Option<NodeId>,
    space: Mutex<DiskSpace>,
    nr_given_back: AtomicUsize,
    limit_slots: usize,
    /// The last attempt to reserve more space failed.
    full: AtomicBool,
    /// The device is being removed.
    leaving: AtomicBool,
    /// Slots whose write failed. They stay allocated and are not used.
    nr_bad: AtomicUsize,
    /// The device cannot discard, or a discard failed.
    cannot_discard: AtomicBool,
    /// Slots that forked children may read.
    pub held: HeldSlots,
    /// It is an ancestor's, in a forked child: what is there is read, and freed in this process's records only.
    foreign: AtomicBool,
    pub health: Health,
}

/// Emptied clusters whose space is being discarded. No lock is held meanwhile: a fork does not wait for the disk.
pub(super) struct Discard {
    device: Arc<dyn Device>,
    clusters: Vec<ClusterId>,
    /// Offsets and lengths of runs of clusters, in bytes.
    runs: Vec<(u64, u64)>,
}

impl Discard {
    /// Gives the space back. Returns the first error.
    pub fn carry_out(&self) -> Option<io::Error> {
        let discards = self.runs.iter().map(|&(offset, len)| self.device.discard(offset, len));
        discards.filter_map(Result::err).fold(None, |first, error| first.or(Some(error)))
    }
}

impl Attached {
    pub fn new(device: Box<dyn Device>, name: String, layout: Layout, shared: Option<&'static SharedCounters>) -> Self {
        let (most, huge) = (layout.most_slots, Order::HUGE.nr_pages());
        let limit_slots =
            device.limit_bytes().map_or(most, |bytes| most.min(bytes as usize / Order::PAGE.bytes()) / huge * huge);
        let rotational = layout.rotational.unwrap_or_else(|| device.is_rotational());
        let discards = device.discards() && !rotational;
        let mut clusters = if rotational {
            Clusters::rotational(limit_slots)
        } else {
            Clusters::new(limit_slots, layout.nr_cpus, discards)
        };
        if let Some(told) = device.on_freed() {
            clusters.on_free(told);
        }
        let figures = Arc::new(IoFigures::new(&name, device.memory().is_none(), shared));
        let most_bytes_at_once = device.most_bytes_at_once().unwrap_or(usize::MAX);
        Attached {
            name,
            figures,
            device: device.into(),
            most_bytes_at_once,
            home: None,
            clusters,
            cache: SlotCache::new(layout.nr_cpus),
            frees: layout.frees,
            space: Mutex::new(DiskSpace { nr_slots: 0, given_back: Vec::new() }),
            nr_given_back: AtomicUsize::new(0),
            limit_slots,
            full: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            nr_bad: AtomicUsize::new(0),
            cannot_discard: AtomicBool::new(!discards),
            held: HeldSlots::default(),
            foreign: AtomicBool::new(false),
            health: Health::default(),
        }
    }

    pub(super) fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        if self.health.is_failing() || self.is_foreign() || !self.clusters.serves(order) {
            return None;
        }
        let mut flushed = false;
        loop {
            let nr_slots = self.clusters.nr_slots();
            if !self.device.has_room(order) {
                if !std::mem::replace(&mut flushed, true) && self.flush() {
                    continue;
                }
                return None;
            }
            if let Some(slot) = self.clusters.allocate(cpu, order) {
                return Some(slot);
            }
            if !std::mem::replace(&mut flushed, true) && self.flush() {
                continue;
            }
            if self.full.load(Ordering::Relaxed) || self.is_leaving() || !self.grow(nr_slots) {
                return None;
            }
        }
    }

    /// Frees slots; they may stay in the slot cache for a while.
    pub(super) fn free(&self, cpu: CpuId, slot: SlotId, order: Order) -> Freed {
        if self.is_foreign() {
            self.clusters.free(slot, order); // in this process only: none is handed out
            return Freed::Immediate;
        }
        if self.held.keeps(slot, order) {
            return Freed::Immediate;
        }
        let freed = if self.frees == Frees::Cheapest && self.clusters.try_free(slot, order) {
            Freed::Immediate
        } else {
            self.cache.free(&self.clusters, cpu, slot, order)
        };
        if freed == Freed::Filled && self.frees == Frees::Synchronous {
            self.cache.give_full(&self.clusters);
            if self.discards_due() {
                self.discard(GIVEN_BACK_BY_A_FREE);
            }
        }
        self.forget_full();
        freed
    }

    pub(super) fn free_now(&self, slot: SlotId, order: Order) {
        if self.is_foreign() || !self.held.keeps(slot, order) {
            self.clusters.free(slot, order);
            self.forget_full();
        }
    }

    /// Whether slots in use may be written once more.
    pub(super) fn may_write_again(&self, slot: SlotId, order: Order) -> bool {
        !self.is_leaving() && !self.is_foreign() && !self.held.has(slot, order)
    }

    /// True for a device in a file: children read its slots after a fork, so those must not be reused.
    pub(super) fn is_shared_with_children(&self) -> bool {
        self.device.descriptor().is_some() && !self.is_foreign()
    }

    /// Holds all slots in use for a fork.
    pub(super) fn hold_for(&self, fork: u64) {
        self.flush();
        self.held.hold(fork, self.clusters.bits_in_use());
    }

    /// Releases slots pinned by forks whose descendants have exited.
    pub(super) fn end_held(&self, over: impl Fn(u64) -> bool) {
        self.held.end(over, |slot, order| self.clusters.free(slot, order));
        self.forget_full();
    }

    /// In a forked child: the device is the parent's.
    pub(super) fn become_foreign(&self) {
        self.foreign.store(true, Ordering::Relaxed);
    }

    /// Whether it is a parent's.
    pub fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    fn forget_full(&self) {
        if self.full.load(Ordering::Relaxed) {
            self.full.store(false, Ordering::Relaxed);
        }
    }

    /// Frees all slots in the cache. Returns whether there were any.
    pub fn flush(&self) -> bool {
        self.cache.flush(&self.clusters)
    }

    /// The same for the background thread before it sleeps until it is woken.
    pub(super) fn sweep(&self) -> bool {
        self.cache.sweep(&self.clusters)
    }

    /// Frees the full batches of the cache.
    pub(super) fn free_full(&self) {
        self.cache.give_full(&self.clusters);
    }

    /// Slots that were freed but still count as used.
    pub fn nr_on_their_way(&self) -> usize {
        self.cache.nr_slots()
    }

    /// From now on no slot is handed out, and the cache no longer collects freed slots. `false`: the device was already
    /// leaving.
    pub(super) fn begin_removal(&self) -> bool {
        if self.leaving.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.clusters.begin_removal();
        self.cache.switch_off(&self.clusters);
        true
    }

    pub(super) fn cancel_removal(&self) {
        self.cache.switch_on();
        self.clusters.cancel_removal();
        self.leaving.store(false, Ordering::SeqCst);
    }

    /// Bytes used by the records of its slots.
    pub fn metadata_bytes(&self) -> usize {
        self.clusters.bytes() + self.cache.bytes()
    }

    /// Whether a folio that was read back should keep its slots: only while the device has plenty of room.
    pub fn keeps_copies(&self) -> bool {
        !self.is_leaving() && self.has_plenty()
    }

    /// Whether folios are written to it one by one: only disks gain from combining neighbours.
    pub fn takes_folios(&self) -> bool {
        self.device.memory().is_some() || self.device.compresses()
    }

    /// Whether less than half of the device is used.
    fn has_plenty(&self) -> bool {
        if self.is_foreign() {
            return true; // a copy there costs no slots
        }
        if let Some(memory) = self.device.memory_use() {
            return memory.memory_bytes * 2 < memory.limit_bytes;
        }
        let (nr_used, capacity) = (self.clusters.nr_used(), self.capacity_slots());
        // This check costs more, and is not needed if the device is less than half full anyway.
        nr_used * 2 < capacity || nr_used.saturating_sub(self.nr_on_their_way()) * 2 < capacity
    }

    pub(super) fn mark_bad(&self, slot: SlotId, order: Order) {
        self.clusters.mark_bad(slot, order);
        self.nr_bad.fetch_add(order.nr_pages(), Ordering::Relaxed);
    }

    /// Whether the device takes no new content, because it is being removed or is failing.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst) || self.health.is_failing()
    }

    pub fn state(&self) -> DeviceState {
        match (self.health.is_failing(), self.leaving.load(Ordering::SeqCst)) {
            (true, _) => DeviceState::Failing,
            (false, true) => DeviceState::Leaving,
            (false, false) => DeviceState::InUse,
        }
    }

    /// Whether the device has no free slots of any order, after an allocation of `order` failed. Always `false` while
    /// it is being removed or is failing: its slots are not handed out then.
    pub(super) fn has_none_left(&self, order: Order) -> bool {
        if self.is_foreign() {
            return true;
        }
        let is_used_up = || self.full.load(Ordering::Relaxed) && self.clusters.nr_used() >= self.capacity_slots();
        // A rotational disk refuses larger orders at once: such a refusal does not mean that it is full.
        let is_full = order == Order::PAGE || self.clusters.serves(order) && is_used_up();
        !self.is_leaving() && (is_full || !self.device.has_room(Order::PAGE))
    }

    /// Slots that hold content, or are about to. Exact after a flush.
    pub fn nr_used(&self) -> usize {
        self.clusters.nr_used().saturating_sub(self.nr_bad.load(Ordering::Relaxed))
    }

    pub fn used_bytes(&self) -> u64 {
        (self.nr_used() * Order::PAGE.bytes()) as u64
    }

    /// Updates the figures of how much of the device is used.
    pub(super) fn note_use(&self) {
        self.figures.record_used(self.used_bytes());
        if let Some(memory) = self.device.memory_use() {
            self.figures.record_memory(memory.memory_bytes);
        }
    }

    /// Whether an eighth of its slots is free, contiguous or not: compaction can make free runs of them.
    pub(super) fn has_scattered_room(&self) -> bool {
        let nr_given_back = self.nr_given_back.load(Ordering::Relaxed) * Order::HUGE.nr_pages();
        let nr_slots = self.clusters.nr_slots().saturating_sub(nr_given_back);
        let nr_free = nr_slots.saturating_sub(self.clusters.nr_used());
        // A device in compressed RAM has many more slots than it can hold, so it never lacks free runs.
        let is_wanted = self.clusters.serves(Order::HUGE) && self.device.memory_use().is_none();
        // What children may read does not move.
        is_wanted
            && !self.is_foreign()
            && !self.held.any()
            && !self.is_leaving()
            && nr_slots > 0
            && nr_free >= nr_slots / 8
    }

    /// Adds slots if there are still only `nr_slots`. `false`: the device has no room for more.
    fn grow(&self, nr_slots: usize) -> bool {
        let mut space = self.space.lock().expect("no panic while growing");
        if space.nr_slots > nr_slots {
            return true; // another thread has grown it meanwhile
        }
        if self.renew(&mut space) {
            return true;
        }
        let huge = Order::HUGE.nr_pages();
        let mut step = (GROWTH_BYTES as usize / Order::PAGE.bytes()).min(self.limit_slots - space.nr_slots);
        while step >= huge {
            let more = step / huge * huge;
            let (offset, len) = (space.nr_slots * Order::PAGE.bytes(), more * Order::PAGE.bytes());
            if self.device.reserve(offset as u64, len as u64).is_ok() {
                space.nr_slots += more;
                self.clusters.grow(space.nr_slots);
                return true;
            }
            step /= 2;
        }
        self.full.store(true, Ordering::Relaxed);
        false
    }

    /// Reserves space for some of the clusters that gave theirs back. `false`: there are none, or no space.
    fn renew(&self, space: &mut DiskSpace) -> bool {
        let mut renewed = 0;
        while renewed < RENEWED_CLUSTERS
            && let Some(cluster) = space.given_back.pop()
        {
            let first = self.clusters.slots_of(cluster).start;
            if self.device.reserve(first.offset_bytes(), Order::HUGE.bytes() as u64).is_err() {
                space.given_back.push(cluster);
                break;
            }
            self.clusters.discarded(cluster);
            renewed += 1;
        }
        self.nr_given_back.store(space.given_back.len(), Ordering::Relaxed);
        renewed > 0
    }

    pub(super) fn discards_due(&self) -> bool {
        self.nr_spare() >= WORTH_DISCARDING
    }

    /// Emptied clusters that could be discarded; 0 unless they hold more slots than are used.
    pub(super) fn nr_spare(&self) -> usize {
        if self.cannot_discard.load(Ordering::Relaxed) || self.is_foreign() {
            return 0;
        }
        let nr_awaiting = self.clusters.nr_awaiting();
        if nr_awaiting * Order::HUGE.nr_pages() > self.clusters.nr_used() { nr_awaiting } else { 0 }
    }

    /// Discards the space of up to `most` emptied clusters.
    pub(super) fn discard(&self, most: usize) {
        let discard = self.begin_discard(most);
        let failed = discard.carry_out();
        if let Some(news) = self.end_discard(discard, failed) {
            fatal::say(&news);
        }
    }

    /// Takes up to `most` emptied clusters, whose space is to be discarded. Inside the fork gate, as the end.
    pub(super) fn begin_discard(&self, most: usize) -> Discard {
        let mut clusters = self.clusters.take_discards(most);
        clusters.sort_unstable();
        let runs = clusters.chunk_by(|a, b| b.index() == a.index() + 1);
        let offset = |cluster| self.clusters.slots_of(cluster).start.offset_bytes();
        let runs = runs.map(|run| (offset(run[0]), (run.len() * Order::HUGE.bytes()) as u64)).collect();
        Discard { device: Arc::clone(&self.device), clusters, runs }
    }

    /// Notes that clusters have no space any more. Returns what is to be said of a failure.
    pub(super) fn end_discard(&self, mut discard: Discard, failed: Option<io::Error>) -> Option<String> {
        if !Arc::ptr_eq(&self.device, &discard.device) {
            return None; // the device was removed meanwhile, and this one has its place
        }
        let news = failed.filter(|_| !self.cannot_discard.swap(true, Ordering::Relaxed));
        let mut space = self.space.lock().expect("no panic while growing");
        // Also after a failure: a part may have been discarded.
        space.given_back.append(&mut discard.clusters);
        self.nr_given_back.store(space.given_back.len(), Ordering::Relaxed);
        self.full.store(false, Ordering::Relaxed);
        news.map(|error| format!("swap {}: space could not be given back ({error}); it is kept", self.name))
    }

    /// Slots of the device. For a device that can still grow: the most that it could have.
    pub(super) fn capacity_slots(&self) -> usize {
        if !self.full.load(Ordering::Relaxed) {
            return self.limit_slots;
        }
        let given_back = self.nr_given_back.load(Ordering::Relaxed) * Order::HUGE.nr_pages();
        self.clusters.nr_slots().saturating_sub(given_back)
    }

    /// Bytes of space that are reserved on the device, for slots or since it was opened.
    pub fn reserved_bytes(&self) -> u64 {
        let space = self.space.lock().expect("no panic while growing");
        let had = ((space.nr_slots * Order::PAGE.bytes()) as u64).max(self.device.has_from_start());
        had - (space.given_back.len() * Order::HUGE.bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io;
    use std::sync::Arc;

    const CPU: CpuId = CpuId::new(0);
    const BLOCK: u64 = Order::HUGE.bytes() as u64;

    /// The space of a file: which of its 2 MiB ranges are reserved, and whether the disk is full.
    #[derive(Default)]
    struct Disk {
        reserved: Mutex<BTreeSet<u64>>,
        is_full: AtomicBool,
    }

    struct Sparse(Arc<Disk>);

    impl Device for Sparse {
        fn limit_bytes(&self) -> Option<u64> {
            Some(400 * BLOCK)
        }

        fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
            if self.0.is_full.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.reserved.lock().unwrap().extend(offset / BLOCK..(offset + len) / BLOCK);
            Ok(())
        }

        fn discards(&self) -> bool {
            true
        }

        fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
            let mut reserved = self.0.reserved.lock().unwrap();
            (offset / BLOCK..(offset + len) / BLOCK).for_each(|block| assert!(reserved.remove(&block)));
            Ok(())
        }

        fn read(&self, _offset: u64, _bytes: &mut [u8]) -> io::Result<()> {
            unreachable!("nothing is read here")
        }

        fn write(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
            unreachable!("nothing is written here")
        }

        fn name(&self) -> String {
            "sparse".into()
        }
    }

    fn sparse() -> (Attached, Arc<Disk>) {
        freeing(Frees::Collected)
    }

    fn freeing(frees: Frees) -> (Attached, Arc<Disk>) {
        let disk = Arc::<Disk>::default();
        let layout = Layout { most_slots: 1 << 27, device_shift: DEVICE_SHIFT, nr_cpus: 2, rotational: None, frees };
        (Attached::new(Box::new(Sparse(Arc::clone(&disk))), "sparse".into(), layout, None), disk)
    }

    #[test]
    fn what_gave_its_space_back_has_it_again_before_it_is_handed_out() {
        let (attached, disk) = sparse();
        let take = || {
            let slot = attached.allocate(CpuId::new(0), Order::HUGE)?;
            assert!(disk.reserved.lock().unwrap().contains(&(slot.offset_bytes() / BLOCK)), "{slot:?} has no space");
            Some(slot)
        };
        let mut slots: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(slots.len(), 400);
        for slot in slots.drain(100..) {
            let _ = attached.free(CPU, slot, Order::HUGE);
        }
        assert!(attached.flush() && attached.discards_due());
        while attached.nr_spare() > 0 {
            attached.discard(7);
        }
        assert_eq!(attached.reserved_bytes(), disk.reserved.lock().unwrap().len() as u64 * BLOCK);
        assert!((193..=200).contains(&(attached.reserved_bytes() / BLOCK)), "as much stays as is used");
        disk.is_full.store(true, Ordering::Relaxed);
        slots.extend(std::iter::from_fn(take));
        assert_eq!(slots.len() as u64 * BLOCK, attached.reserved_bytes(), "what has space can be had, and no more");
        assert_eq!(attached.capacity_slots() * Order::PAGE.bytes(), attached.reserved_bytes() as usize);
        disk.is_full.store(false, Ordering::Relaxed);
        let _ = attached.free(CPU, slots.pop().unwrap(), Order::HUGE);
        slots.extend(std::iter::from_fn(take));
        assert_eq!(slots.len(), 400);
        attached.clusters.verify();
    }

    #[test]
    fn little_is_not_given_back() {
        let (attached, _disk) = sparse();
        let slots: Vec<_> = (0..300).filter_map(|_| attached.allocate(CpuId::new(0), Order::HUGE)).collect();
        slots[..150].iter().for_each(|&slot| attached.free_now(slot, Order::HUGE));
        assert!(!attached.discards_due(), "as much is used");
        attached.free_now(slots[150], Order::HUGE);
        assert!(attached.discards_due() && attached.nr_spare() == 151);
        attached.mark_bad(slots[160], Order::HUGE);
        assert_eq!(attached.nr_used(), 148 * Order::HUGE.nr_pages());
    }

    #[test]
    fn there_is_plenty_of_room_while_less_than_half_is_used_without_what_is_on_its_way() {
        let (attached, _disk) = sparse();
        let take = |nr: usize| (0..nr).map(|_| attached.allocate(CPU, Order::HUGE).unwrap()).collect::<Vec<_>>();
        let _half = take(199);
        assert!(attached.has_plenty());
        let more = take(1);
        assert!(!attached.has_plenty());
        assert_eq!(attached.free(CPU, more[0], Order::HUGE), Freed::Collected);
        assert!(attached.has_plenty(), "what is on its way is free");
    }

    #[test]
    fn slots_on_their_way_are_handed_out_before_the_device_grows_or_fails() {
        let (attached, _disk) = sparse();
        let take = || attached.allocate(CPU, Order::HUGE);
        let first = take().unwrap();
        let reserved = attached.reserved_bytes();
        let mut slots: Vec<_> = (1..reserved / BLOCK).filter_map(|_| take()).collect();
        assert_eq!(attached.free(CPU, first, Order::HUGE), Freed::Collected);
        assert_eq!((attached.nr_on_their_way(), take(), attached.reserved_bytes()), (512, Some(first), reserved));
        slots.push(first);
        slots.extend(std::iter::from_fn(take));
        assert_eq!((slots.len(), attached.nr_used()), (400, 400 * 512));
        assert_eq!(attached.free(CPU, first, Order::HUGE), Freed::Collected);
        assert!(attached.allocate(CPU, Order::PAGE).is_some(), "a full device with slots on their way");
        assert_eq!((attached.nr_on_their_way(), attached.nr_used()), (0, 399 * 512 + 1));
    }

    #[test]
    fn from_removal_on_nothing_is_on_its_way() {
        let (attached, _disk) = sparse();
        let slots: Vec<_> = (0..3).filter_map(|_| attached.allocate(CPU, Order::PAGE)).collect();
        assert_eq!(attached.free(CPU, slots[0], Order::PAGE), Freed::Collected);
        attached.begin_removal();
        assert_eq!((attached.nr_used(), attached.nr_on_their_way()), (2, 0));
        assert_eq!((attached.free(CPU, slots[1], Order::PAGE), attached.nr_used()), (Freed::Immediate, 1));
        attached.cancel_removal();
        assert_eq!((attached.free(CPU, slots[2], Order::PAGE), attached.nr_used()), (Freed::Collected, 1));
    }

    #[test]
    fn freed_synchronously_space_goes_back_in_the_free() {
        let (attached, disk) = freeing(Frees::Synchronous);
        let slots: Vec<_> = (0..300).filter_map(|_| attached.allocate(CPU, Order::HUGE)).collect();
        let reserved = attached.reserved_bytes();
        let filled = slots.iter().filter(|&&slot| attached.free(CPU, slot, Order::HUGE) == Freed::Filled).count();
        assert_eq!((filled, attached.nr_used()), (300 / 8, 300 % 8 * Order::HUGE.nr_pages()), "16 MiB fill a batch");
        assert!(attached.reserved_bytes() < reserved, "nobody else gives it back");
        assert_eq!(attached.reserved_bytes(), disk.reserved.lock().unwrap().len() as u64 * BLOCK);
    }

    #[test]
    fn what_costs_little_to_free_is_not_collected() {
        let (mut attached, _disk) = freeing(Frees::Cheapest);
        let slots: Vec<_> = (0..3).filter_map(|_| attached.allocate(CPU, Order::PAGE)).collect();
        let freed = slots.iter().map(|&slot| attached.free(CPU, slot, Order::PAGE));
        assert_eq!(freed.collect::<Vec<_>>(), [Freed::Immediate; 3]);
        assert_eq!((attached.nr_used(), attached.nr_on_their_way()), (0, 0));
        let slot = attached.allocate(CPU, Order::PAGE).unwrap();
        attached.clusters.on_free(Box::new(|_, _| ()));
        assert_eq!(attached.free(CPU, slot, Order::PAGE), Freed::Collected, "the device is told of each");
        assert_eq!(attached.nr_on_their_way(), 1);
    }
}
