//! Frames for a folio: free frames, those of clean folios, or frames from direct reclaim.
//!
//! A thread that needs a frame may hold one block's lock. Other blocks are only tried for.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use folioswap_core::{
    Contiguity, CpuId, FrameId, List, Locked, Memory, Oldest, Order, PAGE_SIZE, PIECE, Phase, Size, Taken, Zone,
};

use crate::engine::Engine;
use crate::memory::frames::Prepared;
use crate::memory::mapper::MapError;
use crate::process::cpu::current_cpu;
use crate::process::fatal;
use crate::process::stopwatch::Stopwatch;

/// Folios examined in one search of a list. Busy ones are skipped, never waited for.
pub(crate) const SCAN: usize = 64;

/// How long a thread waits without any frame being freed before it looks for the reason.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How long a thread waits for the reclaim threads to start compressing before it does so itself, and how long at most
/// for them to finish.
const COMPRESSING: Duration = Duration::from_millis(1);
const MOST_COMPRESSING: Duration = Duration::from_millis(20);

/// Pageblocks that keep small pages after the kernel had no huge page, before it is asked again.
const NOT_TRIED: usize = 32;

impl Engine {
    /// Takes frames for a folio of this order. Reclaims directly if there are none, and ends the program if none can be
    /// had. `None`: no contiguous frames can be had now, and smaller folios are to be taken instead.
    pub fn take_frame(&self, order: Order, watch: &mut Stopwatch<'_>) -> Option<Taken> {
        let mut begun: Option<Instant> = None;
        let mut freed = self.frame_freed.now();
        let mut nr_late = 0;
        loop {
            let before = std::mem::replace(&mut freed, self.frame_freed.now());
            if freed != before {
                begun = begun.map(|_| Instant::now()); // other threads took the frames, but there is progress
            }
            if let Some(taken) = self.try_take_frame(order, 0) {
                return Some(taken);
            }
            if self.give_stock_back() {
                continue;
            }
            let contiguity = self.zones.contiguity(order);
            if contiguity == Contiguity::Run && nr_late < SCAN {
                nr_late += 1;
                continue; // frames were freed after this thread looked
            }
            if self.are_scattered(order, contiguity) {
                watch.long_part(Phase::Frame);
                let compacted = if order == Order::HUGE { self.compact_directly() } else { None };
                watch.lap(Phase::Reclaim);
                return compacted;
            }
            let waiting = begun.get_or_insert_with(|| {
                self.stats.direct_reclaims.add(1);
                Instant::now()
            });
            if waiting.elapsed() > self.patience {
                self.wait_for_devices_or_end(freed);
                begun = None;
            }
            watch.long_part(Phase::Frame);
            let reclaimed = self.await_compressed(freed) || self.reclaim_directly(order);
            watch.lap(Phase::Reclaim);
            if !reclaimed {
                if order == Order::HUGE && self.zones.class_counts(Size::Small).in_use() > 0 {
                    return None;
                }
                self.zones.keep_whole(0); // nothing else is left
                self.frame_freed.wait_for(freed, Duration::from_millis(2));
            }
        }
    }

    /// Whether there are enough frames for a folio of this order, but not contiguous ones. `contiguity` is a snapshot
    /// of one moment. More frames may have been freed since this thread got none, which is no reason to split a folio.
    fn are_scattered(&self, order: Order, contiguity: Contiguity) -> bool {
        let wanted = self.zones.watermarks().low.max(order.nr_pages());
        match contiguity {
            _ if order == Order::PAGE => false,
            Contiguity::Pieces => self.zones.available() >= wanted,
            // Frames of small folios on standby are scattered too.
            Contiguity::Few => order == Order::HUGE && self.zones.class_counts(Size::Small).clean >= wanted,
            Contiguity::Run => false,
        }
    }

    /// Leaves compression to the reclaim threads, and waits for the first frame that they free. `false`: no device
    /// compresses, no thread is compressing now, or it takes too long. While another thread forks, the reclaim threads
    /// wait for threads that are in a fault, as this one is.
    fn await_compressed(&self, freed: u32) -> bool {
        if !self.space.compresses() {
            return false;
        }
        self.reclaim_wanted.signal();
        let begun = Instant::now();
        loop {
            self.frame_freed.wait_for(freed, COMPRESSING);
            if self.frame_freed.now() != freed {
                return true;
            }
            if !self.space.is_compressing() || begun.elapsed() > MOST_COMPRESSING {
                return false;
            }
        }
    }

    /// Asks the compaction thread for contiguous frames: a whole folio found none.
    pub fn want_whole(&self) {
        self.whole_wanted.fetch_add(1, Ordering::Relaxed);
        self.compactor.wanted.signal();
    }

    /// Handles a long wait without a freed frame; `freed` is the count of `frame_freed`, unchanged for that long. Waits
    /// for devices with I/O in flight as long as they take (an NVMe disk takes 30 s to report that it is stuck), and
    /// says that once. Otherwise ends the program, unless copies can be given up.
    fn wait_for_devices_or_end(&self, freed: u32) {
        let Some(devices) = self.space.describe_in_flight() else {
            return if !self.shed_all_copies() {
                self.give_up()
            };
        };
        if self.stall_said.swap(u64::from(freed) + 1, Ordering::Relaxed) != u64::from(freed) + 1 {
            let waited = self.patience.as_secs();
            fatal::say(&format!("no memory was freed for {waited} s: waiting for {devices}"));
        }
    }

    /// Ends the program: it needs a frame, and none can be had.
    fn give_up(&self) -> ! {
        let memory = crate::config::size::Bytes(self.memory.load(Ordering::Relaxed));
        let mapped = crate::config::size::Bytes((self.nr_mapped.load(Ordering::Relaxed) * PAGE_SIZE) as u64);
        let in_use = format!("all {memory} of RAM in use ({mapped} of it mapped)");
        match self.space.allocate(current_cpu(), Order::PAGE) {
            None => fatal::die(&format!(
                "out of memory: {} and {in_use}; give more --memory, or more or larger --swap",
                self.space.describe_full()
            )),
            Some(_) => {
                let waited = self.patience.as_secs();
                fatal::die(&format!(
                    "out of memory: {in_use}, and none could be freed for {waited} s; give more --memory, or more or larger --swap"
                ))
            }
        }
    }

    /// Contiguous free frames, or those of the oldest clean folio. `reserve` frames stay available.
    pub fn try_take_frame(&self, order: Order, reserve: usize) -> Option<Taken> {
        self.try_take_frame_near(current_cpu(), order, reserve)
    }

    /// As [`Engine::try_take_frame`], for use on another CPU: from that CPU's zone if possible.
    pub fn try_take_frame_near(&self, cpu: CpuId, order: Order, reserve: usize) -> Option<Taken> {
        if reserve == 0
            && let Some(taken) = self.zones.take_listed(cpu, order)
        {
            return Some(taken); // from the CPU's own list
        }
        let zone = self.zones.on(cpu);
        let available = zone.available();
        if available <= zone.watermarks().low + zone.kept_whole() * Order::HUGE.nr_pages() {
            self.reclaim_wanted.signal();
        }
        let wanted = reserve + order.nr_pages();
        if available < wanted && self.zones.available() < wanted {
            return None;
        }
        for _ in 0..SCAN {
            let taken = self.note_taken(self.zones.take_on(cpu, order));
            if taken.is_some() || !self.evict_standby_near(cpu, order) {
                return taken;
            }
        }
        None
    }

    /// As [`Engine::try_take_frame`], in one zone.
    pub fn try_take_frame_in(&self, zone: &Zone, order: Order, reserve: usize) -> Option<Taken> {
        if zone.available() < reserve + order.nr_pages() {
            return None;
        }
        for _ in 0..SCAN {
            let taken = self.take_now_in(zone, order);
            if taken.is_some() || !self.evict_standby_of(zone, order) {
                return taken;
            }
        }
        None
    }

    /// Contiguous frames of a zone that are free now.
    pub fn take_now_in(&self, zone: &Zone, order: Order) -> Option<Taken> {
        self.note_taken(zone.take_on(current_cpu(), order))
    }

    fn note_taken(&self, taken: Option<Taken>) -> Option<Taken> {
        if taken.is_some_and(|taken| taken.memory == Memory::Absent) {
            self.note_resident();
        }
        taken
    }

    /// Gives memory of the right kind to frames that were taken for a folio of this order.
    pub fn prepare(&self, taken: Taken, order: Order) -> Prepared<'_> {
        let frame = self.give_memory(taken, order);
        // SAFETY: the caller took the frames from the zone and hands them over here. They have just been given memory.
        unsafe { self.frames.prepared(frame, order) }
    }

    fn give_memory(&self, taken: Taken, order: Order) -> FrameId {
        if order == Order::HUGE {
            if self.settle_memory(taken).is_none() {
                self.patiently("made", || self.populate_huge(taken.frame));
            }
            return taken.frame;
        }
        if taken.memory == Memory::Small && taken.order == order {
            return taken.frame;
        }
        self.make_small(taken);
        let frame = self.zones.of(taken.frame).carve(taken.frame, order);
        self.frame_freed.signal();
        frame
    }

    /// Decides about the memory of a pageblock that was taken whole. `Some`: whether it has a huge page now; it keeps
    /// small pages if the kernel has no huge one. `None`: it has no memory now, and needs [`Engine::populate_huge`].
    fn settle_memory(&self, taken: Taken) -> Option<bool> {
        let frame = taken.frame;
        match taken.memory {
            Memory::Huge => return Some(true),
            Memory::Absent => return None,
            Memory::Small if self.frames.is_locked() => return Some(self.collapse_in_place(frame)),
            Memory::Small => {}
        }
        let one_less = |nr_left: usize| nr_left.checked_sub(1);
        if self.huge_pages_short.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            self.zones.of(frame).carve(frame, Order::HUGE);
            return Some(false);
        }
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        unsafe { self.frames.unpopulate(frame) };
        None
    }

    /// Gives a huge page to a pageblock without memory. `false`: it got small pages, because the kernel had no huge
    /// page.
    fn populate_huge(&self, frame: FrameId) -> Result<bool, MapError> {
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        let is_huge = unsafe { self.mapper.populate(self.frames.home(frame)) }?;
        if !is_huge {
            self.note_small(frame);
        }
        Ok(is_huge)
    }

    /// Gives a huge page to a pageblock that was taken whole, ahead of demand. If there is no memory, the pageblock
    /// goes back to the zone without. Returns whether it got a huge page.
    pub fn try_make_huge(&self, taken: Taken) -> bool {
        match self.settle_memory(taken).map_or_else(|| self.populate_huge(taken.frame), Ok) {
            Ok(true) => return true,
            Ok(false) => self.release_frame(taken.frame),
            Err(_) => {
                self.zones.of(taken.frame).give_unpopulated(taken.frame);
                self.note_resident();
            }
        }
        false
    }

    /// Notes that a pageblock that the caller holds got small pages instead of a huge page.
    pub fn note_small(&self, frame: FrameId) {
        self.stats.thp_fault_fallback.add(1);
        self.huge_pages_short.store(NOT_TRIED, Ordering::Relaxed);
        self.zones.of(frame).carve(frame, Order::HUGE);
    }

    /// Gives small pages to a pageblock that was taken whole.
    fn make_small(&self, taken: Taken) {
        // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
        if taken.memory == Memory::Huge && self.frames.is_locked() && unsafe { self.divide_in_place(taken.frame) } {
            return;
        }
        if taken.memory != Memory::Absent {
            // SAFETY: the caller took the whole pageblock from its zone, so nobody else uses it.
            unsafe { self.frames.unpopulate(taken.frame) };
        }
        // SAFETY: as above.
        self.patiently("made", || unsafe { self.mapper.populate_small(self.frames.home(taken.frame)) });
    }

    /// Takes frames for the folio of a locked block that holds a page and is not in RAM. Splits the block until
    /// contiguous frames are found. Returns the folio's index after that.
    pub fn supply(&self, locked: &mut Locked<'_>, page: usize, watch: &mut Stopwatch<'_>) -> (usize, Taken) {
        loop {
            let order = locked.order();
            if let Some(taken) = self.take_frame(order, watch) {
                return (locked.index_of(page), taken);
            }
            self.stats.swpin_fallback.add(order, 1);
            if order == Order::HUGE {
                self.want_whole();
            }
            self.split_block(locked, if order > PIECE { PIECE } else { Order::PAGE });
        }
    }

    /// Evicts a clean folio that helps a folio of this order, the oldest of the CPU's zone or else of another. Its copy
    /// stays on the device. Zones over their budget come last, because evicting there frees nothing for others.
    fn evict_standby_near(&self, cpu: CpuId, order: Order) -> bool {
        if let [only] = self.zones.all() {
            return self.evict_standby_of(only, order);
        }
        let zones = |in_excess: bool| self.zones.near(cpu).filter(move |zone| (zone.excess() > 0) == in_excess);
        zones(false).chain(zones(true)).any(|zone| self.evict_standby_of(zone, order))
    }

    /// As [`Engine::evict_standby_of`], in any zone.
    #[cfg(test)]
    pub fn evict_standby(&self, order: Order) -> bool {
        self.evict_standby_near(current_cpu(), order)
    }

    /// As [`Engine::evict_standby_near`], in one zone.
    pub fn evict_standby_of(&self, zone: &Zone, order: Order) -> bool {
        let oldest = |size| zone.oldest(size, List::Clean);
        let size = match Size::of(order) {
            Size::Whole => Size::Whole,
            Size::Small => match older_of(oldest(Size::Whole), oldest(Size::Small)) {
                Some(size) => size,
                None => return false,
            },
        };
        for _ in 0..SCAN {
            let Some(oldest) = oldest(size) else { return false };
            let Some(mut locked) = self.try_lock(oldest.folio.block()) else {
                self.zones.of(oldest.frame).rotate(oldest.frame, List::Clean);
                continue;
            };
            if let Some(index) = self.still_there(&locked, &oldest, List::Clean) {
                self.leave(&mut locked, index, oldest.frame);
                return true;
            }
        }
        false
    }

    /// Frees the frames of a clean folio. Its copy stays on the device.
    pub fn leave(&self, locked: &mut Locked<'_>, index: usize, frame: FrameId) {
        let pages = locked.order().nr_pages() as u32;
        assert!(locked.folio(index).slot().is_some(), "a folio leaves RAM once a device holds it");
        locked.folio_mut(index).set_out();
        locked.left_at = self.nr_evictions.fetch_add(pages, Ordering::Relaxed);
        self.release_frame(frame);
    }

    /// The index of a folio that was found on a list before its block was locked, if it is still there.
    pub fn still_there(&self, locked: &Locked<'_>, oldest: &Oldest, list: List) -> Option<usize> {
        let index = locked.index_of(oldest.folio.page_in_block());
        let there = locked.order() == oldest.order
            && locked.folio(index).frame() == Some(oldest.frame)
            && self.zones.of(oldest.frame).list(oldest.frame) == Some(list);
        there.then_some(index)
    }
}

/// The class whose oldest folio on a list of a zone is older.
pub(crate) fn older_class(zone: &Zone, list: List) -> Option<Size> {
    older_of(zone.oldest(Size::Whole, list), zone.oldest(Size::Small, list))
}

/// The class of the older of two folios.
fn older_of(whole: Option<Oldest>, small: Option<Oldest>) -> Option<Size> {
    match (whole, small) {
        (Some(whole), Some(small)) => Some(if small.age > whole.age { Size::Small } else { Size::Whole }),
        (Some(_), None) => Some(Size::Whole),
        (None, Some(_)) => Some(Size::Small),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::region::ArenaVec;
    use crate::config::fault_mode::FaultMode;
    use crate::device::DeviceSpec;

    /// With folios of one size only, free frames are never in pieces too small for one. No folio is split, whatever
    /// races there are between threads that take frames and the thread that frees them.
    #[test]
    fn folios_of_one_size_are_never_split_for_want_of_frames() {
        for order in [Order::new(2).unwrap(), PIECE, Order::HUGE] {
            let device = DeviceSpec::Ram { size: 96 << 20 };
            let builder = Arena::builder().memory(22 << 20).address_space(1 << 30).faults(FaultMode::Direct);
            let arena = builder.device(device).folio(order).build().unwrap();
            let mut bytes = ArenaVec::<u8>::zeroed(&arena, 48 << 20).unwrap();
            for round in 0..3 {
                std::thread::scope(|scope| {
                    for part in bytes.chunks_mut(24 << 20) {
                        let add = |byte: &mut u8| *byte = byte.wrapping_add(1);
                        scope.spawn(move || part.iter_mut().step_by(PAGE_SIZE).for_each(add));
                    }
                });
                assert!(bytes.iter().step_by(PAGE_SIZE).all(|&byte| byte == round + 1));
            }
            let stats = arena.engine().stats.snapshot();
            let by_order = |name| stats.by_order().find(|(known, _)| *known == name).unwrap().1;
            let swapped_in = by_order("swpin");
            assert_eq!((by_order("swpin_fallback"), by_order("split")), ([0; 10], [0; 10]), "{order}: {swapped_in:?}");
            let of_order = swapped_in[usize::from(order.exponent())];
            assert!(of_order > 0 && of_order == swapped_in.iter().sum::<u64>(), "{order}: {swapped_in:?}");
        }
    }
}
