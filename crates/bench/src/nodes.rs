//! `folioswap bench nodes`: the gain from a swap device on each NUMA node.
//!
//! There are two devices in RAM with equal, limited bandwidth, and two stated nodes, each with every other CPU.
//! Threads on both nodes write and read one array that is larger than RAM. Three ways take turns (A B C A B C).
//! *nearest*: each node has its device, which its threads use first. *list*: one list for all, whose first device has
//! room for everything. *equal*: both devices have one priority and take turns.
//!
//! On one physical node this measures how the load spreads, not the cost of distance. `of_bandwidth` is the share of
//! both devices' bandwidth that was used. *list* leaves one device idle, so that *nearest* can be at most twice as
//! fast.

use crate::alloc::stay_on_cpu;
use crate::shared::medians::{median, median_of_ratios};
use crate::shared::pages::BLOCK;
use crate::shared::progress::tell;
use crate::shared::records::Data;
use crate::shared::report::Report;
use crate::shared::setup::{moved, whole_words};
use crate::sweep::{read, write};
use clap::Args;
use folioswap::{Arena, DeviceSpec, FolioSize, NodeId, Priority, SwapDevice, Topology, Tuning};
use folioswap_command::args::{check_budget, memory, report_file, size};
use folioswap_command::exit::Failure;
use rustix::thread::CpuSet;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const THREADS: [usize; 2] = [1, 16];

/// Arguments of `bench nodes`.
#[derive(Args, Debug)]
pub struct NodesArgs {
    /// Size of the memory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    size: u64,
    /// RAM that the memory may use, at least 16M
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = memory)]
    memory: u64,
    /// Bandwidth of each device in bytes per second, reads and writes together
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    bandwidth: u64,
    /// Folio size
    #[arg(long, value_name = "2M|64K|4K|...", default_value = "2M", value_parser = folioswap_command::args::parsed::<FolioSize>)]
    folio: FolioSize,
    /// How often all memory is written and read in a turn, after it was written once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How often all ways take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: u16,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    json: Option<PathBuf>,
}

/// How devices are chosen.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Way {
    Nearest,
    List,
    Equal,
}

impl Way {
    const ALL: [Way; 3] = [Way::Nearest, Way::List, Way::Equal];

    fn name(self) -> &'static str {
        match self {
            Way::Nearest => "nearest",
            Way::List => "list",
            Way::Equal => "equal",
        }
    }

    fn devices(self, bytes: u64) -> [SwapDevice; 2] {
        [0, 1].map(|number| {
            let device = SwapDevice::from(DeviceSpec::Ram { size: bytes });
            match (self, Priority::given(1)) {
                (Way::Nearest, _) => device.on_node(NodeId::new(number)),
                (Way::Equal, Some(priority)) => device.with_priority(priority),
                _ => device,
            }
        })
    }
}

/// Two nodes that each have every other CPU of this process. If the machine has nodes with these numbers, memory is
/// bound to them.
fn two_nodes() -> Result<Topology, Failure> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if cpus.len() < 2 {
        return Err(Failure::new("this benchmark takes two CPUs, one for each node"));
    }
    let of = |node: usize| cpus.iter().skip(node).step_by(2).map(usize::to_string).collect::<Vec<_>>().join(",");
    let text = format!("node 0 cpus {}\nnode 1 cpus {}", of(0), of(1));
    text.parse().map_err(|error: folioswap::TopologyError| Failure::new(error.to_string()))
}

/// The result of a turn.
struct Found {
    gbps: f64,
    bad_words: u64,
    used_bytes: Vec<u64>,
    /// Bytes per second that both devices transferred, as a share of their bandwidth.
    of_bandwidth: f64,
}

/// Writes a thread's share once, then writes and reads it `nr_rounds` times.
fn work(words: &mut [u64], first: u64, nr_rounds: u64, barrier: &Barrier) -> u64 {
    let progress = AtomicU64::new(0);
    write(words, first, 1, Data::Plain, &progress);
    barrier.wait();
    let bad_words = (2..nr_rounds + 2).map(|round| {
        write(words, first, round, Data::Plain, &progress);
        read(words, first, round, Data::Plain, &progress)
    });
    let bad_words = bad_words.sum();
    barrier.wait();
    bad_words
}

fn turn(args: &NodesArgs, topology: &Topology, way: Way, nr_threads: usize, bytes: usize) -> Result<Found, Failure> {
    // The first device has room for everything that can be swapped out at once. It never gets so full that it keeps
    // no copies.
    let device_bytes = (3 * bytes + (64 << 20)) as u64;
    let builder = Arena::builder().memory(args.memory).folio(args.folio).topology(topology.clone());
    let builder = builder.tuning(Tuning { throttle: Some(args.bandwidth), ..Tuning::default() });
    let builder = way.devices(device_bytes).into_iter().fold(builder, |builder, device| builder.device(device));
    let arena = builder.build()?;
    let mut region = arena.map(bytes)?;
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut region[..bytes]);
    let share = (bytes / nr_threads).next_multiple_of(BLOCK) / size_of::<u64>();
    let shares: Vec<_> = words.chunks_mut(share).collect();
    let (barrier, nr_rounds) = (Barrier::new(shares.len() + 1), u64::from(args.rounds));
    let (seconds, moved_bytes, bad_words) = std::thread::scope(|scope| {
        let threads: Vec<_> = (shares.into_iter().enumerate())
            .map(|(index, share_words)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    stay_on_cpu(index);
                    work(share_words, (index * share) as u64, nr_rounds, barrier)
                })
            })
            .collect();
        barrier.wait();
        let (begun, before) = (Instant::now(), moved(&arena));
        barrier.wait();
        let (seconds, moved_bytes) = (begun.elapsed().as_secs_f64().max(1e-9), moved(&arena) - before);
        let bad_words = threads.into_iter().map(|thread| thread.join().expect("a thread that works does not panic"));
        (seconds, moved_bytes, bad_words.sum())
    });
    let used_bytes = arena.devices().iter().map(|device| device.used_bytes).collect();
    let gbps = (bytes as u64 * 2 * nr_rounds) as f64 / seconds / 1e9;
    let of_bandwidth = moved_bytes as f64 / seconds / (2 * args.bandwidth) as f64;
    Ok(Found { gbps, bad_words, used_bytes, of_bandwidth })
}

pub fn nodes(args: &NodesArgs) -> Result<u8, Failure> {
    check_budget(args.memory)?;
    let bytes = whole_words(args.size, (THREADS[1] * BLOCK) as u64)? / BLOCK * BLOCK;
    if args.bandwidth < 1 << 20 {
        return Err(Failure::new("a device of less than 1M a second would take for ever"));
    }
    let topology = two_nodes()?;
    let mut report = Report::new("nodes");
    let mut bad_words = 0;
    let head = ["of bandwidth", "first device", "second"].map(|name| format!(" {name:>14}")).concat();
    tell(&format!("{:>7} {:<8} {:>8}{head}", "threads", "way", "GB/s"));
    for nr_threads in THREADS {
        let (mut gbps, mut of_bandwidth) = (Way::ALL.map(|_| Vec::new()), Way::ALL.map(|_| Vec::new()));
        for _ in 0..args.repeats {
            for way in Way::ALL {
                let found = turn(args, &topology, way, nr_threads, bytes)?;
                gbps[way as usize].push(found.gbps);
                of_bandwidth[way as usize].push(found.of_bandwidth);
                bad_words += found.bad_words;
                let used: String = found
                    .used_bytes
                    .iter()
                    .map(|bytes| format!(" {:>14}", folioswap::Bytes(*bytes).to_string()))
                    .collect();
                let percent = found.of_bandwidth * 100.0;
                tell(&format!("{nr_threads:>7} {:<8} {:>8.3} {percent:>12.0} %{used}", way.name(), found.gbps));
                report.row(json!({
                    "threads": nr_threads, "way": way.name(), "gbps": found.gbps, "used_bytes": found.used_bytes,
                    "of_bandwidth": found.of_bandwidth, "bad_words": found.bad_words,
                }));
            }
        }
        let [nearest, list, equal] = &gbps;
        report.measure(&format!("nearest_gbps_{nr_threads}"), median(nearest));
        report.measure(&format!("nearest_vs_list_{nr_threads}"), median_of_ratios(nearest, list));
        report.measure(&format!("nearest_vs_equal_{nr_threads}"), median_of_ratios(nearest, equal));
        for (way, of_bandwidth) in Way::ALL.iter().zip(&of_bandwidth) {
            report.measure(&format!("{}_of_bandwidth_{nr_threads}", way.name()), median(of_bandwidth));
        }
    }
    report.conclude(args.json.as_deref(), bad_words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap::Order;

    #[test]
    fn the_ways_differ_in_what_is_said_of_the_devices() {
        let shown = Way::ALL.map(|way| way.devices(4 << 20).map(|device| device.to_string()));
        let expected = [["ram:4M,node=0", "ram:4M,node=1"], ["ram:4M", "ram:4M"], ["ram:4M,prio=1", "ram:4M,prio=1"]];
        assert_eq!(shown, expected);
        assert!(Order::HUGE.bytes() == BLOCK && two_nodes().is_ok_and(|nodes| nodes.nodes().len() == 2));
    }
}
