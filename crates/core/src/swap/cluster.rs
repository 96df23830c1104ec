//! One cluster: 2 MiB of slots of a device (fewer in tests), with bitmaps of the taken and the bad ones. A slot is
//! named by its offset in the cluster. A run of order k is aligned to 2^k: up to order 6 it lies in one word, above it
//! is whole words.
//!
//! **Invariants.** `nr_used` counts the taken slots below `limit`, the number of slots of the cluster; the last cluster
//! of a device may be short. Bits from `limit` on are set, so that no search finds them. A bad slot is taken.
//!
//! **Locking.** The cluster's mutex guards everything except `link`, which belongs to `cluster_lists`, and `room`,
//! which is written under it and read without: a hint that spares searches the locks of full clusters.
//!
//! **Layout.** The fields that allocation and free touch come first. Clusters are aligned to 128 bytes, because
//! processors prefetch pairs of cache lines and CPUs work in neighbouring clusters.

use super::cluster_link::Link;
use crate::id::ClusterId;
use crate::order::{MAX_ORDER, Order};
use crate::sparse::Sparse;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock, try_lock};
use std::ops::Range;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = (1 << MAX_ORDER) / BITS;

/// Clusters in a chunk, the unit by which the device grows.
#[cfg(not(loom))]
const CHUNK_CLUSTERS: usize = 64;
/// Clusters in a chunk. Fewer under a model checker, which tracks every mutex.
#[cfg(loom)]
const CHUNK_CLUSTERS: usize = 1;

/// The first bit of each aligned run of order k in a word, for k up to 6.
const STARTS: [u64; 7] =
    [!0, 0x5555_5555_5555_5555, 0x1111_1111_1111_1111, 0x0101_0101_0101_0101, 0x0001_0001_0001_0001, 0x1_0000_0001, 1];

/// The most slots that a cluster may have.
pub(super) const MAX_CLUSTER_SLOTS: usize = WORDS * BITS;

/// A bit for each slot of a cluster.
#[derive(Clone, Eq, PartialEq)]
struct Bitmap([u64; WORDS]);

impl Bitmap {
    /// The words that an aligned run covers, and its bits in them if it is shorter than a word.
    fn place(offset: usize, order: Order) -> (Range<usize>, u64) {
        let nr_slots = order.nr_pages();
        debug_assert!(offset.is_multiple_of(nr_slots) && offset + nr_slots <= MAX_CLUSTER_SLOTS);
        let word = offset / BITS;
        if nr_slots < BITS {
            (word..word + 1, ((1 << nr_slots) - 1) << (offset % BITS))
        } else {
            (word..word + nr_slots / BITS, u64::MAX)
        }
    }

    fn all(&self, offset: usize, order: Order) -> bool {
        let (words, mask) = Bitmap::place(offset, order);
        self.0[words].iter().all(|word| word & mask == mask)
    }

    fn none(&self, offset: usize, order: Order) -> bool {
        let (words, mask) = Bitmap::place(offset, order);
        self.0[words].iter().all(|word| word & mask == 0)
    }

    fn count(&self, offset: usize, order: Order) -> usize {
        let (words, mask) = Bitmap::place(offset, order);
        self.0[words].iter().map(|word| (word & mask).count_ones() as usize).sum()
    }

    fn set(&mut self, offset: usize, order: Order) {
        let (words, mask) = Bitmap::place(offset, order);
        self.0[words].iter_mut().for_each(|word| *word |= mask);
    }

    /// Clears the bits of a run except those set in `but`.
    fn clear(&mut self, offset: usize, order: Order, but: &Bitmap) {
        let (words, mask) = Bitmap::place(offset, order);
        for word in words {
            self.0[word] &= !mask | but.0[word];
        }
    }

    /// The first aligned run of clear bits at or after `from`. Reads at most 8 words.
    fn find_clear(&self, from: usize, order: Order) -> Option<usize> {
        let nr_slots = order.nr_pages();
        let from = from.next_multiple_of(nr_slots);
        if nr_slots > BITS {
            return (from..MAX_CLUSTER_SLOTS).step_by(nr_slots).find(|&offset| self.none(offset, order));
        }
        let mut mask = u64::MAX << (from % BITS);
        for index in from / BITS..WORDS {
            let mut clear = !self.0[index];
            // Bit i stays if it and the 2^k - 1 bits after it are clear. Bits beyond the word count as set, which
            // cannot hide an aligned run.
            for exponent in 0..order.exponent() {
                clear &= clear >> (1 << exponent);
            }
            clear &= STARTS[usize::from(order.exponent())] & mask;
            if clear != 0 {
                return Some(index * BITS + clear.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    fn bit(&self, offset: usize) -> bool {
        self.0[offset / BITS] >> (offset % BITS) & 1 != 0
    }
}

/// How full a cluster is, for the order that it serves.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Fill {
    /// No slot is taken.
    Empty,
    /// An aligned run of its order is free.
    Room,
    /// Slots are free, but no aligned run of its order.
    Fragmented,
    /// Every slot is taken.
    Full,
}

/// What a cluster's lock guards, with the counts next to the lock.
#[repr(C)]
pub(super) struct Slots {
    nr_used: u16,
    nr_bad: u16,
    limit: u16,
    /// The set of lists it belongs to: that of the CPU that holds it or held it last, which is the most likely to free
    /// slots here; at first the set of no CPU. Changes only while it is held and on no list.
    pub(super) home: u16,
    /// The order that the cluster serves; meaningless while it is empty and no CPU holds it.
    pub(super) order: Order,
    /// A CPU has it as a current cluster. Set only after the lists have it as `ClusterState::Off`.
    pub(super) held: bool,
    /// The fill by which the lists placed it, while no CPU holds it. `Full` while it is off the lists for being full.
    pub(super) listed: Fill,
    /// Slots were handed out since the device last discarded the cluster.
    written: bool,
    taken: Bitmap,
    bad: Bitmap,
}

impl Slots {
    fn new(home: u16) -> Slots {
        Slots {
            nr_used: 0,
            nr_bad: 0,
            limit: 0,
            home,
            order: Order::PAGE,
            held: false,
            listed: Fill::Full,
            written: false,
            taken: Bitmap([u64::MAX; WORDS]),
            bad: Bitmap([0; WORDS]),
        }
    }

    /// Slots that the cluster has.
    pub(super) fn limit(&self) -> usize {
        usize::from(self.limit)
    }

    /// Slots that are taken or bad.
    pub(super) fn nr_used(&self) -> usize {
        usize::from(self.nr_used)
    }

    /// Whether none of its slots is bad.
    pub(super) fn is_sound(&self) -> bool {
        self.nr_bad == 0
    }

    /// The largest aligned free run that starts at this free slot.
    pub(super) fn largest_free_at(&self, offset: usize) -> Order {
        let orders = (0..=MAX_ORDER).filter_map(Order::new);
        let free = |order: &Order| offset.is_multiple_of(order.nr_pages()) && self.taken.none(offset, *order);
        orders.take_while(free).last().expect("the slot is free")
    }

    /// Whether slots were handed out since the last discard.
    pub(super) fn is_written(&self) -> bool {
        self.written
    }

    /// Records that the device has discarded the cluster.
    pub(super) fn set_discarded(&mut self) {
        assert!(self.nr_used == 0 && !self.held, "a cluster is discarded while it is empty and nobody's");
        self.written = false;
    }

    /// The first free run at or after `from`.
    pub(super) fn find(&self, from: usize, order: Order) -> Option<usize> {
        self.taken.find_clear(from, order)
    }

    /// Whether the run of the cluster's order around this slot is free.
    fn has_room_around(&self, offset: usize) -> bool {
        self.taken.none(offset & !(self.order.nr_pages() - 1), self.order)
    }

    /// How full the cluster is.
    pub(super) fn fill(&self) -> Fill {
        if self.nr_used == 0 {
            Fill::Empty
        } else if self.nr_used == self.limit {
            Fill::Full
        } else if self.find(0, self.order).is_none() {
            Fill::Fragmented
        } else {
            Fill::Room
        }
    }

    /// Whether freeing slots around these offsets made the listed fill stale. Examines only the runs around them.
    pub(super) fn fill_changed(&self, mut offsets: impl Iterator<Item = usize>) -> bool {
        self.nr_used == 0
            || match self.listed {
                Fill::Full => true,
                Fill::Fragmented => offsets.any(|offset| self.has_room_around(offset)),
                Fill::Room | Fill::Empty => false,
            }
    }

    /// A bit for each slot: whether it is taken. Those that the cluster lacks count as taken.
    pub(super) fn bits(&self) -> [u64; WORDS] {
        self.taken.0
    }

    /// Checks counts against bits.
    pub(super) fn verify(&self) {
        let count = |bits: &Bitmap| (0..self.limit()).filter(|&offset| bits.bit(offset)).count();
        assert_eq!(count(&self.taken), self.nr_used(), "slots that are taken");
        assert_eq!(count(&self.bad), usize::from(self.nr_bad), "slots that are bad");
        assert!((self.limit()..MAX_CLUSTER_SLOTS).all(|offset| self.taken.bit(offset)), "bits beyond the end");
        assert!(self.taken.0.iter().zip(&self.bad.0).all(|(taken, bad)| taken & bad == *bad), "a bad slot is taken");
        assert!(self.nr_used == 0 || self.written, "a taken slot has been handed out");
    }
}

#[repr(C, align(128))]
pub(super) struct Cluster {
    /// Free slots.
    room: AtomicU32,
    slots: Mutex<Slots>,
    pub(super) link: Link,
}

// Far below the budget, which is 2 bytes per slot and 64 per cluster.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Cluster>() <= 256, "a cluster is four cache lines");

impl Cluster {
    /// A cluster without slots, on no list; [`Held::extend`] adds slots.
    pub(super) fn new(home: u16) -> Cluster {
        Cluster { room: AtomicU32::new(0), slots: Mutex::new(Slots::new(home)), link: Link::new() }
    }

    pub(super) fn lock(&self) -> Held<'_> {
        Held { slots: lock(&self.slots), room: &self.room }
    }

    /// Locks it unless another thread has it locked.
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        Some(Held { slots: try_lock(&self.slots)?, room: &self.room })
    }

    /// Free slots; may be stale.
    pub(super) fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed) as usize
    }
}

/// The clusters of a device, in chunks that are allocated as it grows and never move.
pub(super) struct Chunks(Sparse<Cluster, CHUNK_CLUSTERS>);

impl Chunks {
    /// Room for up to this many clusters; none exists yet.
    pub(super) fn new(max_clusters: usize) -> Chunks {
        Chunks(Sparse::new(max_clusters))
    }

    /// Makes the first `nr_clusters` clusters, where they do not exist yet.
    pub(super) fn make(&self, nr_clusters: usize, home: u16) {
        self.0.make(0..nr_clusters, || Cluster::new(home));
    }

    pub(super) fn get(&self, id: ClusterId) -> &Cluster {
        self.0.get(id.index()).expect("the cluster lies within the device")
    }

    /// Bytes of memory for the existing clusters.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// A locked cluster.
pub(super) struct Held<'a> {
    slots: MutexGuard<'a, Slots>,
    room: &'a AtomicU32,
}

impl std::ops::Deref for Held<'_> {
    type Target = Slots;
    fn deref(&self) -> &Slots {
        &self.slots
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }
}

impl Held<'_> {
    fn set_nr_used(&mut self, nr_used: usize) {
        assert!(nr_used <= self.limit(), "a cluster has more slots taken than it has");
        self.slots.nr_used = nr_used as u16;
        let room = (self.limit() - nr_used) as u32;
        self.room.store(room, Ordering::Relaxed);
    }

    /// Takes a free run.
    pub(super) fn take(&mut self, offset: usize, order: Order) {
        assert!(self.taken.none(offset, order), "a slot is handed out twice");
        self.taken.set(offset, order);
        self.written = true;
        self.set_nr_used(self.nr_used() + order.nr_pages());
    }

    /// Frees runs except their bad slots, and returns how many slots it freed. Panics when a slot of them is not taken.
    pub(super) fn give(&mut self, runs: impl Iterator<Item = (usize, Order)>) -> usize {
        let mut nr_freed = 0;
        for (offset, order) in runs {
            assert!(offset + order.nr_pages() <= self.limit(), "slots are freed that lie beyond the device");
            assert!(self.taken.all(offset, order), "slots are freed that were not taken");
            let slots = &mut *self.slots;
            let kept = if slots.nr_bad == 0 { 0 } else { slots.bad.count(offset, order) };
            slots.taken.clear(offset, order, &slots.bad);
            nr_freed += order.nr_pages() - kept;
        }
        self.set_nr_used(self.nr_used() - nr_freed);
        nr_freed
    }

    /// Marks taken slots bad.
    pub(super) fn spoil(&mut self, offset: usize, order: Order) {
        assert!(offset + order.nr_pages() <= self.limit(), "slots are marked bad that lie beyond the device");
        assert!(self.taken.all(offset, order), "slots are marked bad that were not taken");
        let fresh = order.nr_pages() - self.bad.count(offset, order);
        self.bad.set(offset, order);
        self.nr_bad += fresh as u16;
    }

    /// Makes the cluster `limit` slots long; the new slots are free.
    pub(super) fn extend(&mut self, limit: usize) {
        assert!((self.limit()..=MAX_CLUSTER_SLOTS).contains(&limit), "a cluster does not shrink");
        for offset in self.limit()..limit {
            self.taken.0[offset / BITS] &= !(1 << (offset % BITS));
        }
        self.limit = limit as u16;
        self.set_nr_used(self.nr_used());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order(exponent: u8) -> Order {
        Order::new(exponent).unwrap()
    }

    fn give(cluster: &mut Held<'_>, offset: usize, k: u8) -> usize {
        cluster.give(std::iter::once((offset, order(k))))
    }

    #[test]
    fn each_order_finds_each_of_its_places() {
        for k in 0..=MAX_ORDER {
            for offset in (0..MAX_CLUSTER_SLOTS).step_by(1 << k) {
                let cluster = Cluster::new(0);
                let mut held = cluster.lock();
                held.extend(MAX_CLUSTER_SLOTS);
                held.take(0, Order::HUGE);
                assert_eq!((held.fill(), cluster.room()), (Fill::Full, 0));
                assert_eq!(give(&mut held, offset, k), 1 << k);
                assert_eq!(held.find(0, order(k)), Some(offset));
                assert_eq!(held.find(offset, order(k)), Some(offset));
                assert_eq!(held.find(offset + 1, order(k)), None);
                assert!((k + 1..=MAX_ORDER).all(|above| held.find(0, order(above)).is_none()));
                held.verify();
            }
        }
    }

    #[test]
    fn a_bad_slot_stays_taken() {
        let cluster = Cluster::new(0);
        let mut held = cluster.lock();
        held.extend(100);
        held.take(64, order(5));
        held.spoil(66, order(1));
        held.spoil(66, order(0));
        assert_eq!((give(&mut held, 64, 5), held.nr_used(), cluster.room()), (30, 2, 98));
        assert_eq!(give(&mut held, 66, 1), 0);
        assert_eq!(held.find(64, order(1)), Some(64));
        assert_eq!(
            (held.find(65, order(1)), held.find(96, order(2)), held.find(97, order(2))),
            (Some(68), Some(96), None)
        );
        held.verify();
    }

    #[test]
    fn the_largest_free_run_at_a_slot() {
        let cluster = Cluster::new(0);
        let mut held = cluster.lock();
        held.extend(200);
        held.take(40, order(0));
        let largest = |offset| held.largest_free_at(offset).exponent();
        assert_eq!([0, 32, 41, 42, 48, 64, 128, 192].map(largest), [5, 3, 0, 1, 4, 6, 6, 3]);
    }

    #[test]
    fn room_around_a_slot() {
        let cluster = Cluster::new(0);
        let mut held = cluster.lock();
        held.extend(MAX_CLUSTER_SLOTS);
        held.order = order(4);
        held.take(0, Order::HUGE);
        give(&mut held, 16, 3);
        assert!(!held.has_room_around(20));
        assert_eq!(held.fill(), Fill::Fragmented);
        give(&mut held, 24, 3);
        assert!(held.has_room_around(20) && held.has_room_around(31) && !held.has_room_around(32));
        assert_eq!(held.fill(), Fill::Room);
    }
}
