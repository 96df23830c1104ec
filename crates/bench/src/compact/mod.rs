//! `folioswap bench compact`: how many large folios find frames in RAM that small folios have fragmented, and at what
//! cost.
//!
//! Modelled on the huge-page compaction stress test for kernels. A pool of 4 KiB and 64 KiB folios fills the budget,
//! and a random half of them is dropped. Then threads fault in 2 MiB folios from the swap device, all at once, while
//! two more threads fault in small folios and drop them. Each way of compaction runs in an arena of its own. `whole`
//! uses a pool that is not fragmented, as the baseline for latency. `default` exchanges free pages with the kernel to
//! move small folios, `migrate` moves free pages one by one. What is left of the pool and the large folios are checked.

mod mix;
mod slots;

use crate::compact::mix::mixed;
use crate::shared::medians::median;
use crate::shared::pages::{BLOCK, PAGE};
use crate::shared::progress::{Progress, Runs, tell};
use crate::shared::report::Report;
use crate::shared::setup::ArenaPlan;
use clap::{Args, ValueEnum};
use fastrand::Rng;
use folioswap::{Advice, Arena, CompactionMeans, DeviceSpec, FolioSize, Order, Region, StatsSnapshot, Tuning};
use folioswap_command::args::{PagingOptions, check_budget, memory, report_file};
use folioswap_command::exit::Failure;
use folioswap_core::compact::Stage;
use folioswap_core::{Histogram, HistogramSnapshot};
use serde_json::{Map, json};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// How many threads fault in 2 MiB folios; each number has its turn.
const THREADS: [usize; 3] = [1, 7, 32];
/// The same with --full.
const THREADS_IN_FULL: [usize; 9] = [1, 3, 5, 7, 12, 18, 24, 30, 32];
/// Threads that fault in small folios meanwhile.
const SMALL_THREADS: usize = 2;
const SMALL_BYTES: usize = 1 << 20;
const PIECE_PAGES: usize = 16;
const WORD: usize = size_of::<u64>();

/// The space to compact.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum SpaceKind {
    /// Frames in RAM
    Frames,
    /// Slots of a swap device
    Slots,
}

/// Arguments of `bench compact`.
#[derive(Args, Debug)]
pub struct CompactArgs {
    /// Use larger defaults; takes minutes
    #[arg(long)]
    pub full: bool,
    /// RAM that the memory may use, at least 16M; 256M with --full
    #[arg(
        long, value_name = "SIZE", default_value = "64M", default_value_if("full", "true", "256M"),
        value_parser = memory
    )]
    pub memory: u64,
    /// Turns for each number of threads; 3 with --full
    #[arg(
        long, value_name = "R", default_value = "1", default_value_if("full", "true", "3"),
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub rounds: u16,
    /// The space to compact: frames in RAM, or slots of a swap device (the first --swap, or 768M of RAM)
    #[arg(long, default_value = "frames")]
    pub space: SpaceKind,
    /// With `--space slots`: milliseconds between two folios that are swapped out; each value has its own turn.
    /// 0,1,2,5,10 with --full
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_value = "2,10",
        default_value_if("full", "true", "0,1,2,5,10")
    )]
    pub pause: Vec<u64>,
    /// Seed of the random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub options: PagingOptions,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub json: Option<PathBuf>,
}

impl CompactArgs {
    fn threads(&self) -> &'static [usize] {
        if self.full { &THREADS_IN_FULL } else { &THREADS }
    }
}

/// One way to make room for large folios.
struct Way {
    name: &'static str,
    stage: Option<Stage>,
    means: CompactionMeans,
    /// Whether a random half of the pool is dropped, or its second half.
    scattered: bool,
}

impl Way {
    /// A fragmented pool, with compaction at this stage.
    const fn new(name: &'static str, stage: Option<Stage>) -> Way {
        Way { name, stage, means: CompactionMeans::Exchange, scattered: true }
    }

    const fn by(self, means: CompactionMeans) -> Way {
        Way { means, ..self }
    }
}

const WAYS: [Way; 6] = [
    Way { scattered: false, ..Way::new("whole", Some(Stage::WholeSplitting)) },
    Way::new("split", Some(Stage::Split)),
    Way::new("exact", Some(Stage::Whole)),
    Way::new("default", Some(Stage::WholeSplitting)),
    Way::new("migrate", Some(Stage::WholeSplitting)).by(CompactionMeans::Migration),
    Way::new("off", None),
];

/// Counters of the engine, by name.
#[derive(Default)]
struct Counters(Vec<(&'static str, u64)>);

impl Counters {
    fn of(stats: &StatsSnapshot) -> Counters {
        Counters(stats.counters().filter(|(name, _)| name.starts_with("compact") || name.starts_with("pg")).collect())
    }

    /// Adds the difference of two snapshots.
    fn add(&mut self, from: &Counters, to: &Counters) {
        if self.0.is_empty() {
            self.0 = to.0.iter().map(|(name, _)| (*name, 0)).collect();
        }
        for ((sum, (_, from)), (_, to)) in self.0.iter_mut().zip(&from.0).zip(&to.0) {
            sum.1 += to - from;
        }
    }

    fn get(&self, wanted: &str) -> f64 {
        self.0.iter().find(|(name, _)| *name == wanted).map_or(f64::NAN, |(_, number)| *number as f64)
    }
}

/// The results of all turns with one number of threads.
#[derive(Default)]
struct Turns {
    huge: Histogram,
    base: Histogram,
    nr_huge: u64,
    fallbacks: u64,
    counters: Counters,
    bad_words: u64,
}

impl Turns {
    /// Share of the large folios that were swapped in whole.
    fn share(&self) -> f64 {
        1.0 - self.fallbacks as f64 / self.nr_huge as f64
    }

    fn tell(&self, way: &Way, threads: usize, report: &mut Report, progress: &Progress) {
        let (huge, base) = (self.huge.snapshot(), self.base.snapshot());
        let us = |histogram: &HistogramSnapshot, q| histogram.quantile(q) as f64 / 1e3;
        progress.line(&format!(
            "{:<8} {threads:>7} {:>6.3} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>7} {:>8} {:>8}",
            way.name,
            self.share(),
            us(&huge, 0.5),
            us(&huge, 0.99),
            us(&base, 0.5),
            us(&base, 0.99),
            self.counters.get("compact_stall"),
            self.counters.get("pgmigrate_success"),
            self.counters.get("pgmigrate_fail"),
        ));
        let counters: Map<_, _> = self.counters.0.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
        report.row(json!({
            "way": way.name, "threads": threads, "whole": self.share(),
            "huge_p50_us": us(&huge, 0.5), "huge_p99_us": us(&huge, 0.99),
            "base_p50_us": us(&base, 0.5), "base_p99_us": us(&base, 0.99), "counters": counters,
        }));
    }
}

/// The results of all turns of one way.
#[derive(Default)]
struct Sum {
    shares: Vec<f64>,
    p99_us: Vec<f64>,
    counters: Counters,
    nr_whole: u64,
    bad_words: u64,
}

impl Sum {
    fn copied_per_whole(&self) -> f64 {
        self.counters.get("compact_copied_bytes") / self.nr_whole as f64
    }

    fn moved_per_whole(&self) -> f64 {
        self.counters.get("pgmigrate_success") / self.nr_whole as f64
    }
}

pub fn compact(args: &CompactArgs) -> Result<u8, Failure> {
    check_budget(args.memory)?;
    if args.space == SpaceKind::Slots {
        return slots::slots(args);
    }
    let mut options = args.options.clone();
    if options.swap.is_empty() {
        options.swap.push(DeviceSpec::Ram { size: 4 * args.memory }.into());
    }
    options.check_swap()?;
    let mut report = Report::new("compact");
    tell(&format!(
        "{:<8} {:>7} {:>6} {:>10} {:>10} {:>10} {:>10} {:>7} {:>8} {:>8}",
        "way", "threads", "whole", "2M p50 us", "2M p99 us", "4K p50 us", "4K p99 us", "stalls", "moved", "failed"
    ));
    let nr_turns = (WAYS.len() * args.threads().len() + mix::NR_WAYS) * usize::from(args.rounds);
    let mut runs = Runs::new(nr_turns);
    let progress = Progress::of_runs(&runs);
    let sums = WAYS
        .iter()
        .map(|way| run(args, &options, way, &mut report, (&progress, &mut runs)))
        .collect::<Result<Vec<_>, _>>()?;
    let Ok(sums) = <[Sum; WAYS.len()]>::try_from(sums) else { unreachable!("as many as there are ways") };
    let [whole, split, _, default, migrate, off] = &sums;
    report.measure("huge_share_min", default.shares.iter().copied().fold(f64::INFINITY, f64::min));
    // The best share without compaction. If it is high too, the benchmark proves nothing.
    report.measure("huge_share_off", off.shares.iter().copied().fold(0.0, f64::max));
    let counters = &default.counters;
    report.measure("compact_efficiency", counters.get("compact_success") / counters.get("compact_stall"));
    let scanned = counters.get("compact_migrate_scanned") + counters.get("compact_free_scanned");
    report.measure("scan_efficiency", counters.get("compact_isolated") / scanned);
    let (moved, failed) = (counters.get("pgmigrate_success"), counters.get("pgmigrate_fail"));
    report.measure("migrate_success", moved / (moved + failed));
    report.measure("pages_moved_per_whole", default.moved_per_whole());
    report.measure("moved_vs_split", default.moved_per_whole() / split.moved_per_whole());
    // A mapped folio moves without a copy. This is the share of moved pages that were copied.
    report.measure("copied_vs_moved", counters.get("compact_copied_bytes") / PAGE as f64 / moved);
    report.measure("copied_vs_split", default.copied_per_whole() / split.copied_per_whole());
    for (name, sum) in [("p99_vs_unfragmented", default), ("p99_vs_unfragmented_migrate", migrate)] {
        let ratios: Vec<f64> = sum.p99_us.iter().zip(&whole.p99_us).map(|(ours, plain)| ours / plain).collect();
        report.measure(name, median(&ratios));
    }
    let bad_words = sums.iter().map(|sum| sum.bad_words).sum::<u64>()
        + mixed(args.memory, args.rounds, &options, &mut report, (&progress, &mut runs))?;
    progress.clear();
    report.verdict(format!(
        "of the folios of 2M, {:.0} % and more come in whole with compaction, and at most {:.0} % without",
        default.shares.iter().copied().fold(1.0, f64::min) * 100.0,
        off.shares.iter().copied().fold(0.0, f64::max) * 100.0,
    ));
    report.conclude(args.json.as_deref(), bad_words)
}

fn run(
    args: &CompactArgs,
    options: &PagingOptions,
    way: &Way,
    report: &mut Report,
    (progress, runs): (&Progress, &mut Runs),
) -> Result<Sum, Failure> {
    let plan = ArenaPlan {
        tuning: Tuning { compaction: way.stage, compaction_means: way.means, ..Tuning::default() },
        ..ArenaPlan::new(args.memory, options, FolioSize::Auto)
    };
    let arena = plan.build()?;
    let mut random = Rng::with_seed(args.seed);
    let mut sum = Sum::default();
    for &threads in args.threads() {
        progress.say(format!("{}, threads: {threads}", way.name));
        let mut turns = Turns::default();
        let before = Counters::of(&arena.stats());
        for _ in 0..args.rounds {
            turn(&arena, args.memory as usize, way.scattered, threads, &mut random, &mut turns)?;
            progress.run_ended(runs);
        }
        let after = Counters::of(&arena.stats());
        turns.counters.add(&before, &after);
        sum.counters.add(&before, &after);
        turns.tell(way, threads, report, progress);
        sum.shares.push(turns.share());
        sum.p99_us.push(turns.huge.snapshot().quantile(0.99) as f64 / 1e3);
        sum.nr_whole += turns.nr_huge - turns.fallbacks;
        sum.bad_words += turns.bad_words;
    }
    Ok(sum)
}

/// A region with one word in each page. Some pages may have been dropped.
struct Marked {
    region: Region,
    dropped: Vec<bool>,
}

fn word(page: usize) -> [u8; WORD] {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()
}

impl Marked {
    fn new(arena: &Arena, nr_pages: usize, folio_bytes: usize) -> Result<Marked, Failure> {
        let folio = Order::from_bytes(folio_bytes).map_or(FolioSize::Auto, FolioSize::Fixed);
        let region = arena.map_with(nr_pages * PAGE, folio)?;
        Ok(Marked { region, dropped: vec![false; nr_pages] })
    }

    fn write(&mut self, pages: Range<usize>) {
        pages.for_each(|page| self.region[page * PAGE..page * PAGE + WORD].copy_from_slice(&word(page)));
    }

    fn drop_pages(&mut self, pages: Range<usize>) {
        self.dropped[pages.clone()].fill(true);
        self.region.advise(pages.start * PAGE..pages.end * PAGE, Advice::DontNeed);
    }

    /// The number of wrong words.
    fn check(&self) -> u64 {
        let is_right = |page: usize| {
            let expected = if self.dropped[page] { [0; WORD] } else { word(page) };
            self.region[page * PAGE..page * PAGE + WORD] == expected
        };
        (0..self.dropped.len()).filter(|&page| !is_right(page)).count() as u64
    }
}

/// Creates 4 KiB and 64 KiB folios, interleaved in RAM, and drops half of them.
fn pool(arena: &Arena, bytes: usize, scattered: bool, random: &mut Rng) -> Result<[Marked; 2], Failure> {
    let nr_pages = bytes / 2 / BLOCK * BLOCK / PAGE;
    let (mut small, mut large) =
        (Marked::new(arena, nr_pages, PAGE)?, Marked::new(arena, nr_pages, PIECE_PAGES * PAGE)?);
    for piece in (0..nr_pages).step_by(PIECE_PAGES).map(|first| first..first + PIECE_PAGES) {
        small.write(piece.clone());
        large.write(piece);
    }
    for (marked, step) in [(&mut small, 1), (&mut large, PIECE_PAGES)] {
        for first in (0..nr_pages).step_by(step) {
            if if scattered { random.bool() } else { first >= nr_pages / 2 } {
                marked.drop_pages(first..first + step);
            }
        }
    }
    Ok([small, large])
}

/// Runs one turn: fills the pool, fragments it, and has threads fault in large folios that were swapped out before.
fn turn(
    arena: &Arena,
    budget: usize,
    scattered: bool,
    threads: usize,
    random: &mut Rng,
    turns: &mut Turns,
) -> Result<(), Failure> {
    let nr_blocks = (budget * 5 / 16 / BLOCK).max(1);
    let mut huge = Marked::new(arena, nr_blocks * BLOCK / PAGE, BLOCK)?;
    huge.write(0..huge.dropped.len());
    huge.region.advise(.., Advice::Cold);
    Marked::new(arena, budget / PAGE, BLOCK)?.write(0..budget / PAGE); // pushes clean folios out of RAM
    let pool = pool(arena, budget / 10 * 9, scattered, random)?;
    let fallbacks = |stats: &StatsSnapshot| stats.swpin_fallback.last().copied().unwrap_or_default();
    let before = arena.stats();
    let mut small = Vec::new();
    for _ in 0..SMALL_THREADS {
        small.push(Marked::new(arena, SMALL_BYTES / PAGE, PAGE)?);
    }
    let mut shares: Vec<Vec<&mut [u8]>> = (0..threads).map(|_| Vec::new()).collect();
    huge.region.chunks_mut(BLOCK).enumerate().for_each(|(index, block)| shares[index % threads].push(block));
    let (start, running, done) =
        (Barrier::new(threads + SMALL_THREADS), AtomicUsize::new(threads), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for blocks in shares {
            let (start, running, done, latencies) = (&start, &running, &done, &turns.huge);
            scope.spawn(move || {
                start.wait();
                for block in blocks {
                    let begin = Instant::now();
                    block[PAGE - 1] = 1;
                    latencies.record(begin.elapsed().as_nanos() as u64);
                }
                if running.fetch_sub(1, Ordering::Relaxed) == 1 {
                    done.store(true, Ordering::Relaxed);
                }
            });
        }
        for mut small in small {
            let (start, done, latencies) = (&start, &done, &turns.base);
            scope.spawn(move || {
                start.wait();
                while !done.load(Ordering::Relaxed) {
                    for page in 0..small.dropped.len() {
                        let begin = Instant::now();
                        small.write(page..page + 1);
                        latencies.record(begin.elapsed().as_nanos() as u64);
                    }
                    small.drop_pages(0..small.dropped.len());
                }
            });
        }
    });
    turns.nr_huge += nr_blocks as u64;
    turns.fallbacks += fallbacks(&arena.stats()) - fallbacks(&before);
    turns.bad_words += huge.check() + pool.iter().map(Marked::check).sum::<u64>();
    Ok(())
}
