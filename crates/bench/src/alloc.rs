//! `folioswap bench alloc`: the time that the slot allocator takes for an allocation and a free, and how it scales
//! over CPUs.
//!
//! It runs without the engine and compares three allocators: [`Clusters`] alone, `Clusters` with a [`SlotCache`] for
//! freed slots, and `Clusters` behind one mutex. They take turns (A B C A B C). Each thread has a CPU number of its
//! own, and runs on a CPU of its own if there are enough. At the end the slots that threads hold are checked for
//! overlaps.
//!
//! No worker drains the cache. The threads do all the work, so that the result is the total cost of the cache, not
//! only the cost on their path.

use crate::shared::medians::{median, median_of_ratios};
use crate::shared::progress::tell;
use crate::shared::report::Report;
use clap::Args;
use folioswap::ExitStatus;
use folioswap_command::args::report_file;
use folioswap_command::exit::Failure;
use folioswap_core::{Clusters, CpuId, MAX_ORDER, Order, SlotCache, SlotId};
use rustix::thread::CpuSet;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs that a thread holds at any time, like folios under writeback.
const OUT: usize = 32;

/// Slots of the device. Enough for [`MAX_THREADS`] threads at the largest order.
const NR_SLOTS: usize = 1 << 20;
const MAX_THREADS: i64 = 31;

/// Rounds of a turn. The first one is not counted. Rounds are short and many, so that few are hit when other work
/// takes a CPU.
const ROUNDS: usize = 102;

/// How often a thread polls for the others before it yields its CPU.
const SPINS: usize = 1_000;

/// Orders that the measures are made of.
const MEASURED: [u8; 2] = [0, 4];

/// Arguments of `bench alloc`.
#[derive(Args, Debug)]
pub struct AllocArgs {
    /// Number of threads that work at the same time
    #[arg(long, value_name = "N,N..", value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS))]
    pub threads: Vec<u16>,
    /// Orders of the runs; order k is 2^k slots [default: all, 0 to 9]
    #[arg(long, value_name = "K,K..", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(..=i64::from(MAX_ORDER)))]
    pub orders: Vec<u8>,
    /// Allocations and frees of each thread in a round
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: u32,
    /// How often the allocators take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub repeats: u16,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub json: Option<PathBuf>,
}

/// An allocator of slots.
trait Allocate: Sync {
    fn take(&self, cpu: CpuId, order: Order) -> Option<SlotId>;
    fn give(&self, cpu: CpuId, slot: SlotId, order: Order);
    /// Exact once all threads have finished.
    fn nr_used(&self) -> usize;
}

impl Allocate for Clusters {
    fn take(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        self.allocate(cpu, order)
    }
    fn give(&self, _cpu: CpuId, slot: SlotId, order: Order) {
        self.free(slot, order);
    }
    fn nr_used(&self) -> usize {
        Clusters::nr_used(self)
    }
}

/// Clusters, and a cache of freed slots in front of them.
struct Cached {
    clusters: Clusters,
    cache: SlotCache,
}

impl Allocate for Cached {
    fn take(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        self.clusters.allocate(cpu, order).or_else(|| {
            self.cache.flush(&self.clusters);
            self.clusters.allocate(cpu, order)
        })
    }
    fn give(&self, cpu: CpuId, slot: SlotId, order: Order) {
        let _ = self.cache.free(&self.clusters, cpu, slot, order);
    }
    fn nr_used(&self) -> usize {
        self.cache.flush(&self.clusters);
        self.clusters.nr_used()
    }
}

struct OneLock(Mutex<Clusters>);

impl OneLock {
    fn with<T>(&self, call: impl FnOnce(&Clusters) -> T) -> T {
        call(&self.0.lock().expect("nothing panics under this lock"))
    }
}

impl Allocate for OneLock {
    fn take(&self, cpu: CpuId, order: Order) -> Option<SlotId> {
        self.with(|clusters| clusters.take(cpu, order))
    }
    fn give(&self, cpu: CpuId, slot: SlotId, order: Order) {
        self.with(|clusters| clusters.give(cpu, slot, order));
    }
    fn nr_used(&self) -> usize {
        self.with(Clusters::nr_used)
    }
}

/// Makes threads begin each round together.
struct Start {
    nr_threads: usize,
    arrived: AtomicUsize,
}

impl Start {
    /// Waits until all threads have reached this round. It spins, so that a thread that has arrived keeps its CPU.
    fn wait(&self, round: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut nr_spins = 0;
        while self.arrived.load(Ordering::Acquire) < (round + 1) * self.nr_threads {
            nr_spins += 1;
            if nr_spins % SPINS == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// The result of one thread in one turn: start and end of its rounds, and the slots that it holds.
struct Worked {
    rounds: Vec<(Instant, Instant)>,
    out: Vec<SlotId>,
}

fn work(space: &impl Allocate, cpu: usize, order: Order, nr_pairs: usize, start: &Start) -> Worked {
    stay_on_cpu(cpu);
    let cpu = CpuId::from_index(cpu);
    let take = || space.take(cpu, order).expect("there is room for all that threads have out");
    let mut out: Vec<SlotId> = (0..OUT).map(|_| take()).collect();
    let mut round = |index| {
        start.wait(index);
        let begin = Instant::now();
        for pair in 0..nr_pairs {
            let slot = &mut out[pair % OUT];
            space.give(cpu, *slot, order);
            *slot = take();
        }
        (begin, Instant::now())
    };
    let rounds = (0..ROUNDS).map(&mut round).collect();
    Worked { rounds, out }
}

/// Binds the calling thread to one of the CPUs that it may use. Does nothing if that is not permitted.
pub fn stay_on_cpu(number: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let nr_cpus = (allowed.count() as usize).max(1);
    if let Some(cpu) = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(number % nr_cpus) {
        let _ = folioswap_sys::cpu::stay_on(cpu);
    }
}

/// Runs one turn. Returns nanoseconds for a pair on each thread, as the median of the rounds. A round lasts from the
/// start of the first thread to the end of the last one: threads that run one after the other do not seem parallel.
fn turn(space: &impl Allocate, nr_threads: usize, order: Order, nr_pairs: usize) -> Result<f64, Failure> {
    let start = Start { nr_threads, arrived: AtomicUsize::new(0) };
    let start = &start;
    let all: Vec<Worked> = std::thread::scope(|scope| {
        let spawned = (0..nr_threads).map(|cpu| scope.spawn(move || work(space, cpu, order, nr_pairs, start)));
        let threads: Vec<_> = spawned.collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that allocates does not panic")).collect()
    });
    check(space, all.iter().flat_map(|worked| worked.out.iter().copied()).collect(), order)?;
    let wall_ns = |index: usize| {
        let begin = all.iter().map(|worked| worked.rounds[index].0).min();
        let end = all.iter().map(|worked| worked.rounds[index].1).max();
        begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_nanos() as f64 / nr_pairs as f64)
    };
    let times: Vec<f64> = (1..ROUNDS).map(wall_ns).collect();
    median(&times).ok_or_else(|| Failure::new("no round was timed"))
}

/// Frees the slots that the threads hold. Fails if slots overlap or are lost.
fn check(space: &impl Allocate, mut out: Vec<SlotId>, order: Order) -> Result<(), Failure> {
    let wrong =
        |text: &str| Err(Failure::of(ExitStatus::CheckFailed, format!("the slot allocator, order {order}: {text}")));
    out.sort_unstable();
    if out.windows(2).any(|pair| pair[1].index() - pair[0].index() < order.nr_pages()) {
        return wrong("slots were handed out twice");
    }
    if out.iter().any(|slot| !slot.index().is_multiple_of(order.nr_pages())) {
        return wrong("a run of slots is not aligned");
    }
    if space.nr_used() != out.len() * order.nr_pages() {
        return wrong("not as many slots are taken as were handed out");
    }
    out.into_iter().for_each(|slot| space.give(CpuId::new(0), slot, order));
    if space.nr_used() > 0 { wrong("slots that were freed are still taken") } else { Ok(()) }
}

/// Nanoseconds of all turns at one order and one number of threads, in the order of the turns.
struct Timed {
    order: u8,
    nr_threads: u16,
    clusters_ns: Vec<f64>,
    cached_ns: Vec<f64>,
    one_lock_ns: Vec<f64>,
}

impl Timed {
    fn new(order: u8, nr_threads: u16) -> Timed {
        Timed { order, nr_threads, clusters_ns: Vec::new(), cached_ns: Vec::new(), one_lock_ns: Vec::new() }
    }
}

pub fn alloc(args: &AllocArgs) -> Result<u8, Failure> {
    let all: Vec<u8> = (0..=MAX_ORDER).collect();
    let (orders, threads) = (sorted(if args.orders.is_empty() { &all } else { &args.orders }), sorted(&args.threads));
    let nr_cpus = usize::from(threads.last().copied().unwrap_or(1));
    let (clusters, locked) = (device(nr_cpus), OneLock(Mutex::new(device(nr_cpus))));
    let cached = Cached { clusters: device(nr_cpus), cache: SlotCache::new(nr_cpus) };
    let mut report = Report::new("alloc");
    let mut all = Vec::new();
    tell(&format!(
        "{:>5} {:>7} {:>12} {:>12} {:>12} {:>9}",
        "order", "threads", "ns a pair", "cached", "one lock", "speed-up"
    ));
    for exponent in orders {
        let Some(order) = Order::new(exponent) else { continue };
        let mut rows: Vec<Timed> = threads.iter().map(|&nr_threads| Timed::new(exponent, nr_threads)).collect();
        for _ in 0..args.repeats {
            for row in &mut rows {
                let (nr_threads, nr_pairs) = (usize::from(row.nr_threads), args.pairs as usize);
                row.clusters_ns.push(turn(&clusters, nr_threads, order, nr_pairs)?);
                row.cached_ns.push(turn(&cached, nr_threads, order, nr_pairs)?);
                row.one_lock_ns.push(turn(&locked, nr_threads, order, nr_pairs)?);
            }
        }
        rows.iter().for_each(|row| show(row, &mut report));
        all.extend(rows);
    }
    clusters.verify();
    cached.clusters.verify();
    measure(&mut report, &all);
    report.conclude(args.json.as_deref(), 0)
}

fn device(nr_cpus: usize) -> Clusters {
    let clusters = Clusters::new(NR_SLOTS, nr_cpus, false);
    clusters.grow(NR_SLOTS);
    clusters
}

/// The distinct values, in ascending order.
fn sorted<T: Ord + Copy>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

fn show(row: &Timed, report: &mut Report) {
    let [ns, cached_ns, one_lock_ns] = [&row.clusters_ns, &row.cached_ns, &row.one_lock_ns].map(|turns| median(turns));
    let speed_up = median_of_ratios(&row.one_lock_ns, &row.clusters_ns);
    if let (Some(ns), Some(cached_ns), Some(one_lock_ns), Some(speed_up)) = (ns, cached_ns, one_lock_ns, speed_up) {
        let what = format!("{:>5} {:>7}", row.order, row.nr_threads);
        tell(&format!("{what} {ns:>12.1} {cached_ns:>12.1} {one_lock_ns:>12.1} {speed_up:>8.2}x"));
    }
    report.row(json!({
        "order": row.order, "threads": row.nr_threads, "ns": ns, "cached_ns": cached_ns, "one_lock_ns": one_lock_ns,
        "vs_one_lock": speed_up, "cached_vs_plain": median_of_ratios(&row.clusters_ns, &row.cached_ns),
        "turns_ns": row.clusters_ns, "cached_turns_ns": row.cached_ns, "one_lock_turns_ns": row.one_lock_ns,
    }));
}

fn measure(report: &mut Report, all: &[Timed]) {
    let find = |order, nr_threads| all.iter().find(|row| row.order == order && row.nr_threads == nr_threads);
    for order in MEASURED {
        report.measure(&format!("ns_order{order}"), find(order, 1).and_then(|row| median(&row.clusters_ns)));
    }
    // Throughput is threads over nanoseconds. Turns with the same number belong together.
    let scaling = MEASURED.map(|order| {
        let ratio = median_of_ratios(&find(order, 1)?.clusters_ns, &find(order, 2)?.clusters_ns)?;
        Some(2.0 * ratio)
    });
    let vs_one_lock = MEASURED.map(|order| {
        let row = find(order, 2)?;
        median_of_ratios(&row.one_lock_ns, &row.clusters_ns)
    });
    for nr_threads in [1, 2] {
        // Time without the cache over time with it: above 1 the cache saves more than it costs.
        let ratios = MEASURED.map(|order| {
            let row = find(order, nr_threads)?;
            median_of_ratios(&row.clusters_ns, &row.cached_ns)
        });
        report.measure(&format!("cached_vs_plain_{nr_threads}"), geometric_mean(ratios));
    }
    report.measure("scaling_2", geometric_mean(scaling));
    report.measure("vs_one_lock_2", geometric_mean(vs_one_lock));
}

/// The geometric mean, if both were measured.
fn geometric_mean([first, second]: [Option<f64>; 2]) -> Option<f64> {
    Some((first? * second?).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(exponent: u8) -> Order {
        Order::new(exponent).expect("an order")
    }

    #[test]
    fn the_largest_runs_of_the_most_threads_fit() {
        let clusters = device(MAX_THREADS as usize);
        for cpu in (0..MAX_THREADS as usize).map(CpuId::from_index) {
            assert!((0..OUT).all(|_| clusters.take(cpu, order(MAX_ORDER)).is_some()));
        }
        clusters.verify();
    }

    #[test]
    fn threads_that_share_cpus_come_to_an_end() {
        let clusters = device(3);
        assert!(turn(&clusters, 3, order(0), 2).is_ok_and(|ns| ns > 0.0));
        clusters.verify();
    }

    #[test]
    fn what_is_on_its_way_is_counted() {
        let cached = Cached { clusters: device(2), cache: SlotCache::new(2) };
        assert!(turn(&cached, 2, order(4), 50).is_ok());
        assert_eq!(cached.nr_used(), 0);
        cached.clusters.verify();
    }

    #[test]
    fn what_overlaps_or_is_lost_is_found() {
        let clusters = device(1);
        let cpu = CpuId::new(0);
        let slots: Vec<SlotId> = (0..2).filter_map(|_| clusters.take(cpu, order(2))).collect();
        let message = |out: &[SlotId]| check(&clusters, out.to_vec(), order(2)).map_err(|failure| failure.message);
        assert!(message(&[slots[0], slots[0]]).is_err_and(|text| text.contains("twice")));
        assert!(message(&slots[..1]).is_err_and(|text| text.contains("not as many")));
        assert!(message(&[slots[0], SlotId::from_index(1001)]).is_err_and(|text| text.contains("aligned")));
        assert!(message(&slots).is_ok());
    }

    #[test]
    fn both_means_are_needed() {
        assert_eq!(geometric_mean([Some(2.0), Some(8.0)]), Some(4.0));
        assert_eq!(geometric_mean([Some(2.0), None]), None);
    }
}
