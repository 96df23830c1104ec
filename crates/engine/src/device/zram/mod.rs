//! A swap device in compressed RAM, outside the budget.
//!
//! It has many more slots than its memory holds. Each slot names the object of a [`Pool`] that has its compressed unit
//! of up to 32 KiB. Room in memory is checked before slots are handed out ([`Device::has_room`]); a write that finds
//! none is refused. Content that does not compress well is refused too: another device takes it, or else it is stored
//! as it is.
//!
//! **Memory.** Objects and slot records never exceed the device's size. Codec buffers come on top: about 100 KiB per
//! CPU, 2 MiB with zstd. **Locking.** Slots are cleared under one of a few locks, chosen by cluster; the pool's locks
//! nest inside. The owner of slots (the holder of the lock of the folio's block) reads and sets their words without it.

mod codec;
mod entry;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use folioswap_core::pool::{EmptyGroup, NR_CLASSES, ObjectId, Pool, SizeClass};
use folioswap_core::{NodeId, Order, PAGE_SIZE, SlotId};
use folioswap_sys::memory::{self, Reservation};

use self::codec::{Workspace, Workspaces};
use self::entry::{Entry, UNIT, unit_at};
use super::{Codec, Device, MemoryUse, OnFreed, Refusal, ram};
use crate::config::error::Error;
use crate::config::size::Bytes;
use crate::process::fatal;

/// Slots per page of its memory.
const SLOTS_PER_PAGE: usize = 16;

/// The most memory of such a device: its smallest objects have 64 bytes and 32-bit indices.
pub(super) const MAX_BYTES: u64 = 64 << 32;

/// Locks; clusters share them.
const NR_LOCKS: usize = 64;

/// Memory of empty groups is given back once it exceeds the device's memory divided by this.
const KEPT_EMPTY: usize = 32;

/// The compression ratio of a folio is checked each time this much of it was compressed.
const JUDGED_BYTES: usize = 4 * UNIT.bytes();

/// A class's range becomes accessible in steps of this size, because most of what is reserved is never used.
const OPENED_BYTES: usize = 2 << 20;

/// Groups whose memory is given back at a time.
const GIVEN_BACK: usize = 16;

/// The words of a cluster's slots.
type Table = [AtomicU64; Order::HUGE.nr_pages()];

/// Compressed RAM that stores slots.
pub(crate) struct ZramDevice {
    store: Arc<Store>,
}

/// The range of a class's objects in the reservation.
struct ClassRange {
    begin: usize,
    len: usize,
    /// Accessible bytes from its begin. With strict overcommit accounting (`vm.overcommit_memory=2`) the kernel charges
    /// only these.
    open: AtomicUsize,
}

/// State shared by a device and its callback for freed slots.
struct Store {
    codec: Codec,
    pool: Pool,
    memory: Reservation,
    ranges: Box<[ClassRange; NR_CLASSES]>,
    tables: Box<[OnceLock<Box<Table>>]>,
    nr_tables: AtomicUsize,
    /// There was no room for a page, or the kernel refused it memory; and no object has been freed since.
    is_denied: AtomicBool,
    locks: Box<[Mutex<()>; NR_LOCKS]>,
    workspaces: Workspaces,
    /// Uncompressed size of its content, in bytes.
    plain_bytes: AtomicUsize,
}

impl ZramDevice {
    /// `node`: where all of its memory should be, as for a device in RAM.
    pub fn new(size: u64, codec: Codec, node: Option<NodeId>) -> Result<Self, Error> {
        let limit = size as usize / PAGE_SIZE * PAGE_SIZE;
        let mut len = 0;
        let ranges = Box::new(std::array::from_fn(|index| {
            let begin = len;
            let range = Pool::range_bytes(limit, SizeClass::from_index(index));
            len += range;
            ClassRange { begin, len: range, open: AtomicUsize::new(0) }
        }));
        let memory = Reservation::undumped(len, PAGE_SIZE)
            .and_then(|memory| {
                // Memory of objects is given back by the page.
                let _ = memory::advise_nohugepage(memory.addr(), len);
                memory::dontfork(memory.addr(), len)?;
                Ok(memory)
            })
            .map_err(Error::system("reserving compressed RAM"))?;
        ram::bind(&memory, node);
        let nr_clusters = (limit * SLOTS_PER_PAGE).div_ceil(Order::HUGE.bytes());
        // Each running thread uses one at a time. The surplus is for threads that were preempted while they had one.
        let nr_workspaces = 2 * folioswap_sys::cpu::nr_cpus() + 2;
        let store = Store {
            codec,
            pool: Pool::new(limit),
            memory,
            ranges,
            tables: (0..nr_clusters).map(|_| OnceLock::new()).collect(),
            nr_tables: AtomicUsize::new(0),
            is_denied: AtomicBool::new(false),
            locks: Box::new(std::array::from_fn(|_| Mutex::new(()))),
            workspaces: Workspaces::new(codec, nr_workspaces),
            plain_bytes: AtomicUsize::new(0),
        };
        Ok(ZramDevice { store: Arc::new(store) })
    }
}

impl Store {
    #[allow(clippy::mut_from_ref)] // an object has one owner: its writer until a slot names it, then the owner of the slot
    fn bytes(&self, object: ObjectId, len: usize) -> &mut [u8] {
        let (range, at) = (&self.ranges[object.class.index()], object.offset_bytes());
        assert!(len <= object.class.object_bytes() && at + len <= range.open.load(Ordering::Acquire));
        // SAFETY: within the accessible part of a range (asserted), which is readable, writable, anonymous memory for
        // as long as `self` lives. The pool gives each place to one object at a time. An object is written before a
        // slot names it; after that it is only read, by the holder of the lock of the block whose slot names it. It is
        // freed when no slot names it.
        unsafe { std::slice::from_raw_parts_mut((self.memory.addr() + range.begin + at) as *mut u8, len) }
    }

    /// Makes an object's place readable and writable.
    fn open(&self, object: ObjectId) -> io::Result<()> {
        let (range, end) = (&self.ranges[object.class.index()], object.offset_bytes() + object.class.object_bytes());
        let open = range.open.load(Ordering::Acquire);
        if end > open {
            // Two threads may do this at the same time, which is harmless.
            let wanted = end.next_multiple_of(OPENED_BYTES).min(range.len);
            let begin = self.memory.addr() + range.begin;
            self.memory.protect_rw(begin + open..begin + wanted)?;
            range.open.fetch_max(wanted, Ordering::AcqRel);
        }
        Ok(())
    }

    /// The words of the slots from this one to the end of its cluster; none if that has never had content.
    fn words(&self, slot: usize) -> &[AtomicU64] {
        let table = self.tables.get(slot / Order::HUGE.nr_pages()).and_then(OnceLock::get);
        table.map_or(&[], |table| &table[slot % Order::HUGE.nr_pages()..])
    }

    /// Allocates the words of the slots of a cluster.
    fn make_table(&self, slot: usize) -> Result<(), Refusal> {
        let table = &self.tables[slot / Order::HUGE.nr_pages()];
        if table.get().is_none() {
            self.pool.charge(size_of::<Table>()).map_err(|_| Refusal::Full)?;
            // If another thread was faster, a page too many is charged.
            let _ = table.set(Box::new([const { AtomicU64::new(0) }; Order::HUGE.nr_pages()]));
            self.nr_tables.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn tables_bytes(&self) -> usize {
        self.nr_tables.load(Ordering::Relaxed) * size_of::<Table>()
    }

    fn lock(&self, slot: usize) -> std::sync::MutexGuard<'_, ()> {
        let cluster = slot / Order::HUGE.nr_pages();
        self.locks[cluster % NR_LOCKS].lock().expect("nothing panics under this lock")
    }

    /// Clears slots of one cluster. An object is freed with the last slot that names it. Returns whether any object was
    /// freed.
    fn forget(&self, first: usize, nr_slots: usize) -> bool {
        let Some(table) = self.tables.get(first / Order::HUGE.nr_pages()).and_then(OnceLock::get) else { return false };
        let mut any = false;
        let first = first % Order::HUGE.nr_pages();
        let mut at = first;
        while at < first + nr_slots {
            let word = table[at].load(Ordering::Relaxed);
            let Some(entry) = Entry::unpack(word) else {
                at += 1;
                continue;
            };
            let begin = at & !(entry.order.nr_pages() - 1);
            let unit = begin..begin + entry.order.nr_pages();
            let end = at + nr_alike(&table[at..unit.end.min(first + nr_slots)], word);
            table[at..end].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.plain_bytes.fetch_sub((end - at) * PAGE_SIZE, Ordering::Relaxed);
            if table[unit].iter().all(|other| other.load(Ordering::Relaxed) != word) {
                self.pool.free(entry.object);
                any = true;
            }
            at = end;
        }
        any
    }

    fn freed(&self, slot: SlotId, order: Order) {
        let locked = self.lock(slot.index());
        let any = self.forget(slot.index(), order.nr_pages());
        drop(locked);
        // Not if nothing was freed, as for slots of a write that was refused for lack of memory.
        if any && self.is_denied.load(Ordering::SeqCst) {
            self.is_denied.store(false, Ordering::Relaxed);
        }
        if self.pool.empty_bytes() > self.pool.limit_bytes() / KEPT_EMPTY {
            self.give_back(self.pool.take_empty(GIVEN_BACK));
        }
    }

    fn give_back(&self, groups: Vec<EmptyGroup>) {
        for group in groups {
            let addr = self.memory.addr() + self.ranges[group.class.index()].begin + group.offset_bytes();
            // SAFETY: a part of this store's reservation. The pool handed the group out as empty, so no object lies
            // there, and none is placed there until `gave_back` below.
            if let Err(error) = unsafe { memory::dontneed(addr, group.len_bytes()) } {
                // The memory is still there and charged; the group is not used again.
                fatal::say(&format!("swap in RAM: memory could not be given back ({error})"));
                continue;
            }
            self.pool.gave_back(group);
        }
    }

    /// Allocates an object. If there is no room, memory of empty groups of other sizes is given back first. The last
    /// resort is a free place of any larger class.
    fn place(&self, len: usize) -> Result<ObjectId, Refusal> {
        loop {
            if let Ok(object) = self.pool.allocate(len) {
                return self.opened(object).or_else(|| self.place_in_larger(len)).ok_or(Refusal::Full);
            }
            let groups = self.pool.take_empty(GIVEN_BACK);
            if groups.is_empty() {
                return self.place_in_larger(len).ok_or(Refusal::Full);
            }
            self.give_back(groups);
        }
    }

    /// An object that was allocated, if its memory is accessible or can be made so. It is freed otherwise.
    fn opened(&self, object: ObjectId) -> Option<ObjectId> {
        let is_open = self.open(object).is_ok();
        if !is_open {
            self.pool.free(object);
        }
        is_open.then_some(object)
    }

    /// Allocates an object in memory that is there and accessible, of any larger class.
    fn place_in_larger(&self, len: usize) -> Option<ObjectId> {
        let classes = (SizeClass::of(len).index()..NR_CLASSES).map(SizeClass::from_index);
        classes.filter_map(|class| self.pool.allocate_in_pages(class).ok()).find_map(|object| self.opened(object))
    }

    /// Compresses a unit and stores it. Returns its compressed length.
    fn keep(&self, workspace: &mut Workspace, slot: usize, plain: &[u8]) -> Result<usize, Refusal> {
        let packed = workspace.compress(plain).unwrap_or(plain);
        let object = self.place(packed.len())?;
        self.bytes(object, packed.len()).copy_from_slice(packed);
        let order = Order::from_bytes(plain.len()).expect("a unit is 2^k pages");
        let word = Entry { object, len: packed.len(), order }.pack();
        self.words(slot).iter().take(order.nr_pages()).for_each(|at| at.store(word, Ordering::Relaxed));
        self.plain_bytes.fetch_add(plain.len(), Ordering::Relaxed);
        Ok(packed.len())
    }

    /// The same in smaller units, where there is no room for this one: free places may be small.
    fn keep_divided(&self, slot: usize, plain: &[u8]) -> Result<usize, Refusal> {
        let keep = || self.workspaces.work(|workspace| self.keep(workspace, slot, plain));
        let denied = |is_denied| self.is_denied.store(is_denied, Ordering::SeqCst);
        match keep() {
            Err(Refusal::Full) if plain.len() > PAGE_SIZE => {
                let (first, second) = plain.split_at(plain.len() / 2);
                let packed_bytes = self.keep_divided(slot, first)?;
                Ok(packed_bytes + self.keep_divided(slot + first.len() / PAGE_SIZE, second)?)
            }
            // What is freed before the second try is found by it; what is freed later finds that it was denied.
            Err(Refusal::Full) => {
                denied(true);
                keep().inspect(|_| denied(false))
            }
            kept => kept,
        }
    }

    /// Stores content in slots. Refuses content that does not compress well, unless `has_to`.
    fn store(&self, slot: usize, plain: &[u8], has_to: bool) -> Result<(), Refusal> {
        let nr_slots = plain.len() / PAGE_SIZE;
        self.forget_all(slot, nr_slots);
        let stored = self.store_pieces(slot, plain, has_to);
        if stored.is_err() {
            self.forget_all(slot, nr_slots);
        }
        stored
    }

    fn store_pieces(&self, slot: usize, plain: &[u8], has_to: bool) -> Result<(), Refusal> {
        let nr_slots = plain.len() / PAGE_SIZE;
        let (mut done, mut packed_bytes) = (0, 0);
        while done < nr_slots {
            let order = unit_at(slot + done, nr_slots - done);
            let unit = &plain[done * PAGE_SIZE..][..order.bytes()];
            self.make_table(slot + done)?;
            packed_bytes += self.keep_divided(slot + done, unit)?;
            done += order.nr_pages();
            // Check the ratio at intervals: neither on the first unit alone, nor only when all the work is done.
            let enough_seen = done == nr_slots || (done * PAGE_SIZE).is_multiple_of(JUDGED_BYTES);
            if !has_to && enough_seen && !codec::is_worth(done * PAGE_SIZE, packed_bytes) {
                return Err(Refusal::Incompressible);
            }
        }
        Ok(())
    }

    /// Clears slots of any clusters.
    fn forget_all(&self, mut first: usize, nr_slots: usize) {
        let end = first + nr_slots;
        while first < end {
            let next = (first / Order::HUGE.nr_pages() + 1) * Order::HUGE.nr_pages();
            let _locked = self.lock(first);
            self.forget(first, next.min(end) - first);
            first = next;
        }
    }

    /// Fills `plain` from the unit that holds this slot, beginning at the slot. Returns the bytes that came from this
    /// unit.
    fn load(&self, workspace: &mut Workspace, slot: usize, plain: &mut [u8]) -> io::Result<usize> {
        let words = self.words(slot);
        let word = words.first().map_or(0, |word| word.load(Ordering::Relaxed));
        let entry = Entry::unpack(word).ok_or_else(|| wrong("nothing was written there"))?;
        let skipped = slot & (entry.order.nr_pages() - 1);
        let nr_slots = (plain.len() / PAGE_SIZE).min(entry.order.nr_pages() - skipped);
        let (skipped, len) = (skipped * PAGE_SIZE, nr_alike(&words[..nr_slots], word) * PAGE_SIZE);
        let (plain, packed) = (&mut plain[..len], &*self.bytes(entry.object, entry.len));
        let right = if entry.is_plain() {
            plain.copy_from_slice(&packed[skipped..skipped + len]);
            true
        } else if len == entry.order.bytes() {
            workspace.decompress(packed, plain)
        } else if let Some(start) = workspace.decompress_start(packed, entry.order.bytes(), skipped + len) {
            plain.copy_from_slice(&start[skipped..]);
            true
        } else {
            false
        };
        if right { Ok(len) } else { Err(wrong("what is there does not decompress")) }
    }

    fn refused(refusal: Refusal) -> io::Error {
        io::Error::other(refusal)
    }
}

/// How many slots from the first on have this word. Those behind them may have been written again since, in units of
/// their own.
fn nr_alike(slots: &[AtomicU64], word: u64) -> usize {
    slots.iter().take_while(|slot| slot.load(Ordering::Relaxed) == word).count()
}

fn wrong(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl Device for ZramDevice {
    fn limit_bytes(&self) -> Option<u64> {
        Some((self.store.tables.len() * Order::HUGE.bytes()) as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (mut slot, mut rest) = (offset as usize / PAGE_SIZE, bytes);
        self.store.workspaces.work(|workspace| {
            while !rest.is_empty() {
                let done = self.store.load(workspace, slot, rest)?;
                slot += done / PAGE_SIZE;
                rest = &mut rest[done..];
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.store.store(offset as usize / PAGE_SIZE, bytes, false).map_err(Store::refused)
    }

    fn write_anyway(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.store.store(offset as usize / PAGE_SIZE, bytes, true).map_err(Store::refused)
    }

    fn has_room(&self, order: Order) -> bool {
        let pool = &self.store.pool;
        if self.store.is_denied.load(Ordering::Relaxed) && pool.object_bytes() > 0 {
            return false; // an empty one tries again: nothing will be freed
        }
        // Worst case: nothing compresses, each unit begins a new group, and the words of the slots must be allocated.
        let most = order.bytes() + order.bytes() / 8 + 2 * UNIT.bytes();
        // Free places among objects may have the wrong sizes: count half of them.
        let among =
            pool.used_bytes().saturating_sub(pool.empty_bytes() + pool.object_bytes() + self.store.tables_bytes());
        pool.limit_bytes() - pool.used_bytes() + pool.empty_bytes() + among / 2 >= most
    }

    fn compresses(&self) -> bool {
        true
    }

    fn on_freed(&self) -> Option<OnFreed> {
        let store = Arc::clone(&self.store);
        Some(Box::new(move |slot, order| store.freed(slot, order)))
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        let (used, plain) = (self.store.pool.used_bytes(), self.store.plain_bytes.load(Ordering::Relaxed));
        Some(MemoryUse {
            memory_bytes: used as u64,
            kept_bytes: (self.store.pool.object_bytes() + self.store.tables_bytes()) as u64,
            limit_bytes: self.store.pool.limit_bytes() as u64,
            content_bytes: plain as u64,
        })
    }

    fn let_children_have(&self, have: bool) -> io::Result<()> {
        ram::let_children_have(&self.store.memory, have)
    }

    fn name(&self) -> String {
        let size = Bytes(self.store.pool.limit_bytes() as u64);
        match self.store.codec {
            Codec::Lz4 => format!("zram:{size}"),
            Codec::Zstd => format!("zram:{size},algo=zstd"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_a_unit_is_written_again_in_its_place() {
        let device = ZramDevice::new(8 << 20, Codec::default(), None).unwrap();
        let page = |number: usize| vec![number as u8 + 1; PAGE_SIZE];
        let mut pages: Vec<_> = (0..UNIT.nr_pages()).map(page).collect();
        device.write(0, &pages.concat()).unwrap();
        for again in [3, 0] {
            pages[again] = page(100 + again);
            device.write((again * PAGE_SIZE) as u64, &pages[again]).unwrap();
            for first in 0..pages.len() {
                let mut found = vec![0; (pages.len() - first) * PAGE_SIZE];
                device.read((first * PAGE_SIZE) as u64, &mut found).unwrap();
                assert!(found == pages[first..].concat(), "from page {first} on, with page {again} written again");
            }
        }
        assert_eq!(device.store.plain_bytes.load(Ordering::Relaxed), UNIT.bytes());
        device.on_freed().unwrap()(SlotId::new(0), UNIT);
        assert_eq!(device.store.plain_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(device.store.pool.object_bytes(), 0);
    }

    #[test]
    fn what_was_denied_memory_has_room_again_once_an_object_has_gone() {
        let device = ZramDevice::new(8 << 20, Codec::default(), None).unwrap();
        let freed = device.on_freed().unwrap();
        device.write(0, &[7; PAGE_SIZE]).unwrap();
        assert!(device.has_room(Order::PAGE));
        device.store.is_denied.store(true, Ordering::Relaxed);
        assert!(!device.has_room(Order::PAGE));
        freed(SlotId::new(1), Order::PAGE); // a slot of a refused write
        assert!(!device.has_room(Order::PAGE));
        freed(SlotId::new(0), Order::PAGE);
        assert!(device.has_room(Order::PAGE));
        device.store.is_denied.store(true, Ordering::Relaxed);
        assert!(device.has_room(Order::PAGE), "an empty one");
    }

    #[test]
    fn free_places_of_another_size_are_used() {
        let device = ZramDevice::new(8 << 20, Codec::default(), None).unwrap();
        let freed = device.on_freed().unwrap();
        let mut state = 1u64;
        // Pages that begin with so many eighths of noise.
        let mut unit = |eighths: usize| {
            let mut bytes = vec![0; UNIT.bytes()];
            for page in bytes.chunks_mut(PAGE_SIZE) {
                page[..eighths * PAGE_SIZE / 8].fill_with(|| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                });
            }
            bytes
        };
        let at = |number: usize| (number * UNIT.bytes()) as u64;
        let nr_units = (0..).take_while(|&number| device.write(at(number), &unit(2)).is_ok()).count();
        let empty: Vec<usize> = (0..nr_units).filter(|number| number % 4 > 0).collect();
        empty.iter().for_each(|number| freed(SlotId::new((number * UNIT.nr_pages()) as u64), UNIT));
        let kept: Vec<_> = empty.iter().map(|&number| (number, unit(5))).collect();
        let written = kept.iter().take_while(|(number, bytes)| device.write(at(*number), bytes).is_ok()).count();
        assert!(written * UNIT.nr_pages() > empty.len() / 2, "{written} units in {} places", empty.len());
        assert!(!device.has_room(Order::PAGE));
        for (number, bytes) in &kept[..written] {
            let mut found = vec![0; UNIT.bytes()];
            device.read(at(*number), &mut found).unwrap();
            assert!(found == *bytes, "unit {number}");
        }
    }
}
