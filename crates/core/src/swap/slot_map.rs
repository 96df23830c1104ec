//! A bitmap of runs of slots of one order.
//!
//! Next fit: a run is looked for from where the last one was found, so that folios written one after another lie next
//! to each other on the device and are read back in order. Everything counts in runs: slot 1 of an order-9 map starts
//! 2 MiB into the swap space.
//!
//! **Locking.** One mutex, a leaf. `allocate` and `free` allocate no memory; [`SlotMap::grow`] does when it goes beyond
//! the capacity given at the start.

use super::SlotAllocator;
use crate::id::{CpuId, SlotId};
use crate::order::Order;
use crate::sync::{Mutex, MutexGuard, lock};

const BITS: usize = u64::BITS as usize;

struct Map {
    /// One bit for each run: taken or bad. Bits beyond `nr_slots` are set, so that a search never finds them.
    used: Vec<u64>,
    /// One bit for each run: never to be handed out again.
    bad: Vec<u64>,
    nr_slots: usize,
    nr_used: usize,
    nr_bad: usize,
    /// Where the next search starts.
    next: usize,
}

/// The runs of slots of a swap space, of one order.
pub struct SlotMap {
    order: Order,
    map: Mutex<Map>,
}

fn bit(bits: &[u64], index: usize) -> bool {
    bits[index / BITS] >> (index % BITS) & 1 != 0
}

impl Map {
    /// The first free run at `from` or after it, before `to`.
    fn find(&self, from: usize, to: usize) -> Option<usize> {
        if from >= to {
            return None;
        }
        let mut index = from / BITS;
        let mut free = !self.used[index] & (u64::MAX << (from % BITS));
        while free == 0 {
            index += 1;
            if index * BITS >= to {
                return None;
            }
            free = !self.used[index];
        }
        let found = index * BITS + free.trailing_zeros() as usize;
        (found < to).then_some(found)
    }

    fn take_from(&mut self, from: usize) -> Option<SlotId> {
        if self.nr_used == self.nr_slots {
            return None;
        }
        let from = if from < self.nr_slots { from } else { 0 };
        let found = self.find(from, self.nr_slots).or_else(|| self.find(0, from))?;
        self.used[found / BITS] |= 1 << (found % BITS);
        self.nr_used += 1;
        self.next = found + 1;
        Some(SlotId::from_index(found))
    }

    fn verify(&self) {
        assert!(self.used.len() == self.bad.len() && self.used.len() == self.nr_slots.div_ceil(BITS));
        let count = |bits: &[u64]| (0..self.nr_slots).filter(|&index| bit(bits, index)).count();
        assert_eq!(count(&self.used), self.nr_used, "runs that are used");
        assert_eq!(count(&self.bad), self.nr_bad, "runs that are bad");
        assert!(self.used.iter().zip(&self.bad).all(|(used, bad)| used & bad == *bad), "a bad run is used");
        let beyond = (self.nr_slots..self.used.len() * BITS).all(|index| bit(&self.used, index));
        assert!(beyond, "what lies beyond the end is never found free");
    }
}

impl SlotMap {
    /// An empty space for folios of this order. [`SlotMap::grow`] gives it slots.
    pub fn new(order: Order) -> Self {
        SlotMap::with_capacity(order, 0)
    }

    /// An empty space that can grow to `nr_slots_max` runs without allocating memory. Reserves 2 bits a run.
    pub fn with_capacity(order: Order, nr_slots_max: usize) -> Self {
        let words = nr_slots_max.div_ceil(BITS);
        let (used, bad) = (Vec::with_capacity(words), Vec::with_capacity(words));
        SlotMap { order, map: Mutex::new(Map { used, bad, nr_slots: 0, nr_used: 0, nr_bad: 0, next: 0 }) }
    }

    /// The order of the runs.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Makes the space `nr_slots` runs long; does nothing when it is as long already. The new ones are free.
    pub fn grow(&self, nr_slots: usize) {
        assert!(nr_slots < u32::MAX as usize, "the index of a slot fits 32 bits");
        let mut map = self.lock();
        if nr_slots <= map.nr_slots {
            return;
        }
        let words = nr_slots.div_ceil(BITS);
        map.used.resize(words, u64::MAX);
        map.bad.resize(words, 0);
        for index in map.nr_slots..nr_slots {
            map.used[index / BITS] &= !(1 << (index % BITS));
        }
        map.nr_slots = nr_slots;
    }

    /// A run right after `prev`, or the next free one from there; nothing when the space is full.
    pub fn allocate_near(&self, prev: SlotId) -> Option<SlotId> {
        self.lock().take_from(prev.index() + 1)
    }

    /// Says that a run cannot be relied on: it is never handed out again, whether it is taken now or not. Freeing it
    /// changes nothing.
    pub fn mark_bad(&self, slot: SlotId) {
        let mut map = self.lock();
        let index = slot.index();
        assert!(index < map.nr_slots, "{slot:?} lies beyond the swap space");
        let (word, mask) = (index / BITS, 1 << (index % BITS));
        map.nr_bad += usize::from(map.bad[word] & mask == 0);
        map.nr_used += usize::from(map.used[word] & mask == 0);
        map.bad[word] |= mask;
        map.used[word] |= mask;
    }

    /// Runs that are bad.
    pub fn nr_bad(&self) -> usize {
        self.lock().nr_bad
    }

    /// Whether a run is taken or bad.
    pub fn is_used(&self, slot: SlotId) -> bool {
        let map = self.lock();
        slot.index() < map.nr_slots && bit(&map.used, slot.index())
    }

    /// Bytes of memory that the map takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.lock().used.len() * 2 * size_of::<u64>()
    }

    /// Checks the bitmaps against the counts; for tests.
    pub fn verify(&self) {
        self.lock().verify();
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        lock(&self.map)
    }
}

impl SlotAllocator for SlotMap {
    fn allocate(&self, _cpu: CpuId, order: Order) -> Option<SlotId> {
        assert_eq!(order, self.order, "a map holds runs of one order");
        let mut map = self.lock();
        let next = map.next;
        map.take_from(next)
    }

    fn free(&self, slot: SlotId, order: Order) {
        assert_eq!(order, self.order, "a map holds runs of one order");
        let mut map = self.lock();
        let index = slot.index();
        assert!(index < map.nr_slots && bit(&map.used, index), "{slot:?} is freed and was not taken");
        if !bit(&map.bad, index) {
            map.used[index / BITS] &= !(1 << (index % BITS));
            map.nr_used -= 1;
        }
    }

    fn nr_slots(&self) -> usize {
        self.lock().nr_slots
    }

    fn nr_used(&self) -> usize {
        self.lock().nr_used
    }
}

impl std::fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let map = self.lock();
        f.debug_struct("SlotMap").field("nr_slots", &map.nr_slots).field("nr_used", &map.nr_used).finish()
    }
}
