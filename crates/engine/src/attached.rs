//! A device in use: its slots, the space they have on the disk, and what becomes of it.
//!
//! A slot is handed out only when it has its space, so that a full disk is met before a write and never in it. The
//! device grows in large steps when its slots do not suffice. Clusters that were emptied are given back to the file
//! system when most of what was used is free for a while (`discard`); they keep their numbers, and are not handed
//! out again before their space has been reserved anew, which is a kind of growing.
//!
//! **Locking.** `space` before what [`Clusters`] locks. I/O that gives space back is done with neither.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use folioswap_core::{ClusterId, Clusters, CpuId, Order, SlotId};

use crate::device::Device;
use crate::fatal;

/// By how much a file grows at a time: large, so that a full disk is met long before the write.
const GROWTH_BYTES: u64 = 256 << 20;

/// Clusters that get their space again at a time.
const RENEWED_CLUSTERS: usize = 16;

/// Emptied clusters below which it is not worth giving any back: 128 MiB.
const WORTH_DISCARDING: usize = 64;

/// How an arena's devices are set up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Slots of one device that could ever be needed.
    pub most_slots: usize,
    pub nr_cpus: usize,
    /// Whether devices are taken for disks that turn; none: what the kernel says.
    pub rotational: Option<bool>,
}

/// What has its place on the disk.
struct Space {
    /// Slots that have had it.
    nr_slots: usize,
    /// Clusters among them that gave it back.
    given_back: Vec<ClusterId>,
}

pub(crate) struct Attached {
    pub name: String,
    pub device: Box<dyn Device>,
    pub clusters: Clusters,
    rotational: bool,
    space: Mutex<Space>,
    nr_given_back: AtomicUsize,
    limit_slots: usize,
    /// No more space was to be had when it was last asked for.
    full: AtomicBool,
    /// It is being removed.
    pub leaving: AtomicBool,
    /// Slots whose write failed: taken, and nobody's.
    nr_bad: AtomicUsize,
    /// The reclaim thread knows that there is something to give back.
    discards_noted: AtomicBool,
    /// It has no way to, or failed.
    cannot_discard: AtomicBool,
}

impl Attached {
    pub fn new(device: Box<dyn Device>, name: String, layout: Layout) -> Self {
        let (most, huge) = (layout.most_slots, Order::HUGE.nr_pages());
        let limit_slots =
            device.limit_bytes().map_or(most, |bytes| most.min(bytes as usize / Order::PAGE.bytes()) / huge * huge);
        let rotational = layout.rotational.unwrap_or_else(|| device.is_rotational());
        let discards = device.discards() && !rotational;
        let clusters = if rotational {
            Clusters::rotational(limit_slots)
        } else {
            Clusters::new(limit_slots, layout.nr_cpus, discards)
        };
        Attached {
            name,
            device,
            clusters,
            rotational,
            space: Mutex::new(Space { nr_slots: 0, given_back: Vec::new() }),
            nr_given_back: AtomicUsize::new(0),
            limit_slots,
            full: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            nr_bad: AtomicUsize::new(0),
            discards_noted: AtomicBool::new(false),
            cannot_discard: AtomicBool::new(!discards),
        }
    }

    pub fn allocate(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        if self.rotational && order > Order::PAGE {
            return None;
        }
        loop {
            let nr_slots = self.clusters.nr_slots();
            if let Some(slot) = self.clusters.allocate(cpu, order) {
                return Some(slot);
            }
            if self.full.load(Ordering::Relaxed) || self.is_leaving() || !self.grow(nr_slots) {
                return None;
            }
        }
    }

    /// Frees slots. Says whether enough is free now for the reclaim thread to be told.
    pub fn free(&self, slot: SlotId, order: Order) -> bool {
        let emptied = self.clusters.free(slot, order);
        self.full.store(false, Ordering::Relaxed);
        emptied && self.discards_due() && !self.discards_noted.swap(true, Ordering::Relaxed)
    }

    pub fn mark_bad(&self, slot: SlotId, order: Order) {
        self.clusters.mark_bad(slot, order);
        self.nr_bad.fetch_add(order.nr_pages(), Ordering::Relaxed);
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Slots that hold something, or are about to.
    pub fn nr_used(&self) -> usize {
        self.clusters.nr_used().saturating_sub(self.nr_bad.load(Ordering::Relaxed))
    }

    /// Whether an eighth of its slots is free, wherever they are: compaction makes runs of them. Of a disk that turns none
    /// are wanted.
    pub fn has_scattered_room(&self) -> bool {
        let nr_given_back = self.nr_given_back.load(Ordering::Relaxed) * Order::HUGE.nr_pages();
        let nr_slots = self.clusters.nr_slots().saturating_sub(nr_given_back);
        let nr_free = nr_slots.saturating_sub(self.clusters.nr_used());
        !self.rotational && !self.is_leaving() && nr_slots > 0 && nr_free >= nr_slots / 8
    }

    /// Adds slots to the `nr_slots` that were not enough; `false` when the device has no room for more.
    fn grow(&self, nr_slots: usize) -> bool {
        let mut space = self.space.lock().expect("no panic while growing");
        if space.nr_slots > nr_slots {
            return true; // another thread grew it meanwhile
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

    /// Reserves space anew for some of the clusters that gave it back; `false` when there are none, or no space.
    fn renew(&self, space: &mut Space) -> bool {
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

    /// Whether it is worth while to give space back.
    pub fn discards_due(&self) -> bool {
        self.nr_spare() >= WORTH_DISCARDING
    }

    /// Emptied clusters that could be given back; none unless they are more than what is used.
    pub fn nr_spare(&self) -> usize {
        if self.cannot_discard.load(Ordering::Relaxed) {
            return 0;
        }
        let nr_awaiting = self.clusters.nr_awaiting();
        if nr_awaiting * Order::HUGE.nr_pages() > self.clusters.nr_used() { nr_awaiting } else { 0 }
    }

    /// From now on the reclaim thread wants to be told again.
    pub fn forget_noted(&self) {
        self.discards_noted.store(false, Ordering::Relaxed);
    }

    /// Gives up to `most` emptied clusters back.
    pub fn discard(&self, most: usize) {
        let mut clusters = self.clusters.take_discards(most);
        clusters.sort_unstable();
        for run in clusters.chunk_by(|a, b| b.index() == a.index() + 1) {
            let first = self.clusters.slots_of(run[0]).start;
            let len = run.len() * Order::HUGE.bytes();
            if let Err(error) = self.device.discard(first.offset_bytes(), len as u64)
                && !self.cannot_discard.swap(true, Ordering::Relaxed)
            {
                fatal::say(&format!("swap {}: space could not be given back ({error}); it is kept", self.name));
            }
        }
        let mut space = self.space.lock().expect("no panic while growing");
        // After a failure too: a part may be gone.
        space.given_back.append(&mut clusters);
        self.nr_given_back.store(space.given_back.len(), Ordering::Relaxed);
        self.full.store(false, Ordering::Relaxed);
    }

    /// Slots it has, or, for one that grows without a limit of its own, as many as anyone could ask for.
    pub fn capacity_slots(&self) -> usize {
        if !self.full.load(Ordering::Relaxed) {
            return self.limit_slots;
        }
        let given_back = self.nr_given_back.load(Ordering::Relaxed) * Order::HUGE.nr_pages();
        self.clusters.nr_slots().saturating_sub(given_back)
    }

    /// Bytes that have their space on the device.
    pub fn reserved_bytes(&self) -> u64 {
        let space = self.space.lock().expect("no panic while growing");
        ((space.nr_slots - space.given_back.len() * Order::HUGE.nr_pages()) * Order::PAGE.bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io;
    use std::os::fd::RawFd;
    use std::sync::Arc;

    const BLOCK: u64 = Order::HUGE.bytes() as u64;

    /// A file as far as space goes: which of its 2 MiB have theirs, and whether the disk is full.
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

        fn fd(&self) -> Option<RawFd> {
            None
        }

        fn name(&self) -> String {
            "sparse".into()
        }
    }

    fn sparse() -> (Attached, Arc<Disk>) {
        let disk = Arc::<Disk>::default();
        let layout = Layout { most_slots: 1 << 27, nr_cpus: 2, rotational: None };
        (Attached::new(Box::new(Sparse(Arc::clone(&disk))), "sparse".into(), layout), disk)
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
        let told = slots.drain(100..).filter(|&slot| attached.free(slot, Order::HUGE)).count();
        assert_eq!(told, 1, "the reclaim thread is told once");
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
        attached.free(slots.pop().unwrap(), Order::HUGE);
        slots.extend(std::iter::from_fn(take));
        assert_eq!(slots.len(), 400);
        attached.clusters.verify();
    }

    #[test]
    fn little_is_not_given_back() {
        let (attached, _disk) = sparse();
        let slots: Vec<_> = (0..300).filter_map(|_| attached.allocate(CpuId::new(0), Order::HUGE)).collect();
        assert!(!slots[..150].iter().any(|&slot| attached.free(slot, Order::HUGE)), "as much is used");
        assert!(attached.free(slots[150], Order::HUGE) && attached.nr_spare() == 151);
        attached.mark_bad(slots[160], Order::HUGE);
        assert_eq!(attached.nr_used(), 148 * Order::HUGE.nr_pages());
    }
}
