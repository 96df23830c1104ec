//! Divides the budget into zones: one for each NUMA node that has CPUs.
//!
//! On a machine with several nodes, the memory of a zone's frames is bound to its node; under a stated topology nothing
//! is bound. A budget too small for all nodes has fewer zones, each of several nodes and bound to none.

use folioswap_core::{CpuId, NodeId, Zones};
use folioswap_sys::numa;

use crate::device::topology::Topology;
use crate::memory::frames::Frames;
use crate::process::fatal;

/// Fewest pageblocks of a zone.
const LEAST_BLOCKS: usize = 8;

/// The zones of an arena that is being built.
pub(crate) struct Zoning {
    pub nr_zones: usize,
    zone_of_cpu: Box<[usize]>,
    /// The node of each zone. Empty if zones span several nodes.
    pub nodes: Box<[NodeId]>,
    /// Whether the memory of zones is bound to their nodes.
    is_bound: bool,
}

impl Zoning {
    pub fn new(topology: &Topology, nr_pageblocks: usize) -> Zoning {
        let nodes = topology.nodes_with_cpus();
        let nr_zones = nodes.len().min(nr_pageblocks / LEAST_BLOCKS).max(1);
        let zone_of = |cpu| {
            let node = topology.node_of(CpuId::from_index(cpu));
            nodes.iter().position(|&with_cpus| with_cpus == node).unwrap_or(0) % nr_zones
        };
        let zone_of_cpu = (0..topology.nr_cpus()).map(zone_of).collect();
        let nodes = if nr_zones == nodes.len() { nodes } else { Vec::new() };
        let is_bound = nodes.len() > 1 && !topology.is_stated();
        Zoning { nr_zones, zone_of_cpu, nodes: nodes.into(), is_bound }
    }

    /// The zones, without a limit yet.
    pub fn zones(self, nr_pageblocks_max: usize, nr_cpus: usize) -> Zones {
        Zones::new(nr_pageblocks_max, self.nr_zones, nr_cpus, self.zone_of_cpu)
    }

    pub fn bind(&self, frames: &Frames) {
        for (zone, node) in self.nodes.iter().enumerate().filter(|_| self.is_bound) {
            for range in [frames.homes_of(zone), frames.nursery_of(zone), frames.small_nursery_of(zone)] {
                if let Err(error) = numa::bind(range.start, range.len(), node.index()) {
                    fatal::say(&format!("frames could not be bound to node {} ({error})", node.get()));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::arena::region::Region;
    use crate::config::error::Error;
    use crate::config::fault_mode::FaultMode;
    use crate::device::{DeviceSpec, SwapDevice};
    use crate::process::wakeup::comes_true;
    use folioswap_core::{Order, PAGE_SIZE, Priority};
    use folioswap_sys::cpu;

    #[test]
    fn there_is_a_zone_for_each_node_with_cpus_if_the_budget_is_large_enough() {
        let topology: Topology = "node 0 cpus 0-1\nnode 2 cpus 2,4\nnode 5\nnode 7 cpus 3".parse().unwrap();
        let zoning = |nr_pageblocks| {
            let zoning = Zoning::new(&topology, nr_pageblocks);
            assert!(!zoning.is_bound, "it was stated");
            (zoning.nr_zones, zoning.zone_of_cpu.to_vec(), zoning.nodes.iter().map(|node| node.get()).collect())
        };
        assert_eq!(zoning(24), (3, vec![0, 0, 1, 2, 1], vec![0, 2, 7]));
        assert_eq!(zoning(16), (2, vec![0, 0, 1, 0, 1], vec![]));
        assert_eq!(zoning(1), (1, vec![0; 5], vec![]));
    }

    /// Two CPUs that this process may use, each stated to be a node.
    fn two_nodes() -> Option<([usize; 2], Topology)> {
        let may_be_used = |cpu: &usize| {
            let cpu = *cpu;
            std::thread::spawn(move || cpu::stay_on(cpu).is_ok()).join().unwrap()
        };
        let mut cpus = (0..1024).filter(may_be_used);
        let (Some(first), Some(second)) = (cpus.next(), cpus.next()) else {
            println!("SKIP memory of two nodes: there is one CPU");
            return None;
        };
        Some(([first, second], format!("node 0 cpus {first}\nnode 1 cpus {second}").parse().unwrap()))
    }

    const LEN: usize = 4 << 20;

    fn evict_standby(arena: &Arena, order: Order) -> bool {
        let engine = arena.engine();
        engine.ram().evict_standby(engine.table(), order)
    }

    /// Writes each page from one CPU, in an order that is not a stream. A page that is read ahead gets memory of the
    /// node for which readahead was requested, whichever thread touches it first.
    fn mark(bytes: &mut [u8], cpu: usize, mark: u8) {
        cpu::stay_on(cpu).unwrap();
        let nr_pages = bytes.len() / PAGE_SIZE;
        for page in (0..nr_pages).map(|index| (index * 257 + 128) % nr_pages) {
            let bytes = bytes[page * PAGE_SIZE..][..PAGE_SIZE].iter_mut().step_by(8);
            bytes.zip(page + 1..).for_each(|(byte, number)| *byte = (number % 251) as u8 ^ mark);
        }
    }

    /// MiB on each device after all folios have been evicted.
    fn on_devices(arena: &Arena, expected: [usize; 2]) {
        comes_true("what is busy is left where it is, and leaves at another time", || {
            arena.evict_all();
            let used = arena.devices().iter().map(|device| (device.used_bytes >> 20) as usize).collect::<Vec<_>>();
            used == expected
        });
    }

    #[test]
    fn a_nodes_thread_has_its_memory_and_its_device_whoever_resolves_its_faults_and_sends_its_folios_out() {
        let Some((cpus, topology)) = two_nodes() else { return };
        let device = |node| SwapDevice::from(DeviceSpec::Ram { size: 64 << 20 }).on_node(NodeId::new(node));
        for (faults, order) in [FaultMode::Direct, FaultMode::Monitor]
            .into_iter()
            .flat_map(|faults| [(faults, Order::HUGE), (faults, Order::PAGE)])
        {
            let builder = Arena::builder().memory(64 << 20).topology(topology.clone());
            let builder = builder.device(device(0)).device(device(1)).faults(faults).folio(order);
            let arena = match builder.build() {
                Err(error @ Error::NoUserfaultfd { .. }) if faults == FaultMode::Monitor => {
                    println!("SKIP faults that others resolve: {error}");
                    continue;
                }
                arena => arena.unwrap(),
            };
            let mut region = arena.map(2 * LEN).unwrap();
            let (first, second) = region.split_at_mut(LEN);
            std::thread::scope(|scope| {
                scope.spawn(|| mark(first, cpus[0], 0));
                scope.spawn(|| mark(second, cpus[1], 0));
            });
            let zones = arena.engine().ram().zones();
            let in_ram = [0, 1].map(|zone| (zones.all()[zone].counts().in_use * PAGE_SIZE) >> 20);
            assert_eq!(in_ram, [4, 4], "MiB in RAM: {faults}, {order}");
            on_devices(&arena, [4, 4]);
            while evict_standby(&arena, order) {}
            // Pages of the first node are changed on the second, and stay there.
            std::thread::scope(|scope| scope.spawn(|| mark(&mut region, cpus[1], 0x80)).join().unwrap());
            on_devices(&arena, [0, 8]);
            assert_eq!(arena.engine().stats().snapshot().readahead_folios, 0, "{faults}, {order}");
        }
    }

    #[test]
    fn what_was_written_by_turns_stays_where_it_is_whichever_nodes_thread_writes_it_again() {
        let Some((cpus, topology)) = two_nodes() else { return };
        let given = |node| {
            let device = SwapDevice::from(DeviceSpec::Ram { size: 64 << 20 }).on_node(NodeId::new(node));
            device.with_priority(Priority::given(1).unwrap())
        };
        let builder = Arena::builder().memory(64 << 20).topology(topology);
        let arena =
            builder.device(given(0)).device(given(1)).faults(FaultMode::Direct).folio(Order::HUGE).build().unwrap();
        let mut region = arena.map(4 * LEN).unwrap();
        for (round, cpu) in [0, 1, 1, 0, 0].into_iter().enumerate() {
            std::thread::scope(|scope| scope.spawn(|| mark(&mut region, cpus[cpu], round as u8)).join().unwrap());
            on_devices(&arena, [8, 8]);
            while evict_standby(&arena, Order::HUGE) {}
        }
    }

    #[test]
    fn memory_is_taken_in_the_zone_of_its_user_and_then_in_the_other_and_each_is_given_back() {
        const MIB: usize = 1 << 20;
        // All threads are on the second node.
        let topology: Topology = "node 0 cpus 4000\nnode 1 cpus 0-3999".parse().unwrap();
        let builder = Arena::builder().memory(64 << 20).faults(FaultMode::Direct);
        let arena = builder.device(DeviceSpec::Ram { size: 256 << 20 }).topology(topology).build().unwrap();
        let zones = arena.engine().ram().zones();
        let in_use = |zone: usize| zones.all()[zone].counts().in_use * PAGE_SIZE / MIB;
        let mark = |at: usize| (at / PAGE_SIZE % 251) as u8 + 1;
        let fill = |len: usize| {
            let mut region = arena.map(len).unwrap();
            (0..len).step_by(PAGE_SIZE).for_each(|at| region[at] = mark(at));
            region
        };
        let check = |region: &Region| {
            let wrong = (0..region.len()).step_by(PAGE_SIZE).find(|&at| region[at] != mark(at));
            assert_eq!(wrong, None, "byte");
        };
        let first = fill(14 * MIB);
        assert_eq!(in_use(0), 0, "{:?}", zones.all());
        assert!(in_use(1) >= 14);
        let second = fill(150 * MIB);
        assert!(in_use(0) >= 16, "the other zone helps: {:?}", zones.all());
        check(&first);
        check(&second);
        drop(first);
        arena.set_memory(24 << 20).unwrap();
        comes_true("each zone keeps to its share", || (zones.counts().surplus, zones.counts().excess) == (0, 0));
        assert_eq!([0, 1].map(|zone| zones.all()[zone].counts().limit * PAGE_SIZE / MIB), [12, 12]);
        check(&second);
        assert!(arena.measure().unwrap().resident_bytes <= 24 << 20);
        arena.set_memory(100 << 20).unwrap();
        assert!(arena.compact(), "there is room in each zone");
        check(&second);
        zones.verify();
    }
}
