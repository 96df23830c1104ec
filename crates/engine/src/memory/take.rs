//! Takes frames without waiting: free ones, or those of clean folios, whose copies stay on their devices.
//!
//! A thread that takes frames may hold one block's lock. Other blocks are only tried for.

use folioswap_core::{CpuId, List, Locked, Memory, Order, Size, Taken, Zone};

use crate::memory::oldest::{OldestFolios, SCAN, older_class};
use crate::memory::ram::Ram;
use crate::memory::table::Table;
use crate::process::cpu::current_cpu;

impl Ram {
    /// Contiguous free frames, or those of the oldest clean folio. `reserve` frames stay available.
    pub fn try_take(&self, table: &Table, order: Order, reserve: usize) -> Option<Taken> {
        self.try_take_near(table, current_cpu(), order, reserve)
    }

    /// As [`Ram::try_take`], for use on another CPU: from that CPU's zone if possible.
    pub fn try_take_near(&self, table: &Table, cpu: CpuId, order: Order, reserve: usize) -> Option<Taken> {
        if reserve == 0
            && let Some(taken) = self.zones.take_listed(cpu, order)
        {
            return Some(taken); // from the CPU's own list
        }
        let zone = self.zones.on(cpu);
        let available = zone.available();
        if available <= zone.watermarks().low + zone.kept_whole() * Order::HUGE.nr_pages() {
            self.reclaim_wanted().signal();
        }
        let wanted = reserve + order.nr_pages();
        if available < wanted && self.zones.available() < wanted {
            return None;
        }
        for _ in 0..SCAN {
            let taken = self.note_taken(self.zones.take_on(cpu, order));
            if taken.is_some() || !self.evict_standby_near(table, cpu, order) {
                return taken;
            }
        }
        None
    }

    /// As [`Ram::try_take`], in one zone.
    pub fn try_take_in(&self, table: &Table, zone: &Zone, order: Order, reserve: usize) -> Option<Taken> {
        if zone.available() < reserve + order.nr_pages() {
            return None;
        }
        for _ in 0..SCAN {
            let taken = self.take_now_in(zone, order);
            if taken.is_some() || !self.evict_standby_of(table, zone, order) {
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

    /// Evicts a clean folio that helps a folio of this order, the oldest of the CPU's zone or else of another. Its copy
    /// stays on the device. Zones over their budget come last, because evicting there frees nothing for others.
    fn evict_standby_near(&self, table: &Table, cpu: CpuId, order: Order) -> bool {
        if let [only] = self.zones.all() {
            return self.evict_standby_of(table, only, order);
        }
        let zones = |in_excess: bool| self.zones.near(cpu).filter(move |zone| (zone.excess() > 0) == in_excess);
        zones(false).chain(zones(true)).any(|zone| self.evict_standby_of(table, zone, order))
    }

    /// As [`Ram::evict_standby_of`], in any zone.
    #[cfg(test)]
    pub fn evict_standby(&self, table: &Table, order: Order) -> bool {
        self.evict_standby_near(table, current_cpu(), order)
    }

    /// As [`Ram::evict_standby_near`], in one zone.
    pub fn evict_standby_of(&self, table: &Table, zone: &Zone, order: Order) -> bool {
        let size = match Size::of(order) {
            Size::Whole => Some(Size::Whole),
            Size::Small => older_class(zone, List::Clean),
        };
        let Some(size) = size else { return false };
        let mut oldest = OldestFolios::new(table, zone, size, List::Clean);
        let Some((locked, index, _)) = oldest.next() else { return false };
        self.leave(locked, index);
        true
    }

    /// Frees the frames of a clean folio. Its copy stays on the device.
    pub fn leave(&self, locked: &mut Locked<'_>, index: usize) {
        assert!(locked.folio(index).slot().is_some(), "a folio leaves RAM once a device holds it");
        let frame = locked.frame(index);
        locked.folio_mut(index).set_out();
        locked.left_at = self.note_evicted(locked.order().nr_pages());
        self.release(frame);
    }
}
