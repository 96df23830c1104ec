//! `folioswap bench sweep`: the sweep over a managed region, beside the kernel's swap and the raw disk.
//!
//! Order: the kernel's turn (in a cgroup of the same size, on the same disk), raw reads, the managed sweep, raw reads again. The
//! kernel's turn is over and undone before the others begin, so the two never share the machine.

use super::raw::RawFile;
use super::sweep::{self, Kind, Plan, Row};
use super::{Progress, Report, tell};
use crate::args::{Paging, size};
use crate::exit::{Failure, Status};
use crate::launch::{ExecArgs, own_executable};
use crate::peer::{Backing, Peer, Setup};
use crate::supervise::Supervisor;
use crate::swap_check;
use clap::{Args, ValueEnum};
use folioswap::DeviceSpec;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Raw rounds before the managed sweep, and again after it.
const RAW_ROUNDS: usize = 2;
/// How often residency is measured.
const SAMPLE_PERIOD: Duration = Duration::from_millis(50);

/// What to compare with.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Versus {
    /// The kernel's own swap (root).
    Kernel,
}

/// The shape of the sweep.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Size of the array
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: u64,
    /// Threads, each with a share of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Times that each share is written
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Times that each share is then read and checked
    #[arg(long, value_name = "Q", default_value_t = 2)]
    pub read_rounds: u16,
}

impl Shape {
    fn plan(&self) -> Plan {
        Plan {
            threads: usize::from(self.threads),
            rounds: usize::from(self.rounds),
            read_rounds: usize::from(self.read_rounds),
        }
    }

    /// Whole words.
    fn bytes(&self) -> Result<usize, Failure> {
        match usize::try_from(self.size) {
            Ok(bytes) if bytes >= size_of::<u64>() => Ok(bytes / size_of::<u64>() * size_of::<u64>()),
            _ => Err(Failure::new(
                Status::Usage,
                format!("a sweep over {} bytes makes no sense; try --size 2G", self.size),
            )),
        }
    }
}

/// Arguments of `bench sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub paging: Paging,
    /// Run the same sweep first under the kernel's swap, with the same memory and disk (root)
    #[arg(long)]
    pub versus: Option<Versus>,
    /// Write the figures to this file too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of the hidden `__sweep`.
#[derive(Args, Debug)]
pub struct InnerSweepArgs {
    #[command(flatten)]
    pub shape: Shape,
}

/// The benchmark.
pub fn sweep(args: &SweepArgs) -> Result<u8, Failure> {
    args.paging.check_budget()?;
    let bytes = args.shape.bytes()?;
    swap_check::check_all(&args.paging.swap)?;
    let backing = backing(&args.paging.swap);
    let mut report = Report::new("sweep");
    tell(&format!("{:<10} {:<8} {:>10} {:>10}", "system", "round", "seconds", "GB/s"));
    let kernel = match args.versus {
        None => Vec::new(),
        Some(Versus::Kernel) => match under_kernel(args, &backing)? {
            Ok(rows) => rows,
            Err(status) => return Ok(status),
        },
    };
    let mut raw = match &backing {
        Backing::Directory(directory) => Some(RawFile::create(directory, args.shape.size)?),
        Backing::Ram => None,
    };
    let mut raw_gbps = raw_rounds(raw.as_mut())?;
    let managed = managed(args, bytes)?;
    raw_gbps.extend(raw_rounds(raw.as_mut())?);
    let bad_words = managed.rows.iter().map(|row| row.bad_words).sum::<u64>();

    let (write, read) =
        (sweep::median_gbps(&managed.rows, Kind::Rewrite), sweep::median_gbps(&managed.rows, Kind::Read));
    let (kernel_write, kernel_read) =
        (sweep::median_gbps(&kernel, Kind::Rewrite), sweep::median_gbps(&kernel, Kind::Read));
    let raw_read = sweep::median(&raw_gbps);
    report.measure("write_gbps", write);
    report.measure("read_gbps", read);
    report.measure("raw_read_gbps", raw_read);
    report.measure("read_vs_raw", ratio(read, raw_read));
    report.measure("kernel_write_gbps", kernel_write);
    report.measure("kernel_read_gbps", kernel_read);
    report.measure("write_vs_kernel", ratio(write, kernel_write));
    report.measure("read_vs_kernel", ratio(read, kernel_read));
    report.measure("huge_share", managed.huge_share);
    report.measure("over_budget_bytes", managed.over_budget_bytes as f64);
    report.measure("bad_words", bad_words as f64);
    for (system, rows) in [("kernel", &kernel), ("folioswap", &managed.rows)] {
        for (index, row) in rows.iter().enumerate() {
            report.row(json!({
                "system": system, "round": index + 1, "kind": row.kind.name(), "seconds": row.seconds,
                "bytes": row.bytes, "gbps": row.gbps(), "bad_words": row.bad_words,
            }));
        }
    }
    for (index, gbps) in raw_gbps.iter().enumerate() {
        report.row(json!({ "system": "raw", "round": index + 1, "kind": "read", "gbps": gbps }));
    }
    report.finish(args.json.as_deref())?;
    if bad_words > 0 {
        return Err(Failure::new(Status::Failed, format!("{bad_words} words were wrong")));
    }
    Ok(0)
}

fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    Some(ours? / theirs?)
}

/// Where the kernel swaps, and the raw reads are done, to be on the device that the managed sweep uses.
fn backing(swap: &[DeviceSpec]) -> Backing {
    match swap.first() {
        None => Backing::Directory(folioswap::device::default_directory()),
        Some(DeviceSpec::Ram { .. }) => Backing::Ram,
        Some(DeviceSpec::File { path, .. }) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            Backing::Directory(path.parent().unwrap_or(Path::new("/")).to_owned())
        }
    }
}

fn show(progress: &Progress, system: &str, row: &Row) {
    progress.line(&format!("{system:<10} {:<8} {:>10.3} {:>10.3}", row.kind.name(), row.seconds, row.gbps()));
}

fn raw_rounds(raw: Option<&mut RawFile>) -> Result<Vec<f64>, Failure> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    (0..RAW_ROUNDS)
        .map(|_| {
            let gbps = raw.read_round()?;
            tell(&format!("{:<10} {:<8} {:>10} {gbps:>10.3}", "raw", "read", ""));
            Ok(gbps)
        })
        .collect()
}

/// What the managed sweep found.
struct Managed {
    rows: Vec<Row>,
    huge_share: Option<f64>,
    over_budget_bytes: u64,
}

fn managed(args: &SweepArgs, bytes: usize) -> Result<Managed, Failure> {
    let failure = |error: folioswap::Error| Failure { status: error.exit_status(), message: error.to_string() };
    let paging = &args.paging;
    let builder = folioswap::Arena::builder().memory(paging.memory).faults(paging.faults).mapping(paging.mapper);
    let builder = paging.swap.iter().cloned().fold(builder, |builder, device| builder.device(device));
    let arena = builder.build().map_err(failure)?;
    let mut region = arena.map(bytes).map_err(failure)?;
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut region[..bytes]);
    let progress = Progress::new(args.shape.size, true);
    progress.say(format!("folioswap, {} {}", arena.fault_mode(), arena.mapping()));
    let mut over_budget_bytes = 0;
    let mut sample = || {
        // A sample that fails is missed; the last one below must succeed.
        if let Ok(measured) = arena.measure() {
            over_budget_bytes = over_budget_bytes.max(measured.resident_bytes.saturating_sub(measured.budget_bytes));
        }
    };
    let rows = progress.during(
        SAMPLE_PERIOD,
        |_| sample(),
        || {
            sweep::sweep(words, &args.shape.plan(), progress.counter(), |row| {
                show(&progress, "folioswap", row);
            })
        },
    );
    sample();
    progress.clear();
    let measured = arena.measure().map_err(failure)?;
    let huge_share = (measured.resident_bytes > 0).then(|| measured.huge_bytes as f64 / measured.resident_bytes as f64);
    Ok(Managed { rows, huge_share, over_budget_bytes })
}

/// The kernel's turn: its rows, or the exit status when it was ended by a signal or failed.
fn under_kernel(args: &SweepArgs, backing: &Backing) -> Result<Result<Vec<Row>, u8>, Failure> {
    let mut supervisor = Supervisor::new()?;
    let setup = Setup {
        memory_bytes: args.paging.memory,
        // Ample: huge pages want whole clusters of it, and a full device would end the sweep.
        swap_bytes: args.shape.size.saturating_add(args.shape.size / 2).saturating_add(128 << 20),
        backing: backing.clone(),
    };
    let peer = Peer::start(&setup)?;
    let shape = &args.shape;
    let mut argv = vec!["folioswap".into(), "__sweep".into()];
    for (name, value) in [
        ("--size", shape.size),
        ("--threads", shape.threads.into()),
        ("--rounds", shape.rounds.into()),
        ("--read-rounds", shape.read_rounds.into()),
    ] {
        argv.extend([name.into(), value.to_string().into()]);
    }
    let step = ExecArgs {
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        cgroup: Some(peer.cgroup().to_owned()),
        preload: None,
        settings: None,
        file: own_executable()?,
        argv,
    };
    let progress = Progress::new(shape.size, true);
    progress.say("kernel".to_owned());
    let mut rows = Vec::new();
    let status = supervisor.run(step.command()?.stdin(Stdio::null()).stdout(Stdio::piped()), |child| {
        if let Some(output) = child.stdout.take() {
            rows = read_rows(output, &progress);
        }
    });
    progress.clear();
    peer.stop()?;
    let ended = supervisor.asked_to_end();
    supervisor.release()?;
    match (status?, ended) {
        (0, None) => Ok(Ok(rows)),
        (0, Some(signal)) => Ok(Err(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
        (status, _) if is_end_by_user(status) => Ok(Err(status)),
        (137, _) => Err(Failure::new(
            Status::NoKernelPeer,
            "the sweep under the kernel's swap was killed, most likely for want of memory in its cgroup; try a larger --memory",
        )),
        (status, _) => Err(Failure::new(
            Status::NoKernelPeer,
            format!("the sweep under the kernel's swap failed with status {status}"),
        )),
    }
}

/// Whether a status says that a signal ended the sweep with which a user ends programs.
fn is_end_by_user(status: u8) -> bool {
    use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&(i32::from(status) - 128))
}

/// Reads what the inner sweep says until it ends.
fn read_rows(output: ChildStdout, progress: &Progress) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some(at) = line.strip_prefix("at ").and_then(|at| at.parse().ok()) {
            progress.bar.set_position(at);
        } else if let Some(row) = parse_row(&line) {
            show(progress, "kernel", &row);
            rows.push(row);
        }
    }
    rows
}

fn format_row(row: &Row) -> String {
    format!("row {} {} {} {}", row.kind.name(), row.seconds, row.bytes, row.bad_words)
}

fn parse_row(line: &str) -> Option<Row> {
    let mut fields = line.strip_prefix("row ")?.split(' ');
    Some(Row {
        kind: Kind::from_name(fields.next()?)?,
        seconds: fields.next()?.parse().ok()?,
        bytes: fields.next()?.parse().ok()?,
        bad_words: fields.next()?.parse().ok()?,
    })
}

/// The same sweep over an ordinary process's memory, with huge pages, told line by line on standard output.
pub fn inner(args: &InnerSweepArgs) -> Result<u8, Failure> {
    let bytes = args.shape.bytes()?;
    let mut memory = vec![0u64; bytes / size_of::<u64>()];
    advise_huge(&memory)?;
    let words = memory.as_mut_slice();
    let progress = Progress::new(args.shape.size, false);
    let rows = progress.during(
        Duration::from_millis(200),
        |counted| tell(&format!("at {counted}")),
        || sweep::sweep(words, &args.shape.plan(), progress.counter(), |row| tell(&format_row(row))),
    );
    progress.counter().store(0, Ordering::Relaxed);
    let bad_words: u64 = rows.iter().map(|row| row.bad_words).sum();
    Ok(if bad_words == 0 { 0 } else { Status::Failed as u8 })
}

/// Lets the kernel use huge pages for all whole ones of it, where that has to be asked for.
fn advise_huge(memory: &[u64]) -> Result<(), Failure> {
    const HUGE_BYTES: usize = 2 << 20;
    let range = memory.as_ptr_range();
    let (begin, end) =
        ((range.start as usize).next_multiple_of(HUGE_BYTES), range.end as usize / HUGE_BYTES * HUGE_BYTES);
    if begin >= end {
        return Ok(());
    }
    folioswap_sys::memory::advise_hugepage(begin, end - begin)
        .map_err(|error| Failure::new(Status::NoKernelPeer, format!("the kernel gives no huge pages: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_pipe() {
        let row = Row { kind: Kind::Rewrite, seconds: 0.125, bytes: 1 << 31, bad_words: 3 };
        let read = parse_row(&format_row(&row)).expect("a row");
        assert_eq!((read.kind, read.seconds, read.bytes, read.bad_words), (row.kind, 0.125, 1 << 31, 3));
        assert!(parse_row("at 17").is_none());
    }

    #[test]
    fn the_peer_lies_where_the_swap_lies() {
        let file = DeviceSpec::File { path: "/data/x/swap".into(), size: None };
        assert_eq!(backing(&[file]), Backing::Directory("/data/x".into()));
        assert_eq!(backing(&[DeviceSpec::Ram { size: 1 }]), Backing::Ram);
    }
}
