//! The zones of all NUMA nodes. Frames are numbered across the zones.
//!
//! A thread takes frames from the zone of the CPU that it runs on, or else from the following zones in circular order.
//! The limit is divided equally. Each zone is reclaimed separately, so that every node gets free frames again; a thread
//! does not wait for that while another zone has frames.
//!
//! **Locking.** That of each zone; no two zones are locked at the same time.

use super::buddy::{BLOCK, Taken};
use super::counts::{Contiguity, ZoneCounts};
#[cfg(doc)]
use super::pageblocks::Pageblocks;
use super::percpu::SHARE;
use super::zone::Zone;
use crate::id::{CpuId, FolioId, FrameId};
use crate::order::Order;

/// All zones of an arena.
#[derive(Debug)]
pub struct Zones {
    zones: Box<[Zone]>,
    nr_pageblocks_each: usize,
    /// The zone of each CPU. CPUs beyond the table use the first zone.
    zone_of_cpu: Box<[usize]>,
}

impl Zones {
    /// `nr_zones` zones with `nr_pageblocks_max` pageblocks together, rounded up to equal shares. `zone_of_cpu` is
    /// indexed by CPU number. Each zone has lists for `nr_cpus` CPUs.
    pub fn new(nr_pageblocks_max: usize, nr_zones: usize, nr_cpus: usize, zone_of_cpu: Box<[usize]>) -> Zones {
        assert!(nr_zones > 0 && zone_of_cpu.iter().all(|&zone| zone < nr_zones), "each CPU is on one of the zones");
        let each = nr_pageblocks_max.div_ceil(nr_zones);
        let zone = |index: usize| Zone::new(index * each..(index + 1) * each, nr_cpus, SHARE);
        Zones { zones: (0..nr_zones).map(zone).collect(), nr_pageblocks_each: each, zone_of_cpu }
    }

    /// How many of `nr_pageblocks` go to the zone at `index` of `nr_zones`: equal shares, with the remainder spread
    /// over the first zones.
    pub fn share(nr_pageblocks: usize, nr_zones: usize, index: usize) -> usize {
        nr_pageblocks / nr_zones + usize::from(index < nr_pageblocks % nr_zones)
    }

    /// All zones.
    pub fn all(&self) -> &[Zone] {
        &self.zones
    }

    /// The index of a frame's zone in [`Zones::all`].
    pub fn index_of(&self, frame: FrameId) -> usize {
        match &*self.zones {
            [_] => 0,
            _ => frame.index() / (self.nr_pageblocks_each * BLOCK),
        }
    }

    /// The zone of a frame.
    pub fn of(&self, frame: FrameId) -> &Zone {
        &self.zones[self.index_of(frame)]
    }

    fn index_on(&self, cpu: CpuId) -> usize {
        self.zone_of_cpu.get(cpu.index()).copied().unwrap_or(0)
    }

    /// The zone of a CPU.
    pub fn on(&self, cpu: CpuId) -> &Zone {
        &self.zones[self.index_on(cpu)]
    }

    /// The zone of a CPU first, then the others.
    pub fn near(&self, cpu: CpuId) -> impl Iterator<Item = &Zone> {
        let (before, from) = self.zones.split_at(self.index_on(cpu));
        from.iter().chain(before)
    }

    /// [`Zone::take_listed`] in the zone of a CPU.
    pub fn take_listed(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        self.on(cpu).take_listed(cpu, order)
    }

    /// [`Zone::take_on`] in the first zone that has frames, the CPU's own first.
    pub fn take_on(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        self.near(cpu).find_map(|zone| zone.take_on(cpu, order))
    }

    /// Divides a limit between the zones, in whole pageblocks ([`Zone::set_limit`]).
    pub fn set_limit(&self, nr_frames: usize) {
        for (index, zone) in self.zones.iter().enumerate() {
            zone.set_limit(Zones::share(nr_frames / BLOCK, self.zones.len(), index) * BLOCK);
        }
    }

    /// Keeps at least this many wholly free pageblocks for whole folios, equally many in each zone
    /// ([`Zone::keep_whole`]).
    pub fn keep_whole(&self, nr_pageblocks: usize) {
        let each = nr_pageblocks.div_ceil(self.zones.len());
        self.zones.iter().for_each(|zone| zone.keep_whole(each));
    }

    /// Frames that the zones can ever have.
    pub fn nr_frames_max(&self) -> usize {
        self.zones.len() * self.nr_pageblocks_each * BLOCK
    }

    /// The sum of [`Zone::bytes`].
    pub fn bytes(&self) -> usize {
        self.zones.iter().map(Zone::bytes).sum()
    }

    /// A pageblock without memory, from the first zone that has one ([`Pageblocks::take_absent`]).
    pub fn take_absent(&self) -> Option<FrameId> {
        self.zones.iter().find_map(|zone| zone.pageblocks().take_absent())
    }

    /// The sum of [`Zone::counts`].
    pub fn counts(&self) -> ZoneCounts {
        self.zones.iter().map(Zone::counts).reduce(ZoneCounts::plus).expect("there is a zone")
    }

    /// The best [`Zone::contiguity`] of any zone.
    pub fn contiguity(&self, order: Order) -> Contiguity {
        self.zones.iter().map(|zone| zone.contiguity(order)).max().expect("there is a zone")
    }

    /// [`Zone::drain`] for each zone.
    pub fn drain(&self) {
        self.zones.iter().for_each(Zone::drain);
    }

    /// [`Pageblocks::all_folios`] of one zone after the other.
    pub fn all_folios(&self) -> impl Iterator<Item = (FrameId, FolioId, Order)> + '_ {
        self.zones.iter().flat_map(|zone| zone.pageblocks().all_folios())
    }

    /// [`Zone::verify`] for each zone.
    pub fn verify(&self) {
        self.zones.iter().for_each(Zone::verify);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::lists::List;
    use super::*;
    use crate::order::Order;

    const CPUS: [CpuId; 4] = [CpuId::new(0), CpuId::new(1), CpuId::new(2), CpuId::new(3)];

    /// Three zones that share this limit in pageblocks. CPU 1 is on the second, CPU 2 on the third, the others on the
    /// first.
    fn zones(limit: usize) -> Zones {
        let zones = Zones::new(24, 3, 4, Box::new([0, 1, 2]));
        zones.set_limit(limit * BLOCK);
        zones
    }

    /// Takes a folio as the engine does, and returns its zone's index with it.
    fn take(zones: &Zones, cpu: CpuId, order: Order, list: List) -> Option<(FrameId, usize)> {
        let taken = zones.take_on(cpu, order)?;
        let zone = zones.of(taken.frame);
        let frame = if taken.order == order { taken.frame } else { zone.carve(taken.frame, order) };
        zone.set_owner(frame, FolioId::new(frame.get().into()));
        zone.insert(frame, list);
        Some((frame, zones.index_of(frame)))
    }

    #[test]
    fn frames_are_taken_in_the_zone_of_the_cpu_and_then_in_the_others_by_turns() {
        let zones = zones(7);
        let limits: Vec<_> = zones.all().iter().map(|zone| zone.counts().limit / BLOCK).collect();
        assert_eq!(limits, [3, 2, 2]);
        let mut places = Vec::new();
        while let Some((_, place)) = take(&zones, CPUS[1], Order::HUGE, List::Active) {
            places.push(place);
        }
        assert_eq!(places, [1, 1, 2, 2, 0, 0, 0]);
        zones.verify();
        let folios: Vec<_> = zones.all_folios().map(|(frame, _, _)| frame).collect();
        assert_eq!((folios.len(), zones.counts().in_use, zones.counts().available()), (7, 7 * BLOCK, 0));
        assert!(folios.is_sorted() && folios.iter().all(|&frame| zones.of(frame).owner(frame).is_some()));
        for frame in folios {
            zones.of(frame).give(frame);
        }
        zones.verify();
        for (cpu, expected) in [(CPUS[0], 0), (CPUS[2], 2), (CPUS[3], 0)] {
            let (_, place) = take(&zones, cpu, Order::PAGE, List::Active).unwrap();
            assert_eq!(place, expected, "on {cpu:?}");
        }
        zones.verify();
    }

    #[test]
    fn a_zone_needs_frames_by_its_own_watermarks_and_always_if_it_has_nothing() {
        let shortage = |zone: &Zone| zone.counts().shortage(zone.counts().watermarks.high);
        let large = zones(24);
        for _ in 0..6 {
            take(&large, CPUS[1], Order::HUGE, List::Inactive).unwrap();
        }
        assert_eq!(large.all().iter().map(|zone| shortage(zone) / BLOCK).collect::<Vec<_>>(), [0, 1, 0]);
        let small = zones(9);
        while take(&small, CPUS[1], Order::PAGE, List::Inactive).is_some_and(|(_, place)| place == 1) {}
        let zone = &small.all()[1];
        assert_eq!((zone.counts().watermarks.high, zone.counts().available(), shortage(zone)), (21, 0, 21));
    }

    #[test]
    fn a_smaller_limit_is_each_zones() {
        let zones = zones(24);
        let held: Vec<_> = (0..8).filter_map(|_| take(&zones, CPUS[2], Order::HUGE, List::Active)).collect();
        assert!(held.iter().all(|&(_, place)| place == 2));
        zones.set_limit(12 * BLOCK);
        // The other zones have room for all of it, but this zone has to shrink all the same.
        assert_eq!((zones.counts().excess, zones.counts().surplus), (4 * BLOCK, 4 * BLOCK));
        assert_eq!(take(&zones, CPUS[2], Order::HUGE, List::Active).unwrap().1, 0);
    }
}
