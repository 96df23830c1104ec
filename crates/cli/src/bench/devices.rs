//! `folioswap bench devices`: two disks of equal priority against each of them alone, and against what they give raw.
//!
//! Each turn: direct writes and reads of 2 MiB on either disk and on both at once, four under way on each; then the sweep with the
//! first as swap device, with the second, and with both. What counts is what the devices themselves say that went to and from them,
//! by the time of the round: what stays in RAM is no I/O, and who writes memory again has what it held brought in, so that the disk
//! works both ways, which both count as written. Turns follow each other, so that a disk that slows down does so for all.
//!
//! Where both lie on one disk the raw sum is no higher than either alone, and so it is told.

use super::medians::{median, median_of_ratios};
use super::progress::tell;
use super::raw::{RawFile, Way, at_once};
use super::records::Data;
use super::report::Report;
use super::setup::{ArenaPlan, CommonArgs};
use super::sweep::{Kind, Plan, sweep};
use crate::args::{Means, parsed};
use crate::exit::{Failure, Status};
use clap::Args;
use folioswap::{Arena, DeviceSpec, FolioSize, Priority, SwapDevice};
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
    /// Size of a folio
    #[arg(long, value_name = "auto|2M|64K|4K|...", default_value = "2M", value_parser = parsed::<FolioSize>)]
    folio: FolioSize,
    /// Times that all take their turns
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

/// GB/s written and read.
type Rates = [f64; 2];

/// What the turns came to: of the first, of the second, of both.
#[derive(Default)]
struct Found {
    rates: [Vec<Rates>; 3],
}

impl Found {
    /// The rates of one way in each turn.
    fn of(&self, which: usize, way: Way) -> Vec<f64> {
        self.rates[which].iter().map(|rates| rates[way as usize]).collect()
    }

    /// The faster one of the two alone, turn by turn.
    fn best_alone(&self, way: Way) -> Vec<f64> {
        self.of(0, way).into_iter().zip(self.of(1, way)).map(|(first, second)| first.max(second)).collect()
    }
}

/// The two disks.
fn two(swap: &[SwapDevice]) -> Result<[SwapDevice; 2], Failure> {
    let [first, second] = swap else {
        return Err(Failure::new(Status::Usage, "this benchmark compares two disks: give --swap twice"));
    };
    if [first, second].iter().any(|device| !matches!(device.spec, DeviceSpec::File { .. })) {
        return Err(Failure::new(Status::Usage, "--swap: this benchmark compares disks: give files or block devices"));
    }
    let equal =
        |device: &SwapDevice| Priority::given(1).map_or(device.clone(), |one| device.clone().with_priority(one));
    Ok([equal(first), equal(second)])
}

/// Bytes that went to and came from all devices.
fn moved(arena: &Arena) -> [u64; 2] {
    let devices = arena.devices();
    [
        devices.iter().map(|device| device.io.writes.bytes).sum(),
        devices.iter().map(|device| device.io.reads.bytes).sum(),
    ]
}

/// One sweep over these devices: the rates, what part the first one carried, and wrong words.
fn managed(args: &DevicesArgs, bytes: usize, devices: &[SwapDevice]) -> Result<(Rates, f64, u64), Failure> {
    let means = Means { swap: devices.to_vec(), ..args.common.means.clone() };
    let arena = ArenaPlan::new(args.common.memory, &means, args.folio).build(bytes as u64)?;
    let mut region = arena.map(bytes).map_err(super::setup::failure)?;
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut region[..bytes]);
    let plan = Plan { threads: usize::from(args.threads), rounds: 1, read_rounds: 2, data: Data::Plain };
    let (mut before, mut written, mut read) = (moved(&arena), Vec::new(), Vec::new());
    let rows = sweep(words, &plan, &AtomicU64::new(0), |row| {
        let now = moved(&arena);
        let rate = |way: Way| (now[way as usize] - before[way as usize]) as f64 / row.seconds.max(1e-9) / 1e9;
        match row.kind {
            Kind::Read => read.push(rate(Way::Read)),
            Kind::First => written.push(rate(Way::Write)),
            Kind::Rewrite => written.push(rate(Way::Write) + rate(Way::Read)),
        }
        before = now;
    });
    let carried = |io: &folioswap::DeviceIo| (io.writes.bytes + io.reads.bytes) as f64;
    let each: Vec<_> = arena.devices().iter().map(|device| carried(&device.io)).collect();
    let share = each.first().unwrap_or(&0.0) / each.iter().sum::<f64>().max(1.0);
    let rates = [median(&written).unwrap_or(0.0), median(&read).unwrap_or(0.0)];
    Ok((rates, share, rows.iter().map(|row| row.bad_words).sum()))
}

/// Raw rates of the first, of the second and of both at once, half of `bytes` on each.
fn raw(bytes: u64, devices: &[SwapDevice; 2]) -> Result<[Rates; 3], Failure> {
    let open = |device: &SwapDevice| match &device.spec {
        DeviceSpec::File { path, .. } => RawFile::beside(path, bytes / 2),
        other => Err(Failure::new(Status::Usage, format!("{other} is no disk"))),
    };
    let files = [open(&devices[0])?, open(&devices[1])?];
    let rates = |files: &[&RawFile]| Ok([at_once(files, Way::Write)?, at_once(files, Way::Read)?]);
    Ok([rates(&[&files[0]])?, rates(&[&files[1]])?, rates(&[&files[0], &files[1]])?])
}

/// The benchmark.
pub fn devices(args: &DevicesArgs) -> Result<u8, Failure> {
    let devices = two(&args.common.means.swap)?;
    let bytes = args.common.check(32 << 20)?;
    if (bytes as u64) < 2 * args.common.memory {
        return Err(Failure::new(Status::Usage, "--size: give at least twice --memory, or little is swapped"));
    }
    let names = ["first", "second", "both"];
    let sets = [&devices[..1], &devices[1..], &devices[..]];
    let (mut report, mut bad_words) = (Report::new("devices"), 0);
    let (mut raws, mut ours) = (Found::default(), Found::default());
    let head = ["raw write", "raw read", "swap write", "swap read", "on the first"];
    tell(&format!("{:<7} {}", "GB/s", head.map(|name| format!("{name:>12}")).join(" ")));
    for _ in 0..args.rounds {
        let raw_rates = raw(bytes as u64, &devices)?;
        for (which, set) in sets.iter().enumerate() {
            let (rates, share, bad) = managed(args, bytes, set)?;
            bad_words += bad;
            let [[raw_write, raw_read], [write, read]] = [raw_rates[which], rates];
            let numbers = [raw_write, raw_read, write, read].map(|rate| format!("{rate:>12.3}")).join(" ");
            tell(&format!("{:<7} {numbers} {:>10.1} %", names[which], share * 100.0));
            report.row(json!({
                "devices": names[which], "raw_write_gbps": raw_write, "raw_read_gbps": raw_read,
                "write_gbps": write, "read_gbps": read, "share_of_first": share, "bad_words": bad,
            }));
            raws.rates[which].push(raw_rates[which]);
            ours.rates[which].push(rates);
        }
    }
    for (way, name) in [(Way::Write, "write"), (Way::Read, "read")] {
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
            assert_eq!(two(&swap(wrong)).map_err(|failure| failure.status), Err(Status::Usage as u8), "{wrong:?}");
        }
    }

    #[test]
    fn the_faster_one_alone_is_what_two_are_compared_with() {
        let found = Found { rates: [vec![[1.0, 5.0], [3.0, 5.0]], vec![[2.0, 4.0], [2.0, 6.0]], vec![]] };
        assert_eq!((found.best_alone(Way::Write), found.best_alone(Way::Read)), (vec![2.0, 3.0], vec![5.0, 6.0]));
    }
}
