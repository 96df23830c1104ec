//! `folioswap bench devices`: two disks of equal priority, compared with each disk alone and with raw I/O.
//!
//! A turn covers the first disk, the second, and both, each raw and then as swap. Raw: direct I/O in pieces of 2 MiB,
//! four in flight on each disk. It writes newly reserved space for the first time, then reads and writes, then reads.
//! (On a block device there is no space to reserve.) Swap: other memory fills RAM, then a sweep writes its memory for
//! the first time, writes it again (old content is swapped in while other memory is swapped out), and reads it. The
//! rate of a round is the bytes that the devices transferred over its duration.
//!
//! If both are on one disk, the raw sum is no higher than one alone, and the report shows it.

use crate::shared::medians::{median, median_of_ratios};
use crate::shared::progress::tell;
use crate::shared::raw::{RawFile, Way, at_once};
use crate::shared::records::Data;
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, CommonArgs, moved};
use crate::sweep::{Kind, Plan, sweep, write};
use clap::Args;
use folioswap::{DeviceSpec, FolioSize, Priority, SwapDevice};
use folioswap_command::args::{PagingOptions, parsed};
use folioswap_command::exit::Failure;
use serde_json::json;
use std::sync::atomic::AtomicU64;

/// Arguments of `bench devices`.
#[derive(Args, Debug)]
pub struct DevicesArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Threads of the sweep
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Folio size
    #[arg(long, value_name = "auto|2M|64K|4K|...", default_value = "2M", value_parser = parsed::<FolioSize>)]
    folio: FolioSize,
    /// How often all take turns
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

/// GB/s of first writes, of mixed reads and writes, and of reads.
type Rates = [f64; 3];

/// The rates of all turns: first disk, second disk, both.
#[derive(Default)]
struct Found {
    rates: [Vec<Rates>; 3],
}

impl Found {
    /// The rates of one kind of I/O, one for each turn.
    fn of(&self, which: usize, way: Way) -> Vec<f64> {
        self.rates[which].iter().map(|rates| rates[way as usize]).collect()
    }

    /// The faster of the two disks alone, for each turn.
    fn best_alone(&self, way: Way) -> Vec<f64> {
        self.of(0, way).into_iter().zip(self.of(1, way)).map(|(first, second)| first.max(second)).collect()
    }
}

/// Names of the kinds of I/O in the report. Writing again is the mixed kind.
const NAMES: [&str; 3] = ["write", "rewrite", "read"];

fn by_way(rates: &Rates) -> serde_json::Value {
    NAMES.iter().zip(rates).map(|(name, rate)| (name.to_string(), json!(rate))).collect()
}

/// The two disks, with equal priority.
fn two(swap: &[SwapDevice]) -> Result<[SwapDevice; 2], Failure> {
    let [first, second] = swap else {
        return Err(Failure::new("this benchmark compares two disks: give --swap twice"));
    };
    if [first, second].iter().any(|device| !matches!(device.spec, DeviceSpec::File { .. })) {
        return Err(Failure::new("--swap: this benchmark compares disks: give files or block devices"));
    }
    let equal =
        |device: &SwapDevice| Priority::given(1).map_or(device.clone(), |one| device.clone().with_priority(one));
    Ok([equal(first), equal(second)])
}

/// Runs one sweep over these devices. Returns the rates, the share of the first device, and the number of wrong
/// words.
fn managed(args: &DevicesArgs, bytes: usize, devices: &[SwapDevice]) -> Result<(Rates, f64, u64), Failure> {
    let options = PagingOptions { swap: devices.to_vec(), ..args.common.options.clone() };
    let filling = args.common.memory as usize;
    let arena = ArenaPlan::new(args.common.memory, &options, args.folio).build()?;
    let mut region = arena.map(filling + bytes)?;
    let (filling, swept) = region[..filling + bytes].split_at_mut(filling);
    write(bytemuck::cast_slice_mut(filling), 0, 1, Data::Plain, &AtomicU64::new(0));
    let words: &mut [u64] = bytemuck::cast_slice_mut(swept);
    let plan = Plan { threads: usize::from(args.threads), rounds: 3, read_rounds: 2, data: Data::Plain };
    let (mut before, mut found) = (moved(&arena), Way::ALL.map(|_| Vec::new()));
    let rows = sweep(words, &plan, &AtomicU64::new(0), |row| {
        let way = match row.kind {
            Kind::First => Way::Write,
            Kind::Rewrite => Way::Both,
            Kind::Read => Way::Read,
        };
        let now = moved(&arena);
        found[way as usize].push((now - before) as f64 / row.seconds.max(1e-9) / 1e9);
        before = now;
    });
    let carried = |io: &folioswap::DeviceIo| (io.writes.bytes + io.reads.bytes) as f64;
    let each: Vec<_> = arena.devices().iter().map(|device| carried(&device.io)).collect();
    let share = each.first().unwrap_or(&0.0) / each.iter().sum::<f64>().max(1.0);
    let rates = found.map(|rates| median(&rates).unwrap_or(0.0));
    Ok((rates, share, rows.iter().map(|row| row.bad_words).sum()))
}

/// Measures the raw rates of these disks in parallel, with `bytes` split over them.
fn raw(bytes: u64, devices: &[SwapDevice]) -> Result<Rates, Failure> {
    let open = |device: &SwapDevice| match &device.spec {
        DeviceSpec::File { path, .. } => RawFile::beside(path, bytes / devices.len() as u64),
        other => Err(Failure::new(format!("{other} is no disk"))),
    };
    let files = devices.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let files: Vec<_> = files.iter().collect();
    let [write, both, read] = Way::ALL.map(|way| at_once(&files, way));
    Ok([write?, both?, read?])
}

pub fn devices(args: &DevicesArgs) -> Result<u8, Failure> {
    let devices = two(&args.common.options.swap)?;
    let bytes = args.common.check(32 << 20)?;
    if (bytes as u64) < 2 * args.common.memory {
        return Err(Failure::new("--size: give at least twice --memory, or little is swapped"));
    }
    let names = ["first", "second", "both"];
    let sets = [&devices[..1], &devices[1..], &devices[..]];
    let (mut report, mut bad_words) = (Report::new("devices"), 0);
    let (mut raws, mut ours) = (Found::default(), Found::default());
    let head = ["raw first", "raw both", "raw read", "swap first", "swap both", "swap read", "on the first"];
    tell(&format!("{:<7} {}", "GB/s", head.map(|name| format!("{name:>12}")).join(" ")));
    for _ in 0..args.rounds {
        for (which, set) in sets.iter().enumerate() {
            let raw_rates = raw(bytes as u64, set)?;
            let (rates, share, bad) = managed(args, bytes, set)?;
            bad_words += bad;
            let numbers =
                raw_rates.iter().chain(&rates).map(|rate| format!("{rate:>12.3}")).collect::<Vec<_>>().join(" ");
            tell(&format!("{:<7} {numbers} {:>10.1} %", names[which], share * 100.0));
            report.row(json!({
                "devices": names[which], "raw_gbps": by_way(&raw_rates), "gbps": by_way(&rates),
                "share_of_first": share, "bad_words": bad,
            }));
            raws.rates[which].push(raw_rates);
            ours.rates[which].push(rates);
        }
    }
    for (way, name) in Way::ALL.into_iter().zip(NAMES) {
        let (both, raw_sum) = (ours.of(2, way), raws.of(2, way));
        report.measure(&format!("{name}_gbps"), median(&both));
        report.measure(&format!("raw_sum_{name}_gbps"), median(&raw_sum));
        report.measure(&format!("two_vs_one_{name}"), median_of_ratios(&both, &ours.best_alone(way)));
        report.measure(&format!("two_vs_raw_sum_{name}"), median_of_ratios(&both, &raw_sum));
        report.measure(&format!("raw_two_vs_one_{name}"), median_of_ratios(&raw_sum, &raws.best_alone(way)));
    }
    report.conclude(args.common.json.as_deref(), bad_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_disks_are_of_equal_priority() {
        let swap =
            |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a device")).collect::<Vec<SwapDevice>>();
        let shown = two(&swap(&["/a:1G", "/b,prio=7,force=yes"])).expect("two").map(|device| device.to_string());
        assert_eq!(shown, ["/a:1G,prio=1", "/b,prio=1,force=yes"]);
        for wrong in [&["/a"][..], &["/a", "/b", "/c"], &["/a", "ram:1G"]] {
            assert!(two(&swap(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_faster_one_alone_is_what_two_are_compared_with() {
        let found =
            Found { rates: [vec![[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]], vec![[2.0, 7.0, 4.0], [2.0, 0.0, 6.0]], vec![]] };
        let best = Way::ALL.map(|way| found.best_alone(way));
        assert_eq!(best, [[2.0, 3.0], [7.0, 0.0], [5.0, 6.0]]);
    }
}
