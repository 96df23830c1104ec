//! The zones of all NUMA nodes, whose frames are numbered through.
//!
//! Who needs frames takes them in the zone of the CPU that it runs on, or else in the others, by turns from there. The limit
//! is divided equally. Each zone is reclaimed by itself, so that there are some on each node again; a thread does not wait for
//! that while others have any.
//!
//! **Locking.** That of each zone; no two zones are locked at the same time.

use super::buddy::{BLOCK, Taken};
use super::counts::{ClassCounts, Contiguity, Watermarks, ZoneCounts};
use super::lists::Size;
use super::percpu::SHARE;
use super::zone::Zone;
use crate::id::{CpuId, FolioId, FrameId};
use crate::order::Order;

/// All zones of an arena.
#[derive(Debug)]
pub struct Zones {
    zones: Box<[Zone]>,
    nr_pageblocks_each: usize,
    /// The zone of each CPU; of others, the first.
    zone_of_cpu: Box<[usize]>,
}

impl Zones {
    /// `nr_zones` zones with at most `nr_pageblocks_max` pageblocks together (a few more, for equal shares). `zone_of_cpu` has the
    /// zone of each CPU, by its number; `nr_cpus` of them have lists of their own in each zone, as [`Zone::with_cpus`] has it.
    pub fn new(nr_pageblocks_max: usize, nr_zones: usize, nr_cpus: usize, zone_of_cpu: Box<[usize]>) -> Zones {
        assert!(nr_zones > 0 && zone_of_cpu.iter().all(|&zone| zone < nr_zones), "each CPU is on one of the zones");
        let each = nr_pageblocks_max.div_ceil(nr_zones);
        let zone = |index: usize| Zone::beginning_at(index * each, each, nr_cpus, SHARE);
        Zones { zones: (0..nr_zones).map(zone).collect(), nr_pageblocks_each: each, zone_of_cpu }
    }

    /// How many of `nr_pageblocks` the zone at a place of `nr_zones` has: equal shares, the first ones one more where that does not
    /// come out even.
    pub fn share(nr_pageblocks: usize, nr_zones: usize, index: usize) -> usize {
        nr_pageblocks / nr_zones + usize::from(index < nr_pageblocks % nr_zones)
    }

    /// Each of them.
    pub fn all(&self) -> &[Zone] {
        &self.zones
    }

    /// The place of the zone of a frame among [`Zones::all`].
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

    /// That of a CPU first, then the others.
    pub fn near(&self, cpu: CpuId) -> impl Iterator<Item = &Zone> {
        let (before, from) = self.zones.split_at(self.index_on(cpu));
        from.iter().chain(before)
    }

    /// [`Zone::take_listed`] near a CPU.
    pub fn take_listed(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        self.on(cpu).take_listed(cpu, order)
    }

    /// [`Zone::take_on`], as near to a CPU as there are some.
    pub fn take_on(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        self.near(cpu).find_map(|zone| zone.take_on(cpu, order))
    }

    /// Divides a limit between the zones, in whole pageblocks ([`Zone::set_limit`]).
    pub fn set_limit(&self, nr_frames: usize) {
        for (index, zone) in self.zones.iter().enumerate() {
            zone.set_limit(Zones::share(nr_frames / BLOCK, self.zones.len(), index) * BLOCK);
        }
    }

    /// How many wholly free pageblocks are kept for whole folios ([`Zone::keep_whole`]): so many at least, as many in each zone.
    pub fn keep_whole(&self, nr_pageblocks: usize) {
        let each = nr_pageblocks.div_ceil(self.zones.len());
        self.zones.iter().for_each(|zone| zone.keep_whole(each));
    }

    fn sum(&self, of_zone: impl Fn(&Zone) -> usize) -> usize {
        self.zones.iter().map(of_zone).sum()
    }

    /// Frames that the zones can ever have.
    pub fn nr_frames_max(&self) -> usize {
        self.sum(Zone::nr_frames_max)
    }

    /// Frames in use beyond the limits of their zones.
    pub fn excess(&self) -> usize {
        self.sum(Zone::excess)
    }

    /// [`Zone::surplus`] of all.
    pub fn surplus(&self) -> usize {
        self.sum(Zone::surplus)
    }

    /// [`Zone::populated`] of all.
    pub fn populated(&self) -> usize {
        self.sum(Zone::populated)
    }

    /// [`Zone::available`] of all.
    pub fn available(&self) -> usize {
        self.sum(Zone::available)
    }

    /// [`Zone::bytes`] of all.
    pub fn bytes(&self) -> usize {
        self.sum(Zone::bytes)
    }

    /// A pageblock without memory of any zone ([`Zone::take_absent`]).
    pub fn take_absent(&self) -> Option<FrameId> {
        self.zones.iter().find_map(Zone::take_absent)
    }

    /// What is in all of them.
    pub fn counts(&self) -> ZoneCounts {
        self.zones.iter().map(Zone::counts).reduce(ZoneCounts::plus).unwrap_or_default()
    }

    /// [`Zone::class_counts`] of all.
    pub fn class_counts(&self, size: Size) -> ClassCounts {
        self.zones.iter().map(|zone| zone.class_counts(size)).reduce(ClassCounts::plus).unwrap_or_default()
    }

    /// [`Zone::room`] where there is most.
    pub fn contiguity(&self, order: Order) -> Contiguity {
        self.zones.iter().map(|zone| zone.contiguity(order)).max().expect("there is a zone")
    }

    /// The sums of the zones' watermarks.
    pub fn watermarks(&self) -> Watermarks {
        self.zones.iter().map(Zone::watermarks).reduce(Watermarks::plus).expect("there is a zone")
    }

    /// [`Zone::drain`] of all.
    pub fn drain(&self) {
        self.zones.iter().for_each(Zone::drain);
    }

    /// [`Zone::all_folios`] of one after the other.
    pub fn all_folios(&self) -> impl Iterator<Item = (FrameId, FolioId, Order)> + '_ {
        self.zones.iter().flat_map(Zone::all_folios)
    }

    /// [`Zone::verify`] of each.
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

    /// Three zones with these limits in pageblocks; CPU 1 is on the second, CPU 2 on the third, the others on the first.
    fn zones(limit: usize) -> Zones {
        let zones = Zones::new(24, 3, 4, Box::new([0, 1, 2]));
        zones.set_limit(limit * BLOCK);
        zones
    }

    /// Takes a folio as the engine does, and says in which zone it is.
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
        assert_eq!((folios.len(), zones.counts().in_use, zones.available()), (7, 7 * BLOCK, 0));
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
        let large = zones(24);
        for _ in 0..6 {
            take(&large, CPUS[1], Order::HUGE, List::Inactive).unwrap();
        }
        assert_eq!(large.all().iter().map(|zone| zone.shortage() / BLOCK).collect::<Vec<_>>(), [0, 1, 0]);
        let small = zones(9);
        while take(&small, CPUS[1], Order::PAGE, List::Inactive).is_some_and(|(_, place)| place == 1) {}
        let zone = &small.all()[1];
        assert_eq!((zone.watermarks().high, zone.available(), zone.shortage()), (0, 0, 1));
    }

    #[test]
    fn a_smaller_limit_is_each_zones() {
        let zones = zones(24);
        let held: Vec<_> = (0..8).filter_map(|_| take(&zones, CPUS[2], Order::HUGE, List::Active)).collect();
        assert!(held.iter().all(|&(_, place)| place == 2));
        zones.set_limit(12 * BLOCK);
        // There would be room for all of it in the other zones: it has to leave this one all the same.
        assert_eq!((zones.excess(), zones.surplus()), (4 * BLOCK, 4 * BLOCK));
        assert_eq!(take(&zones, CPUS[2], Order::HUGE, List::Active).unwrap().1, 0);
    }
}
