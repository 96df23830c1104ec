//! `folioswap bench random`: random access over a managed region, compared with kernel swap.
//!
//! The kernel's turn is first. Its cgroup also has room for the bookkeeping of the benchmark. Its program does not
//! ask for huge pages and gets what the system gives such programs by default.

use crate::random::{self, Outcome, Plan};
use crate::shared::access::Distribution;
use crate::shared::kernel_turn::{KernelTurn, Turn, Versus};
use crate::shared::medians::ratio;
use crate::shared::pages::{Access, PAGE_WORDS, PageSet};
use crate::shared::progress::{Progress, tell};
use crate::shared::records::{Data, ROW_WORDS};
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, backing, name_of, seconds, whole_words};
use clap::Args;
use folioswap::ExitStatus;
use folioswap_command::args::{Folios, Paging, check_budget, parsed, report_file, size};
use folioswap_command::exit::Failure;
use serde_json::json;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ChildStdout;
use std::time::Duration;

/// The smallest memory with enough pages to choose from.
const LEAST_BYTES: u64 = 64 << 10;

/// The quantiles in the output.
const QUANTILES: [(&str, f64); 4] = [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999)];

/// The parameters of the accesses.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Size of the region
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: u64,
    /// Number of threads, each over the whole region
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Duration; the first fifth is not counted
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub seconds: f64,
    /// Only read and check [default: read, check and write]
    #[arg(long, conflicts_with = "write")]
    pub read: bool,
    /// Only write
    #[arg(long)]
    pub write: bool,
    /// How pages are chosen
    #[arg(long, value_name = "uniform|zipf:THETA|hotcold", default_value = "uniform", value_parser = parsed::<Distribution>)]
    pub dist: Distribution,
    /// Bytes of an access, aligned to its size: a power of two from 8 to 4K
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = access_size)]
    pub access: u64,
    /// Content of the pages; with records an access is of whole rows, 128 bytes or more
    #[arg(long, value_enum, default_value_t)]
    pub data: Data,
}

fn access_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes.is_power_of_two() && (8..=4096).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("{text} bytes are no access: a power of two from 8 to 4K would do"))
}

impl Shape {
    fn kind(&self) -> Access {
        match (self.read, self.write) {
            (true, _) => Access::Read,
            (_, true) => Access::Write,
            _ => Access::Change,
        }
    }

    fn plan(&self) -> Plan {
        Plan {
            threads: usize::from(self.threads),
            time: Duration::from_secs_f64(self.seconds),
            distribution: self.dist,
            access: self.kind(),
            access_words: self.access as usize / size_of::<u64>(),
        }
    }

    fn bytes(&self) -> Result<usize, Failure> {
        let row_bytes = (ROW_WORDS * size_of::<u64>()) as u64;
        if self.data == Data::Records && self.access < row_bytes {
            let message = format!("rows of records are accessed in whole ones: --access {row_bytes} or more");
            return Err(Failure::new(message));
        }
        whole_words(self.size, LEAST_BYTES)
    }

    /// The same parameters as arguments of the hidden subcommand.
    fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        for (name, value) in [
            ("--size", self.size.to_string()),
            ("--threads", self.threads.to_string()),
            ("--seconds", self.seconds.to_string()),
            ("--dist", self.dist.to_string()),
            ("--access", self.access.to_string()),
            ("--data", name_of(self.data)),
        ] {
            arguments.extend([name.into(), value.into()]);
        }
        match self.kind() {
            Access::Read => arguments.push("--read".into()),
            Access::Write => arguments.push("--write".into()),
            Access::Change => {}
        }
        arguments
    }
}

/// Arguments of `bench random`.
#[derive(Args, Debug)]
pub struct RandomArgs {
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub paging: Paging,
    #[command(flatten)]
    pub folios: Folios,
    /// Run the same first in another way, and compare
    #[arg(long)]
    pub versus: Option<Versus>,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub json: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Debug, Default)]
struct Figures {
    ops: f64,
    /// In the order of [`QUANTILES`].
    quantiles_us: [f64; 4],
    bad_words: u64,
}

impl Figures {
    fn new(outcome: &Outcome) -> Figures {
        let quantiles_us = QUANTILES.map(|(_, q)| outcome.latencies.quantile(q) as f64 / 1e3);
        Figures { ops: outcome.ops(), quantiles_us, bad_words: outcome.bad_words }
    }

    fn p99_us(&self) -> f64 {
        self.quantiles_us[2]
    }

    fn format(&self) -> String {
        let [p50, p90, p99, p999] = self.quantiles_us;
        format!("figures {} {p50} {p90} {p99} {p999} {}", self.ops, self.bad_words)
    }

    fn parse(line: &str) -> Option<Figures> {
        let mut fields = line.strip_prefix("figures ")?.split(' ');
        let mut number = || fields.next()?.parse::<f64>().ok();
        let ops = number()?;
        let quantiles_us = [number()?, number()?, number()?, number()?];
        Some(Figures { ops, quantiles_us, bad_words: fields.next()?.parse().ok()? })
    }

    fn show(&self, system: &str) {
        let [p50, p90, p99, p999] = self.quantiles_us;
        tell(&format!("{system:<10} {:>10.0} {p50:>10.1} {p90:>10.1} {p99:>10.1} {p999:>10.1}", self.ops));
    }

    fn measure(&self, report: &mut Report, prefix: &str) {
        report.measure(&format!("{prefix}ops"), self.ops);
        for ((name, _), us) in QUANTILES.into_iter().zip(self.quantiles_us) {
            report.measure(&format!("{prefix}{name}"), us);
        }
    }
}

pub fn random(args: &RandomArgs) -> Result<u8, Failure> {
    check_budget(args.paging.memory)?;
    let bytes = args.shape.bytes()?;
    args.paging.options.check_swap()?;
    tell(&format!(
        "{:<10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "system", "ops/s", "p50 us", "p90 us", "p99 us", "p99.9 us"
    ));
    let mut report = Report::new("random");
    let mut row = |system: &str, folio: &str, figures: &Figures| {
        let [p50, p90, p99, p999] = figures.quantiles_us;
        report.row(json!({
            "system": system, "folio": folio, "kind": args.shape.kind().name(), "dist": args.shape.dist.to_string(),
            "access_bytes": args.shape.access, "data": name_of(args.shape.data), "threads": args.shape.threads,
            "seconds": args.shape.seconds,
            "ops": figures.ops, "p50_us": p50, "p90_us": p90, "p99_us": p99, "p999_us": p999,
            "bad_words": figures.bad_words,
        }));
    };
    let mut kernel = None;
    if args.versus == Some(Versus::Kernel) {
        let figures = match under_kernel(args)? {
            Turn::Over(figures, _) => figures,
            Turn::Ended(status) => return Ok(status),
        };
        row("kernel", "", &figures);
        kernel = Some(figures);
    }
    let (figures, stats) = managed(args, bytes)?;
    row("folioswap", &args.folios.folio.to_string(), &figures);
    figures.measure(&mut report, "");
    report.measure("pswpin", stats.pswpin() as f64);
    report.measure("pswpout", stats.pswpout() as f64);
    let longest_ns = stats.faults.iter().map(|faults| faults.max()).max().unwrap_or_default();
    report.measure("longest_fault_us", longest_ns as f64 / 1e3);
    if let Some(kernel) = &kernel {
        kernel.measure(&mut report, "kernel_");
    }
    report.measure("ops_vs_kernel", ratio(Some(figures.ops), kernel.as_ref().map(|kernel| kernel.ops)));
    report.measure("p99_vs_kernel", ratio(Some(figures.p99_us()), kernel.as_ref().map(Figures::p99_us)));
    report.conclude(args.json.as_deref(), figures.bad_words)
}

fn managed(args: &RandomArgs, bytes: usize) -> Result<(Figures, folioswap::StatsSnapshot), Failure> {
    let arena = ArenaPlan::of(&args.paging, &args.folios).build()?;
    let mut region = arena.map(bytes)?;
    let figures = fill_and_access(bytemuck::cast_slice_mut(&mut region[..bytes]), &args.shape, "folioswap", true);
    figures.show("folioswap");
    Ok((figures, arena.stats()))
}

fn fill_and_access(words: &mut [u64], shape: &Shape, system: &str, shown: bool) -> Figures {
    let progress = Progress::new(shape.size, shown);
    progress.say(system.to_owned());
    let period = Duration::from_millis(200);
    let outcome = progress.during(period, |_| (), || random::run(words, shape.data, &shape.plan(), progress.counter()));
    progress.clear();
    Figures::new(&outcome)
}

/// The turn under kernel swap.
fn under_kernel(args: &RandomArgs) -> Result<Turn<Figures>, Failure> {
    let mut argv: Vec<OsString> = vec!["folioswap".into(), "__random".into()];
    argv.extend(args.shape.to_arguments());
    let size = args.shape.size;
    let books_bytes = size / (PAGE_WORDS * size_of::<u64>()) as u64 * PageSet::BOOK_BYTES as u64;
    let turn = KernelTurn {
        memory_bytes: args.paging.memory.saturating_add(books_bytes),
        data_bytes: size,
        backing: backing(&args.paging.options.swap),
        argv,
    };
    match turn.run(read_figures)? {
        Turn::Over(Some(figures), stored) => {
            figures.show("kernel");
            Ok(Turn::Over(figures, stored))
        }
        Turn::Over(None, _) => Err(Failure::new("the run under the kernel's swap told no figures")),
        Turn::Ended(status) => Ok(Turn::Ended(status)),
    }
}

fn read_figures(output: ChildStdout) -> Option<Figures> {
    BufReader::new(output).lines().map_while(Result::ok).find_map(|line| Figures::parse(&line))
}

/// The same over the memory of an ordinary process. Prints the figures as a line on standard output.
pub fn inner(shape: &Shape) -> Result<u8, Failure> {
    let mut memory = vec![0u64; shape.bytes()? / size_of::<u64>()];
    let figures = fill_and_access(&mut memory, shape, "", false);
    tell(&figures.format());
    Ok(if figures.bad_words == 0 { 0 } else { ExitStatus::CheckFailed.code() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        shape: Shape,
    }

    #[test]
    fn figures_survive_the_pipe() {
        let figures = Figures { ops: 1234.5, quantiles_us: [0.5, 1.0, 2.25, 1e6], bad_words: 3 };
        assert_eq!(Figures::parse(&figures.format()), Some(figures));
        assert_eq!(Figures::parse("at 17"), None);
    }

    #[test]
    fn the_shape_survives_the_command_line() {
        use clap::Parser;
        for kind in ["--read", "--write", "--data=records"] {
            let line = ["x", "--size", "1M", "--seconds", "0.25", "--dist", "zipf:0.5", "--access", "128", kind];
            let shape = Line::try_parse_from(line).expect("a shape").shape;
            let again = std::iter::once("x".into()).chain(shape.to_arguments());
            let again = Line::try_parse_from(again).expect("own arguments parse").shape;
            assert_eq!(format!("{:?}", again.plan()), format!("{:?}", shape.plan()));
            assert_eq!((again.size, again.data), (1 << 20, shape.data));
        }
    }
}
