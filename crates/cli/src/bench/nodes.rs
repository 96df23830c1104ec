//! `folioswap bench nodes`: what it is worth that each NUMA node has its swap device.
//!
//! Two devices in RAM, each limited to the same bandwidth, and two nodes, stated: every other CPU is on the second one. Threads on
//! CPUs of both write their shares of one array and read them back, larger than their RAM. Three ways in turns (A B C A B C):
//! *nearest*: each device on a node, so each thread's own comes first; *list*: one list for all, so the second device is for what
//! the first has no room for, and it has room for all; *equal*: one priority for both, which take turns.
//!
//! On one real node no device is farther than the other: what is seen is how the load spreads, not what distance costs. How much of
//! the bandwidth of both devices was used says how much more there would be to gain: with one list the second device has nothing to
//! do, so nearest cannot be more than twice as fast as long as the devices are what takes the time.

use super::alloc::stay_on_cpu;
use super::medians::{median, median_of_ratios};
use super::progress::tell;
use super::records::Data;
use super::report::Report;
use super::setup::{failure, moved, whole_words};
use super::sweep::{read, write};
use crate::args::{check_budget, size};
use crate::exit::{Failure, Status};
use clap::Args;
use folioswap::{Arena, DeviceSpec, FolioSize, NodeId, Priority, SwapDevice, Topology};
use rustix::thread::CpuSet;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const BLOCK: usize = 2 << 20;
/// Threads of which the measures are made.
const THREADS: [usize; 2] = [1, 16];

/// Arguments of `bench nodes`.
#[derive(Args, Debug)]
pub struct NodesArgs {
    /// Size of the memory that is worked on
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    size: u64,
    /// RAM that it may take, 16M or more
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    memory: u64,
    /// Bandwidth of each device: bytes a second, read and written together
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    bandwidth: u64,
    /// Size of a folio
    #[arg(long, value_name = "2M|64K|4K|...", default_value = "2M", value_parser = crate::args::parsed::<FolioSize>)]
    folio: FolioSize,
    /// Times that all is written and read in a turn, after it was written once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Times that all take their turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: u16,
    /// Write the figures to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How the devices are chosen.
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

/// Two nodes, of every other CPU that this process may use. Where the machine has nodes of these numbers, memory is bound to them.
fn two_nodes() -> Result<Topology, Failure> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if cpus.len() < 2 {
        return Err(Failure::new(Status::Usage, "this benchmark takes two CPUs, one for each node"));
    }
    let of = |node: usize| cpus.iter().skip(node).step_by(2).map(usize::to_string).collect::<Vec<_>>().join(",");
    let text = format!("node 0 cpus {}\nnode 1 cpus {}", of(0), of(1));
    text.parse().map_err(|error: folioswap::TopologyError| Failure::new(Status::Failed, error.to_string()))
}

/// What a turn came to.
struct Found {
    gbps: f64,
    bad_words: u64,
    used_bytes: Vec<u64>,
    /// Bytes a second that went to and came from both devices, in units of what both can do.
    of_bandwidth: f64,
}

/// A thread's share: it is written, and then written and read so often.
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
    // The first device has room for all that could be out at once, and never so little that no copies are kept.
    let device_bytes = (3 * bytes + (64 << 20)) as u64;
    let builder = Arena::builder().memory(args.memory).folio(args.folio).topology(topology.clone());
    let builder = builder.address_space((2 * bytes as u64).max(1 << 30)).throttle(args.bandwidth);
    let builder = way.devices(device_bytes).into_iter().fold(builder, |builder, device| builder.device(device));
    let arena = builder.build().map_err(failure)?;
    let mut region = arena.map(bytes).map_err(failure)?;
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

/// The benchmark.
pub fn nodes(args: &NodesArgs) -> Result<u8, Failure> {
    check_budget(args.memory)?;
    let bytes = whole_words(args.size, (THREADS[1] * BLOCK) as u64)? / BLOCK * BLOCK;
    if args.bandwidth < 1 << 20 {
        return Err(Failure::new(Status::Usage, "a device of less than 1M a second would take for ever"));
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
