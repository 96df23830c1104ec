//! `folioswap bench latency`: swap-ins at a steady rate while slots are being freed.
//!
//! An open loop: each touch is due at a time fixed in advance and its latency counts from that time, so that a touch
//! delayed by an earlier one counts as slow. Two ways to free slots take turns, each in an arena of its own. `sync`:
//! in batches, by the fault that fills a batch. `async`, the engine's way: one by one where that is nearly free, else
//! in batches by a thread. `turn` runs a turn.

mod report;
mod turn;

use crate::latency::report::{row, tell_head, tell_phases, tell_shares};
use crate::latency::turn::{Outcome, Pace, Turn};
use crate::shared::medians::{median, median_of_ratios};
use crate::shared::progress::tell;
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, CommonArgs, seconds};
use clap::{Args, ValueEnum};
use folioswap::{DeviceSpec, FaultMode, FolioSize, Frees, Order, SharedStats, Stopwatch, Tuning};
use folioswap_command::args::PagingOptions;
use folioswap_command::exit::Failure;
use folioswap_core::{FaultKind, Phase};
use folioswap_sys::clock;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

/// Warm-up before a turn is counted, as a fraction of the counted time.
const WARM_UP: f64 = 0.3;
/// Rate of the touches, as a fraction of what one thread achieves without pauses.
const LOAD: f64 = 0.25;
/// Above this busy share, a thread is late for most touches because of earlier ones.
const OVERLOADED: f64 = 0.8;
/// How often an overloaded round is repeated.
const MOST_AGAIN: u32 = 3;
/// Size of the device in quarters of the memory. More than half of it is in use while at most a quarter of the memory
/// is in RAM.
const DEVICE_QUARTERS: u64 = 5;
/// The smallest memory with enough folios to choose from.
const LEAST_BYTES: u64 = 64 << 20;

/// Folio sizes.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Folio {
    /// 4 KiB
    #[value(name = "4K", alias = "4k")]
    Page,
    /// 64 KiB
    #[value(name = "64K", alias = "64k")]
    Piece,
}

impl Folio {
    /// The name in output, and the suffix of measures.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Folio::Page => ("4K", "4k"),
            Folio::Piece => ("64K", "64k"),
        }
    }

    fn order(self) -> Order {
        match self {
            Folio::Page => Order::PAGE,
            Folio::Piece => folioswap_core::PIECE,
        }
    }
}

/// Arguments of `bench latency`.
#[derive(Args, Debug)]
pub struct LatencyArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Use only folios of this size [default: both in turn]
    #[arg(long, value_name = "4K|64K")]
    pub folio: Option<Folio>,
    /// Touches a second [default: a quarter of what a thread achieves without pauses, measured anew for each round]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: Option<u32>,
    /// Counted duration of each turn; 5 with --full
    #[arg(long, value_name = "S", default_value = "2", default_value_if("full", "true", "5"), value_parser = seconds)]
    pub seconds: f64,
    /// How often both ways take turns; 3 with --full
    #[arg(
        long, value_name = "R", default_value = "2", default_value_if("full", "true", "3"),
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    pub rounds: u16,
    /// Seed of the random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// The ways to free slots, by name.
const WAYS: [(&str, Frees); 2] = [("sync", Frees::Synchronous), ("async", Frees::Cheapest)];

/// A figure to compare the ways by.
type Figure = fn(&Outcome) -> f64;

/// One turn of each way, in the order of [`WAYS`], at the same rate.
struct Round {
    turns: [Outcome; 2],
    rate: f64,
    kept_up: bool,
}

/// All rounds with one folio size.
struct Compared {
    folio: Folio,
    rounds: Vec<Round>,
}

impl Compared {
    /// Async over sync: the median of the rounds.
    fn ratio(&self, of: Figure) -> Option<f64> {
        let [sync, later] = [0, 1].map(|way| self.rounds.iter().map(|round| of(&round.turns[way])).collect::<Vec<_>>());
        median_of_ratios(&later, &sync)
    }

    fn merged(&self) -> [Outcome; 2] {
        [0, 1].map(|way| {
            let mut sum = Outcome::default();
            self.rounds.iter().for_each(|round| sum.merge(&round.turns[way]));
            sum
        })
    }

    fn rate(&self) -> Option<f64> {
        median(&self.rounds.iter().map(|round| round.rate.round()).collect::<Vec<_>>())
    }
}

pub fn latency(args: &LatencyArgs) -> Result<u8, Failure> {
    let bytes = args.common.check(LEAST_BYTES)? / Order::HUGE.bytes() * Order::HUGE.bytes();
    if args.common.memory > bytes as u64 / 4 {
        let message =
            "--size is to be at least four times --memory: a device that is more than half full keeps no copies";
        return Err(Failure::new(message));
    }
    let options = options(args, bytes as u64);
    let folios = args.folio.map_or(vec![Folio::Page, Folio::Piece], |folio| vec![folio]);
    let mut report = Report::new("latency");
    let mut all = Vec::new();
    for folio in folios {
        all.push(Compare { args, options: &options, bytes, folio }.all_rounds(&mut report)?);
    }
    let measures = [
        ("tail", Outcome::tail as Figure),
        ("p50", Outcome::p50_ns),
        ("engine_tail", Outcome::engine_tail),
        ("freeing_tail", Outcome::freeing_tail),
    ];
    for (name, of) in measures {
        let mut worst = None;
        for compared in &all {
            let ratio = compared.ratio(of);
            report.measure(&format!("{name}_async_vs_sync_{}", compared.folio.names().1), ratio);
            worst = worst.into_iter().chain(ratio).reduce(f64::max);
        }
        report.measure(&format!("{name}_async_vs_sync"), worst);
    }
    for compared in &all {
        report.measure(&format!("rate_{}", compared.folio.names().1), compared.rate());
    }
    let overloaded = all.iter().flat_map(|compared| &compared.rounds).filter(|round| !round.kept_up).count();
    report.measure("overloaded_rounds", overloaded as f64);
    let [accounting_long_ns, accounting_ns] = accounting_ns()?;
    report.measure("accounting_ns", accounting_ns);
    report.measure("accounting_long_ns", accounting_long_ns);
    let bad_words: u64 = all.iter().flat_map(Compared::merged).map(|outcome| outcome.bad_words).sum();
    report.conclude(args.common.json.as_deref(), bad_words)
}

/// The devices are more than half full and faults are direct, unless the user chose otherwise.
fn options(args: &LatencyArgs, bytes: u64) -> PagingOptions {
    let mut options = args.common.options.clone();
    let device_bytes = bytes / 4 * DEVICE_QUARTERS;
    if options.faults == FaultMode::Auto {
        options.faults = FaultMode::Direct;
    }
    if options.swap.is_empty() {
        options.swap.push(DeviceSpec::Ram { size: device_bytes }.into());
    }
    for device in &mut options.swap {
        if let DeviceSpec::File { path, size: size @ None } = &mut device.spec
            && !std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
        {
            *size = Some(device_bytes);
        }
    }
    options
}

/// What all turns with one folio size share.
struct Compare<'a> {
    args: &'a LatencyArgs,
    options: &'a PagingOptions,
    bytes: usize,
    folio: Folio,
}

impl Compare<'_> {
    fn turn(&self, frees: Frees, pace: Pace, seconds: f64, seed: u64) -> Result<Outcome, Failure> {
        let (order, time) = (self.folio.order(), Duration::from_secs_f64(seconds));
        turn::run(&Turn {
            plan: ArenaPlan {
                tuning: Tuning { frees, ..Tuning::default() },
                ..ArenaPlan::new(self.args.common.memory, self.options, FolioSize::Fixed(order))
            },
            order,
            bytes: self.bytes,
            pace,
            warm_up: time.mul_f64(WARM_UP),
            time,
            seed,
        })
    }

    /// Runs both ways at one rate. The rate is measured anew for each round unless it is given, because the speed of
    /// machines varies. If one way turns out to be overloaded, both run again at half the rate: an overloaded turn
    /// only times its queue.
    fn round(&self, seed: u64, report: &mut Report) -> Result<Round, Failure> {
        let name = self.folio.names().0;
        let (mut rate, mut bad_words) = match self.args.rate {
            Some(rate) => (f64::from(rate), 0),
            None => {
                let closed = self.turn(Frees::Synchronous, Pace::Closed, self.args.seconds / 2.0, seed)?;
                (closed.rate() * LOAD, closed.bad_words)
            }
        };
        if rate <= 0.0 {
            let seconds = self.args.seconds / 2.0;
            return Err(Failure::new(format!("no operation ended within {seconds} s: give more --seconds")));
        }
        let mut again = 0;
        loop {
            let mut turns = [Outcome::default(), Outcome::default()];
            for ((_, frees), turn) in WAYS.into_iter().zip(&mut turns) {
                *turn = self.turn(frees, Pace::Open(rate), self.args.seconds, seed)?;
            }
            let busiest = turns[0].busy_share().max(turns[1].busy_share());
            let kept_up = busiest < OVERLOADED && turns.iter().all(|turn| turn.nr_given_up == 0);
            tell(&format!("{name}: {rate:.0} touches a second, busy for {:.0} % of the time", busiest * 100.0));
            if kept_up || self.args.rate.is_some() || again == MOST_AGAIN {
                for ((way, _), turn) in WAYS.iter().zip(&turns) {
                    report.row(row(name, way, rate, kept_up, turn));
                }
                turns[0].bad_words += bad_words;
                return Ok(Round { turns, rate, kept_up });
            }
            bad_words += turns[0].bad_words + turns[1].bad_words;
            rate /= 2.0;
            again += 1;
        }
    }

    fn all_rounds(&self, report: &mut Report) -> Result<Compared, Failure> {
        let (name, args) = (self.folio.names().0, self.args);
        tell(&format!(
            "{name}: {} faults, {} rounds of {:.1} s each way",
            self.options.faults, args.rounds, args.seconds
        ));
        let mut rounds = Vec::new();
        for round in 1..=u64::from(args.rounds) {
            rounds.push(self.round(args.seed + round, report)?);
        }
        let compared = Compared { folio: self.folio, rounds };
        let [sync, later] = &compared.merged();
        tell_head();
        tell_shares(name, WAYS[0].0, sync);
        tell_shares(name, WAYS[1].0, later);
        if sync.phases[Phase::Free.index()].count() == 0 {
            tell("no swap-in gave slots back: the device is less than half full");
        }
        tell_phases(name, &[(WAYS[0].0, sync), (WAYS[1].0, later)]);
        Ok(compared)
    }
}

/// Cost of the accounting of a fault, clock reads and counting: first for faults with a long part, then for all
/// others, of which a sample is timed in phases. The best of several runs, because other work shares the machine.
fn accounting_ns() -> Result<[f64; 2], Failure> {
    const EACH: u32 = 20_000;
    let shared = SharedStats::new().map_err(|error| Failure::new(format!("shared memory: {error}")))?;
    clock::calibrate();
    let stats = shared.get().stats();
    let fault = |long: bool| {
        let mut watch = Stopwatch::start();
        if long {
            watch.long_part(Phase::Frame);
        } else {
            watch.lap(Phase::Frame);
        }
        [Phase::Read, Phase::Map, Phase::Free].into_iter().for_each(|phase| watch.lap(phase));
        stats.record_fault(FaultKind::SwapIn, Order::PAGE, 1, watch.stop(Phase::Map));
    };
    Ok([true, false].map(|long| {
        let times = (0..50).map(|_| {
            let begun = Instant::now();
            (0..EACH).for_each(|_| fault(std::hint::black_box(long)));
            begun.elapsed().as_nanos() as f64 / f64::from(EACH)
        });
        times.fold(f64::INFINITY, f64::min)
    }))
}
