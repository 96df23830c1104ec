//! `folioswap bench auto`: compares the folio sizes that the engine chooses with the best fixed size.
//!
//! Five workloads run with every size in turn, repeatedly, each time in a new arena. The figures are medians of
//! throughput: bytes per second for the sweep, accesses per second for random access, and the geometric mean of both
//! for the mix. Every access is checked. At the end of a run all pages that it wrote are checked.

use crate::random;
use crate::shared::access::Distribution;
use crate::shared::medians::{median, ratio};
use crate::shared::mix::mix;
use crate::shared::pages::{Access, PAGE_WORDS, PageSet};
use crate::shared::progress::{Progress, Runs, tell};
use crate::shared::records::Data;
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, CommonArgs, name_of, seconds};
use crate::sweep;
use clap::{Args, ValueEnum};
use folioswap::{FolioSize, Order};
use folioswap_command::exit::Failure;
use serde_json::json;
use std::time::Duration;

/// The smallest memory whose halves have enough pages to choose from.
const LEAST_BYTES: u64 = 1 << 20;

/// Fixed sizes to compare with.
const FIXED_BYTES: [usize; 3] = [2 << 20, 64 << 10, 4 << 10];

#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Workload {
    /// Sequential, from start to end
    Sweep,
    /// 4 KiB at random, all pages equally often
    Uniform,
    /// 4 KiB at random, zipf:0.99
    Zipf,
    /// 4 KiB at random, nine of ten accesses in a tenth of the memory
    Hotcold,
    /// One thread streams through one half, another accesses the other half at random
    Mix,
}

impl Workload {
    fn distribution(self) -> Distribution {
        match self {
            Workload::Sweep | Workload::Uniform | Workload::Mix => Distribution::Uniform,
            Workload::Zipf => Distribution::Zipf { theta: 0.99 },
            Workload::Hotcold => Distribution::HotCold,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Workload::Sweep => "GB/s",
            Workload::Mix => "mean",
            _ => "ops/s",
        }
    }
}

/// Arguments of `bench auto`.
#[derive(Args, Debug)]
pub struct AutoArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Run only this workload, repeatable
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<Workload>,
    /// Threads of the sweep and of the random accesses
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Duration of each random run; the first fifth is not counted. Short runs show how RAM that was filled in blocks
    /// is converted to pages. 20 with --full
    #[arg(long, value_name = "S", default_value = "1", default_value_if("full", "true", "20"), value_parser = seconds)]
    pub seconds: f64,
    /// How often all sizes take turns; 2 with --full
    #[arg(
        long, value_name = "N", default_value = "1", default_value_if("full", "true", "2"),
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    pub repeats: u16,
}

/// Throughput of a run in the unit of its workload, and the number of wrong words.
struct Run {
    throughput: f64,
    bad_words: u64,
}

pub fn auto(args: &AutoArgs) -> Result<u8, Failure> {
    let bytes = args.common.check(LEAST_BYTES)?;
    let mut sizes: Vec<FolioSize> =
        FIXED_BYTES.into_iter().filter_map(Order::from_bytes).map(FolioSize::Fixed).collect();
    sizes.push(FolioSize::Auto);
    let workloads = if args.workload.is_empty() { Workload::value_variants() } else { &args.workload[..] };
    let mut report = Report::new("auto");
    let (mut bad_words, mut least): (u64, Option<f64>) = (0, None);
    let mut runs = Runs::new(workloads.len() * usize::from(args.repeats) * sizes.len());
    tell(&format!("{:<10} {:<6} {:>4} {:>12}", "workload", "folio", "run", "throughput"));
    for &workload in workloads {
        let name = name_of(workload);
        let mut figures = vec![Vec::new(); sizes.len()];
        for repeat in 1..=args.repeats {
            for (folio, figures) in sizes.iter().zip(&mut figures) {
                let run = run(args, bytes, workload, *folio, &runs)?;
                runs.ended();
                let (unit, throughput) = (workload.unit(), run.throughput);
                tell(&format!(
                    "{name:<10} {folio:<6} {repeat:>4} {throughput:>12.3} {unit}",
                    folio = folio.to_string()
                ));
                report.row(json!({
                    "workload": name, "folio": folio.to_string(), "run": repeat, "throughput": throughput,
                    "unit": unit, "bad_words": run.bad_words,
                }));
                figures.push(throughput);
                bad_words += run.bad_words;
            }
        }
        let mut medians: Vec<Option<f64>> = figures.iter().map(|figures| median(figures)).collect();
        let auto = medians.pop().flatten();
        let best = medians.into_iter().flatten().reduce(f64::max);
        let auto_vs_best = ratio(auto, best);
        report.measure(&format!("auto_vs_best_{name}"), auto_vs_best);
        least = least.into_iter().chain(auto_vs_best).reduce(f64::min);
    }
    report.measure("auto_vs_best_min", least);
    let times = report.times("auto_vs_best_min");
    report.verdict(format!(
        "in runs of {} s, auto is at least {times} times as fast as the best fixed size of each workload",
        args.seconds
    ));
    report.conclude(args.common.json.as_deref(), bad_words)
}

fn run(args: &AutoArgs, bytes: usize, workload: Workload, folio: FolioSize, runs: &Runs) -> Result<Run, Failure> {
    let arena = ArenaPlan::new(args.common.memory, &args.common.options, folio).build()?;
    let mut region = arena.map(bytes)?;
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut region[..bytes]);
    let progress = Progress::new(args.common.size, true);
    progress.say(format!("{} {folio}", name_of(workload)));
    progress.left(runs);
    let threads = usize::from(args.threads);
    let plan = random::Plan {
        threads: if workload == Workload::Mix { 1 } else { threads },
        time: Duration::from_secs_f64(args.seconds),
        distribution: workload.distribution(),
        access: Access::Change,
        access_words: PAGE_WORDS,
    };
    let counter = progress.counter();
    let work = || match workload {
        Workload::Sweep => {
            let plan = sweep::Plan { threads, rounds: 2, read_rounds: 1, data: Data::Plain };
            let rows = sweep::sweep(words, &plan, counter, |_| ());
            let later = || rows.iter().filter(|row| row.kind != sweep::Kind::First);
            let (bytes, seconds) =
                (later().map(|row| row.bytes).sum::<u64>(), later().map(|row| row.seconds).sum::<f64>());
            Run { throughput: bytes as f64 / seconds / 1e9, bad_words: rows.iter().map(|row| row.bad_words).sum() }
        }
        Workload::Mix => {
            let (streamed, accessed) = words.split_at_mut(words.len() / 2);
            let mixed = mix(streamed, accessed, &plan, counter);
            Run { throughput: mixed.score(), bad_words: mixed.bad_words }
        }
        _ => {
            let pages = PageSet::fill(words, Data::Plain, threads, counter);
            let outcome = random::access(&pages, &plan);
            Run { throughput: outcome.ops(), bad_words: outcome.bad_words + pages.verify_written(threads) }
        }
    };
    let run = progress.during(Duration::from_millis(200), |_| (), work);
    progress.clear();
    Ok(run)
}
