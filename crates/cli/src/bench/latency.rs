//! `folioswap bench latency`: swap-ins at a steady rate while slots are being freed.
//!
//! Open loop: each touch has its time, fixed beforehand, and its latency counts from there, so one that is late because of the one
//! before counts as slow. Two ways of giving slots back take their turns, each in an arena of its own: in batches, by the fault
//! that fills one (sync), and as the engine does it (async): one by one where that costs next to nothing, else in batches by a
//! thread. What the turns do is in `latency_turn`. In the end first touches are timed (`first_touch`).

use super::first_touch::first_touches;
use super::latency_plot::{self, Line};
use super::latency_report::{row, tell_head, tell_phases, tell_shares};
use super::latency_turn::{self, Outcome, Pace, Turn};
use super::medians::{median, median_of_ratios};
use super::progress::tell;
use super::report::Report;
use super::setup::{ArenaPlan, CommonArgs, seconds};
use crate::args::Means;
use crate::exit::{Failure, Status};
use clap::{Args, ValueEnum};
use folioswap::{DeviceSpec, FaultMode, FolioSize, Frees, Order, SharedStats, Stopwatch};
use folioswap_core::{FaultKind, Phase};
use folioswap_sys::clock::Clock;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The part of a turn's time that goes by before it is counted.
const WARM_UP: f64 = 0.3;
/// The part of what one thread can do without a pause that is asked for.
const LOAD: f64 = 0.25;
/// Busy for a larger part of its time, a thread is late for most touches because of those before.
const OVERLOADED: f64 = 0.8;
/// Times that a round is done again where that is so.
const MOST_AGAIN: u32 = 3;
/// Size of the device in quarters of the memory's: more than half of it is full while at most a quarter of the memory is in RAM.
const DEVICE_QUARTERS: u64 = 5;
/// The fewest bytes with folios to choose from.
const LEAST_BYTES: u64 = 64 << 20;

/// Sizes of folios.
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
    /// As it is told, and as its measures end.
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
    /// Only folios of this size [default: both in turn]
    #[arg(long, value_name = "4K|64K")]
    pub folio: Option<Folio>,
    /// Touches a second [default: a quarter of what a thread does without a pause, found anew for each round]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: Option<u32>,
    /// How long each turn is counted
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub seconds: f64,
    /// Times that both ways take their turns
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Where the choices begin
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Draw the distributions to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// The ways, by their names.
const WAYS: [(&str, Frees); 2] = [("sync", Frees::Synchronous), ("async", Frees::Cheapest)];

/// What the ways are compared by.
type Figure = fn(&Outcome) -> f64;

/// Both ways, in the order of [`WAYS`], at one rate.
struct Round {
    turns: [Outcome; 2],
    rate: f64,
    kept_up: bool,
}

/// All rounds of one size of folios.
struct Compared {
    folio: Folio,
    rounds: Vec<Round>,
}

impl Compared {
    /// Async in units of sync: the median over the rounds.
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

/// The benchmark.
pub fn latency(args: &LatencyArgs) -> Result<u8, Failure> {
    let bytes = args.common.check(LEAST_BYTES)? / Order::HUGE.bytes() * Order::HUGE.bytes();
    if args.common.memory > bytes as u64 / 4 {
        let message =
            "--size is to be at least four times --memory: a device that is more than half full keeps no copies";
        return Err(Failure::new(Status::Usage, message));
    }
    let means = means(args, bytes as u64);
    let folios = args.folio.map_or(vec![Folio::Page, Folio::Piece], |folio| vec![folio]);
    let mut report = Report::new("latency");
    let mut all = Vec::new();
    for folio in folios {
        all.push(Compare { args, means: &means, bytes, folio }.all_rounds(&mut report)?);
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
    let merged: Vec<_> = all.iter().map(|compared| (compared.folio, compared.merged())).collect();
    if let Some(file) = &args.plot {
        let lines = merged.iter().flat_map(|(folio, outcomes)| {
            WAYS.iter()
                .zip(outcomes)
                .map(|((way, _), outcome)| Line { name: format!("{} {way}", folio.names().0), times: &outcome.due })
        });
        latency_plot::draw(file, "Swap-ins at a steady rate while slots are freed", &lines.collect::<Vec<_>>())?;
    }
    let first_touches = first_touches(args.common.memory, args.rounds, &means, &mut report)?;
    let bad_words: u64 = merged.iter().flat_map(|(_, outcomes)| outcomes).map(|outcome| outcome.bad_words).sum();
    report.conclude(args.common.json.as_deref(), bad_words + first_touches)
}

/// Devices that are more than half full, and direct faults, unless others are asked for.
fn means(args: &LatencyArgs, bytes: u64) -> Means {
    let mut means = args.common.means.clone();
    let device_bytes = bytes / 4 * DEVICE_QUARTERS;
    if means.faults == FaultMode::Auto {
        means.faults = FaultMode::Direct;
    }
    if means.swap.is_empty() {
        means.swap.push(DeviceSpec::Ram { size: device_bytes }.into());
    }
    for device in &mut means.swap {
        if let DeviceSpec::File { path, size: size @ None } = &mut device.spec
            && !std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
        {
            *size = Some(device_bytes);
        }
    }
    means
}

/// What turns of one size of folios have in common.
struct Compare<'a> {
    args: &'a LatencyArgs,
    means: &'a Means,
    bytes: usize,
    folio: Folio,
}

impl Compare<'_> {
    fn turn(&self, frees: Frees, pace: Pace, seconds: f64, seed: u64) -> Result<Outcome, Failure> {
        let (order, time) = (self.folio.order(), Duration::from_secs_f64(seconds));
        latency_turn::run(&Turn {
            plan: ArenaPlan { frees, ..ArenaPlan::new(self.args.common.memory, self.means, FolioSize::Fixed(order)) },
            order,
            bytes: self.bytes,
            pace,
            warm_up: time.mul_f64(WARM_UP),
            time,
            seed,
        })
    }

    /// Both ways at one rate, which is found anew for each round unless it is given: machines become slower and faster. Where
    /// one of them has hardly a pause after all, both do it again at half the rate: what is timed there is the queue.
    fn round(&self, seed: u64, report: &mut Report) -> Result<Round, Failure> {
        let name = self.folio.names().0;
        let (mut rate, mut bad_words) = match self.args.rate {
            Some(rate) => (f64::from(rate), 0),
            None => {
                let closed = self.turn(Frees::Synchronous, Pace::Closed, self.args.seconds / 2.0, seed)?;
                (closed.rate() * LOAD, closed.bad_words)
            }
        };
        let mut again = 0;
        loop {
            let mut turns = [Outcome::default(), Outcome::default()];
            for ((_, frees), turn) in WAYS.into_iter().zip(&mut turns) {
                *turn = self.turn(frees, Pace::Open(rate), self.args.seconds, seed)?;
            }
            let busiest = turns[0].busy_share().max(turns[1].busy_share());
            let kept_up = busiest < OVERLOADED;
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
            self.means.faults, args.rounds, args.seconds
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

/// What the accounting of a fault costs: of those that begin something long, and of all others, of which some are drawn. The looks
/// at the clock, and the counting; the best of several times, as others use the machine.
fn accounting_ns() -> Result<[f64; 2], Failure> {
    const EACH: u32 = 20_000;
    let shared = SharedStats::new().map_err(|error| Failure::new(Status::Failed, format!("shared memory: {error}")))?;
    let (clock, stats) = (Clock::new(), shared.get().stats());
    let fault = |long: bool| {
        let mut watch = Stopwatch::start(&clock);
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
