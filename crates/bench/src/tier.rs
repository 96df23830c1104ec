//! `folioswap bench tier`: compressed RAM in front of a file, compared with the file alone.
//!
//! Rows that compress to a third fill the memory, which is larger than RAM and the front together. The front
//! overflows before anything is counted. Then threads read, check and write random pages, nine of ten in the first
//! tenth. That tenth about fits in RAM, so that most swap-ins are from the rest, uniformly. A first run, as long as
//! the measured one, is not counted: the hot tenth was filled first and must come back from the file. The measured
//! run accesses other pages.
//!
//! Turns alternate, the file alone before both tiers, each in a new arena with a file of the same name, so that a
//! disk that slows down affects both. The front is given first and has no priority, as a user would do it.

use crate::random::{self, Outcome, Plan};
use crate::shared::access::Distribution;
use crate::shared::medians::{median, median_of_ratios};
use crate::shared::pages::{Access, PAGE_WORDS, PageSet};
use crate::shared::progress::{Progress, tell};
use crate::shared::records::Data;
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, seconds, whole_words};
use clap::Args;
use folioswap::{Arena, Codec, DeviceSpec, FolioSize, SwapDevice};
use folioswap_command::args::{PagingOptions, check_budget, memory, parsed, report_file, size};
use folioswap_command::exit::Failure;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// The smallest memory with enough pages in a tenth.
const LEAST_BYTES: u64 = 1 << 20;

/// Arguments of `bench tier`.
#[derive(Args, Debug)]
pub struct TierArgs {
    /// Size of the memory
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    size: u64,
    /// RAM that the memory may use, at least 16M
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = memory)]
    memory: u64,
    /// Memory for the compressed RAM in front, in addition to --memory, at least 8M
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    front: u64,
    /// Duration of the measured run, whose first fifth is not counted; a run of the same length to settle comes
    /// before it
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: f64,
    /// How often both take turns
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Number of threads, each over the whole memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Folio size
    #[arg(long, value_name = "auto|2M|64K|4K|...", default_value = "auto", value_parser = parsed::<FolioSize>)]
    folio: FolioSize,
    #[command(flatten)]
    options: PagingOptions,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    json: Option<PathBuf>,
}

/// The result of a turn.
struct Found {
    outcome: Outcome,
    /// Bytes read from the file per access.
    read_bytes: f64,
    /// Bytes that the front has written back. The next two are the memory that it takes and the content that it
    /// holds. All are 0 without a front.
    written_back_bytes: u64,
    memory_bytes: u64,
    content_bytes: u64,
}

impl Found {
    fn us(&self, quantile: f64) -> f64 {
        self.outcome.latencies.quantile(quantile) as f64 / 1e3
    }

    /// The figures of both ways, by name.
    fn figures(&self) -> [(&'static str, f64); 4] {
        let [p50_us, p99_us] = [0.5, 0.99].map(|quantile| self.us(quantile));
        [("ops", self.outcome.ops()), ("p50_us", p50_us), ("p99_us", p99_us), ("read_bytes_per_op", self.read_bytes)]
    }
}

/// The devices of both ways.
struct Ways {
    file: Vec<SwapDevice>,
    tier: Vec<SwapDevice>,
}

impl Ways {
    /// Without `--swap`, gives the file a path, because the engine adds no default file behind a device that was
    /// given. The engine makes its file unnamed, so that none appears at this path.
    fn new(args: &TierArgs) -> Result<Ways, Failure> {
        let unnamed = || folioswap::device::default_directory().join(format!(".folioswap-tier-{}", std::process::id()));
        let file = match &args.options.swap[..] {
            [] => vec![DeviceSpec::File { path: unnamed(), size: None }.into()],
            given => given.to_vec(),
        };
        if file.iter().any(|device| device.priority.is_some() || matches!(device.spec, DeviceSpec::Zram { .. })) {
            let message = "--swap: what is behind the compressed RAM has no priority, and does not compress itself";
            return Err(Failure::new(message));
        }
        let front = SwapDevice::from(DeviceSpec::Zram { size: args.front, codec: Codec::default() });
        let tier = std::iter::once(front).chain(file.iter().cloned()).collect();
        Ok(Ways { file, tier })
    }
}

/// Bytes read from devices that do not compress.
fn read_bytes(arena: &Arena) -> u64 {
    let files = arena.devices().into_iter().filter(|device| device.memory.is_none());
    files.map(|device| device.io.reads.bytes).sum()
}

fn turn(args: &TierArgs, bytes: usize, options: &PagingOptions, progress: &Progress) -> Result<Found, Failure> {
    let arena = ArenaPlan::new(args.memory, options, args.folio).build()?;
    let mut region = arena.map(bytes)?;
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut region[..bytes]);
    let plan = Plan {
        threads: usize::from(args.threads),
        time: Duration::from_secs_f64(args.seconds),
        distribution: Distribution::HotCold,
        access: Access::Change,
        access_words: PAGE_WORDS,
    };
    let work = || {
        let pages = PageSet::fill(words, Data::Records, plan.threads, progress.counter());
        let settling = random::access(&pages, &plan);
        let before = read_bytes(&arena);
        let mut outcome = random::access_once_more(&pages, &plan, 1);
        let read_bytes = (read_bytes(&arena) - before) as f64 / (outcome.ops() * args.seconds).max(1.0);
        let front = arena.devices().into_iter().find_map(|device| device.memory);
        let written_back_bytes = arena.stats().written_back_bytes;
        outcome.bad_words += settling.bad_words + pages.verify(plan.threads);
        Found {
            outcome,
            read_bytes,
            written_back_bytes,
            memory_bytes: front.map_or(0, |front| front.memory_bytes),
            content_bytes: front.map_or(0, |front| front.content_bytes),
        }
    };
    Ok(progress.during(Duration::from_millis(200), |_| (), work))
}

pub fn tier(args: &TierArgs) -> Result<u8, Failure> {
    check_budget(args.memory)?;
    let bytes = whole_words(args.size, LEAST_BYTES)?;
    let ways = Ways::new(args)?;
    let options = [ways.file, ways.tier].map(|swap| PagingOptions { swap, ..args.options.clone() });
    options[1].check_swap()?;
    let (mut report, mut bad_words) = (Report::new("tier"), 0);
    let mut found = [Vec::new(), Vec::new()];
    let head = ["ops/s", "p50 us", "p99 us", "read/op", "sent on", "in front", "holds"];
    tell(&format!("{:<5} {}", "way", head.map(|name| format!("{name:>10}")).join(" ")));
    for _ in 0..args.rounds {
        for ((name, options), found) in ["file", "tier"].into_iter().zip(&options).zip(&mut found) {
            let progress = Progress::new(args.size, true);
            progress.say(name.to_owned());
            let turn = turn(args, bytes, options, &progress)?;
            progress.clear();
            let figures = turn.figures();
            let shown = figures.map(|(_, figure)| format!("{figure:>10.1}")).join(" ");
            let sizes = [turn.written_back_bytes, turn.memory_bytes, turn.content_bytes];
            let sizes_shown = sizes.map(|bytes| format!("{:>9}M", bytes >> 20)).join(" ");
            tell(&format!("{name:<5} {shown} {sizes_shown}"));
            let [ops, p50_us, p99_us, read_bytes_per_op] = figures.map(|(_, figure)| figure);
            report.row(json!({
                "way": name, "folio": args.folio.to_string(), "threads": args.threads, "ops": ops, "p50_us": p50_us,
                "p99_us": p99_us, "read_bytes_per_op": read_bytes_per_op, "written_back_bytes": sizes[0],
                "front_memory_bytes": sizes[1], "front_content_bytes": sizes[2], "bad_words": turn.outcome.bad_words,
            }));
            bad_words += turn.outcome.bad_words;
            found.push(turn);
        }
    }
    conclude(args, report, &found, bad_words)
}

fn conclude(args: &TierArgs, mut report: Report, found: &[Vec<Found>; 2], bad_words: u64) -> Result<u8, Failure> {
    let [file, tier] = found;
    let of = |found: &[Found], figure: fn(&Found) -> f64| found.iter().map(figure).collect::<Vec<f64>>();
    let against = |figure: fn(&Found) -> f64| median_of_ratios(&of(tier, figure), &of(file, figure));
    report.measure("tier_vs_file", against(|turn| turn.outcome.ops()));
    report.measure("p99_vs_file", against(|turn| turn.us(0.99)));
    report.measure("file_reads_vs_file", against(|turn| turn.read_bytes));
    for (name, found) in [("file", file), ("tier", tier)] {
        report.measure(&format!("{name}_ops"), median(&of(found, |turn| turn.outcome.ops())));
        report.measure(&format!("{name}_p50_us"), median(&of(found, |turn| turn.us(0.5))));
        report.measure(&format!("{name}_p99_us"), median(&of(found, |turn| turn.us(0.99))));
    }
    report.measure("written_back_bytes", median(&of(tier, |turn| turn.written_back_bytes as f64)));
    report.measure("front_memory_bytes", median(&of(tier, |turn| turn.memory_bytes as f64)));
    report.measure("front_content_bytes", median(&of(tier, |turn| turn.content_bytes as f64)));
    report.conclude(args.json.as_deref(), bad_words)
}
