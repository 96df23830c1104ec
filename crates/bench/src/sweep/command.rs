//! `folioswap bench sweep`: the sweep over a managed region, compared with kernel swap and the raw disk.
//!
//! The order is: the kernel's turn (in a cgroup of the same size, on the same disk), raw reads, the managed sweep,
//! raw reads again. The kernel's turn is undone before the others begin, so that the two systems never share the
//! machine.

use crate::peer::Backing;
use crate::shared::kernel_turn::{KernelTurn, Turn};
use crate::shared::medians::{median, ratio};
use crate::shared::progress::{Progress, tell};
use crate::shared::raw::RawFile;
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, backing, name_of};
use crate::shared::stored::Stored;
use crate::sweep::args::{Shape, SweepArgs, Versus};
use crate::sweep::managed::{managed, show, show_head, to_json};
use crate::sweep::pages::sweep_pages;
use crate::sweep::plot;
use crate::sweep::{self, Kind, Row};
use folioswap::{Bytes, ExitStatus};
use folioswap_command::args::check_budget;
use folioswap_command::exit::Failure;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Raw rounds before the managed sweep, and again after it.
const RAW_ROUNDS: usize = 2;

pub fn sweep(args: &SweepArgs) -> Result<u8, Failure> {
    check_budget(args.paging.memory)?;
    let bytes = args.shape.bytes()?;
    args.paging.options.check_swap()?;
    if args.versus == Some(Versus::Pages) {
        if args.plot.is_some() {
            return Err(Failure::new("--plot draws no comparison with --versus pages"));
        }
        return sweep_pages(args, bytes);
    }
    let backing = backing(&args.paging.options.swap);
    show_head();
    let (kernel, kernel_stored) = match args.versus {
        Some(Versus::Kernel) => match under_kernel(args, &backing)? {
            Turn::Over(rows, stored) => (rows, stored),
            Turn::Ended(status) => return Ok(status),
        },
        _ => (Vec::new(), None),
    };
    let raw = match &backing {
        Backing::Directory(directory) => Some(RawFile::create(directory, args.shape.size)?),
        Backing::Ram | Backing::Zram(_) => None,
    };
    let mut raw_reads = RawReads::default();
    raw_reads.read(raw.as_ref(), args.paging.memory)?;
    let arena = ArenaPlan::of(&args.paging, &args.folios);
    let managed = managed(&arena, &args.shape.plan(), bytes, "folioswap")?;
    raw_reads.read(raw.as_ref(), args.paging.memory)?;

    if let Some(file) = &args.plot {
        let place = match backing {
            Backing::Directory(_) => "on a file",
            Backing::Ram => "in RAM",
            Backing::Zram(_) => "in compressed RAM",
        };
        let (size, memory) = (Bytes(args.shape.size), Bytes(args.paging.memory));
        let title = format!("{size} of memory in {memory} of RAM, swap {place}");
        plot::draw(file, &title, &[("folioswap", &managed.rows), ("the kernel's swap", &kernel)])?;
    }
    let mut report = Report::new("sweep");
    measure(&mut report, &managed.rows, &kernel, &raw_reads);
    measure_stored(&mut report, managed.stored, kernel_stored);
    report.measure("huge_share", managed.huge_share);
    report.measure("over_budget_bytes", managed.over_budget_bytes as f64);
    for (system, rows) in [("kernel", &kernel), ("folioswap", &managed.rows)] {
        to_json(system, rows).for_each(|row| report.row(row));
    }
    for (kind, gbps) in raw_reads.each() {
        for (index, gbps) in gbps.iter().enumerate() {
            report.row(json!({ "system": "raw", "round": index + 1, "kind": kind, "gbps": gbps }));
        }
    }
    report.conclude(args.json.as_deref(), managed.bad_words())
}

fn measure(report: &mut Report, managed: &[Row], kernel: &[Row], raw: &RawReads) {
    let (write, read) = (sweep::median_gbps(managed, Kind::Rewrite), sweep::median_gbps(managed, Kind::Read));
    let (kernel_write, kernel_read) =
        (sweep::median_gbps(kernel, Kind::Rewrite), sweep::median_gbps(kernel, Kind::Read));
    let (raw_read, raw_read_into_ram) = (median(&raw.one_buffer), median(&raw.into_ram));
    report.measure("write_gbps", write);
    report.measure("read_gbps", read);
    report.measure("raw_read_gbps", raw_read);
    report.measure("raw_read_into_ram_gbps", raw_read_into_ram);
    report.measure("read_vs_raw", ratio(read, raw_read));
    report.measure("read_vs_raw_into_ram", ratio(read, raw_read_into_ram));
    report.measure("kernel_write_gbps", kernel_write);
    report.measure("kernel_read_gbps", kernel_read);
    report.measure("write_vs_kernel", ratio(write, kernel_write));
    report.measure("read_vs_kernel", ratio(read, kernel_read));
}

fn measure_stored(report: &mut Report, managed: Option<Stored>, kernel: Option<Stored>) {
    let (share, kernel_share) = (managed.and_then(|stored| stored.share()), kernel.and_then(|stored| stored.share()));
    report.measure("stored_share", share);
    report.measure("kernel_stored_share", kernel_share);
    report.measure("stored_vs_kernel", ratio(share, kernel_share));
}

/// GB/s of raw reads, one for each round.
#[derive(Default)]
struct RawReads {
    /// Into one buffer, again and again.
    one_buffer: Vec<f64>,
    /// Into as much memory as the sweep may keep.
    into_ram: Vec<f64>,
}

impl RawReads {
    fn each(&self) -> [(&str, &[f64]); 2] {
        [("read", &self.one_buffer), ("into RAM", &self.into_ram)]
    }

    /// Reads a few more rounds, into one buffer and into memory in turn.
    fn read(&mut self, raw: Option<&RawFile>, memory_bytes: u64) -> Result<(), Failure> {
        let Some(raw) = raw else { return Ok(()) };
        let tell_row = |kind, gbps| tell(&format!("{:<10} {kind:<8} {:>10} {gbps:>10.3}", "raw", ""));
        for _ in 0..RAW_ROUNDS {
            self.one_buffer.push(raw.read_round(0)?);
            tell_row("read", self.one_buffer[self.one_buffer.len() - 1]);
            self.into_ram.push(raw.read_round(memory_bytes)?);
            tell_row("into RAM", self.into_ram[self.into_ram.len() - 1]);
        }
        Ok(())
    }
}

/// The turn under kernel swap.
fn under_kernel(args: &SweepArgs, backing: &Backing) -> Result<Turn<Vec<Row>>, Failure> {
    let shape = &args.shape;
    let mut argv = vec!["folioswap".into(), "__sweep".into()];
    for (name, value) in [
        ("--size", shape.size.to_string()),
        ("--threads", shape.threads.to_string()),
        ("--rounds", shape.rounds.to_string()),
        ("--read-rounds", shape.read_rounds.to_string()),
        ("--data", name_of(shape.data)),
    ] {
        argv.extend([name.into(), value.into()]);
    }
    let turn = KernelTurn { memory_bytes: args.paging.memory, data_bytes: shape.size, backing: backing.clone(), argv };
    let progress = Progress::new(shape.size, true);
    progress.say("kernel".to_owned());
    let turn = turn.run(|output| read_rows(output, &progress));
    progress.clear();
    turn
}

/// Reads the output of the inner sweep until it ends.
fn read_rows(output: ChildStdout, progress: &Progress) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some(at) = line.strip_prefix("at ").and_then(|at| at.parse().ok()) {
            progress.at(at);
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

/// The same sweep over the memory of an ordinary process, with huge pages. Prints progress and rows to standard
/// output.
pub fn inner(shape: &Shape) -> Result<u8, Failure> {
    let bytes = shape.bytes()?;
    let mut memory = vec![0u64; bytes / size_of::<u64>()];
    advise_huge(&memory)?;
    let words = memory.as_mut_slice();
    let progress = Progress::new(shape.size, false);
    let rows = progress.during(
        Duration::from_millis(200),
        |counted| tell(&format!("at {counted}")),
        || sweep::sweep(words, &shape.plan(), progress.counter(), |row| tell(&format_row(row))),
    );
    progress.counter().store(0, Ordering::Relaxed);
    let bad_words: u64 = rows.iter().map(|row| row.bad_words).sum();
    Ok(if bad_words == 0 { 0 } else { ExitStatus::CheckFailed.code() })
}

/// Advises huge pages for all whole ones of this memory, which some systems require.
fn advise_huge(memory: &[u64]) -> Result<(), Failure> {
    const HUGE_BYTES: usize = 2 << 20;
    let range = memory.as_ptr_range();
    let (begin, end) =
        ((range.start as usize).next_multiple_of(HUGE_BYTES), range.end as usize / HUGE_BYTES * HUGE_BYTES);
    if begin >= end {
        return Ok(());
    }
    folioswap_sys::memory::advise_hugepage(begin, end - begin)
        .map_err(|error| Failure::new(format!("the kernel gives no huge pages: {error}")))
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
}
