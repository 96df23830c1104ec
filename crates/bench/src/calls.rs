//! `folioswap bench calls`: how long memory calls take under `run`, compared with the kernel alone.
//!
//! A hidden subcommand of ours makes each call many times on ranges of 4 KiB, 2 MiB and 1 GiB, new and filled. It runs
//! as an ordinary program and under `run`, with a budget that holds all of it. What fits is not managed, so
//! `--managed` has the program map something first that does not.

use crate::shared::medians::median;
use crate::shared::progress::tell;
use crate::shared::report::Report;
use clap::Args;
use folioswap::FaultMode;
use folioswap_command::args::{memory, report_file};
use folioswap_command::exit::Failure;
use folioswap_command::own_executable;
use folioswap_sys::call_times::{CallTime, measure};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Calls that take less than this are not compared: the clock is part of it.
const LEAST_NS: u64 = 200;

/// Arguments of `bench calls`.
#[derive(Args, Debug)]
pub struct CallsArgs {
    /// Budget of the program under `run`; the calls use ranges of 1 GiB, several at a time
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = memory)]
    pub memory: u64,
    /// Have all memory managed: by a first mapping that does not fit into the budget
    #[arg(long)]
    pub managed: bool,
    /// Which thread resolves faults
    #[arg(long, value_name = "auto|direct|monitor", default_value_t)]
    pub faults: FaultMode,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE", value_parser = report_file())]
    pub json: Option<PathBuf>,
}

/// Arguments of the hidden program.
#[derive(Args, Debug)]
pub struct InnerArgs {
    /// Bytes to map before.
    #[arg(long, default_value_t = 0)]
    first: usize,
}

/// The hidden program: prints the times, one a line.
pub fn inner(args: &InnerArgs) -> Result<u8, Failure> {
    measure(args.first, |time| tell(&format!("{} {} {} {}", time.call, time.bytes, time.is_filled, time.nanoseconds)));
    Ok(0)
}

fn parse(line: &str) -> Option<CallTime> {
    let mut words = line.split(' ');
    let (call, bytes) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
    Some(CallTime { call, bytes, is_filled: words.next()?.parse().ok()?, nanoseconds: words.next()?.parse().ok()? })
}

/// Runs a command, and returns the times that it prints.
fn times(mut command: Command) -> Result<Vec<CallTime>, Failure> {
    let failed = |why: String| Failure::new(format!("the program that makes the calls {why}"));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("could not be started: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("has failed: {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect())
}

pub fn calls(args: &CallsArgs) -> Result<u8, Failure> {
    let own = own_executable()?;
    let mut alone = Command::new(&own);
    alone.arg("__calls");
    let mut managed = Command::new(&own);
    managed.args(["run", "--memory", &args.memory.to_string(), "--faults", &args.faults.to_string(), "--"]);
    managed.arg(&own).arg("__calls");
    if args.managed {
        managed.arg("--first").arg(args.memory.to_string());
    }
    let (kernel, ours) = (times(alone)?, times(managed)?);
    let mut report = Report::new("calls");
    let mut ratios = Vec::new();
    tell(&format!("{:<26} {:>10} {:<6} {:>12} {:>12} {:>8}", "call", "bytes", "", "kernel us", "ours us", "ratio"));
    for (kernel, ours) in kernel.iter().zip(&ours) {
        let ratio = ours.nanoseconds as f64 / kernel.nanoseconds.max(LEAST_NS) as f64;
        let [theirs_us, ours_us] = [kernel, ours].map(|time| time.nanoseconds as f64 / 1e3);
        let state = if ours.is_filled { "filled" } else { "new" };
        tell(&format!(
            "{:<26} {:>10} {state:<6} {theirs_us:>12.1} {ours_us:>12.1} {ratio:>8.1}",
            ours.call, ours.bytes
        ));
        report.row(json!({
            "call": ours.call, "bytes": ours.bytes, "filled": ours.is_filled, "kernel_ns": kernel.nanoseconds,
            "ns": ours.nanoseconds, "ratio": ratio,
        }));
        ratios.push(ratio);
    }
    report.measure("worst_ratio", ratios.iter().copied().fold(0.0, f64::max));
    report.measure("median_ratio", median(&ratios));
    let slow = ratios.iter().filter(|&&ratio| ratio > 5.0).count();
    report.measure("slower_than_5", slow as f64);
    report.verdict(format!("{slow} of {} calls take more than 5 times as long as the kernel's", ratios.len()));
    report.conclude(args.json.as_deref(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_is_printed() {
        let time = CallTime { call: "mmap".into(), bytes: 4096, is_filled: true, nanoseconds: 812 };
        assert_eq!(parse("mmap 4096 true 812"), Some(time));
        assert_eq!(parse("mmap 4096"), None);
    }
}
