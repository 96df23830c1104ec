//! `folioswap bench compact --space slots`: how many 2 MiB folios find a free run of slots on a device that small
//! folios have fragmented, and how much is moved for them.
//!
//! 4 KiB folios fill three quarters of a device, and a random half of them is dropped. Then 2 MiB folios are written
//! and swapped out, one after the other, until 85 percent of the slots are in use (compaction stops below an eighth
//! free). The first hundred are not counted: they may use the quarter of the device that was never used. Compaction
//! runs for a tenth of the time while the device is busy, so the result depends on how fast folios are swapped out.
//! There is one turn for each pause between two folios. The last turn gives the measures. Every word is checked at
//! the end.

use crate::compact::CompactArgs;
use crate::shared::pages::{BLOCK, PAGE, PAGE_WORDS, value};
use crate::shared::progress::{Progress, Runs, tell};
use crate::shared::report::Report;
use crate::shared::setup::ArenaPlan;
use fastrand::Rng;
use folioswap::{Advice, Arena, DeviceSpec, FolioSize, Order, Region, Tuning};
use folioswap_command::args::PagingOptions;
use folioswap_command::exit::Failure;
use folioswap_core::compact::Stage;
use serde_json::json;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Default size of the device. The quarter that is left unused has room for 96 folios.
const DEVICE_BYTES: u64 = 768 << 20;
/// Number of 2 MiB folios at the start that are not counted.
const FIRST: usize = 100;
/// Percentage of the device that is in use at the end.
const FULL_PERCENT: u64 = 85;
/// The most attempts to swap out a folio.
const TRIES: usize = 1000;
const LEAST_MEMORY: u64 = 16 << 20;

struct Turn {
    pause_ms: u64,
    compaction: bool,
}

/// The result of a turn.
struct Found {
    /// Share of the counted folios that were swapped out whole.
    share: f64,
    /// Bytes that compaction moved, for each byte of those folios.
    moved_per_placed: f64,
    bad_words: u64,
}

pub fn slots(args: &CompactArgs) -> Result<u8, Failure> {
    let (options, device_bytes) = with_one_device(&args.options)?;
    options.check_swap()?;
    let mut report = Report::new("compact_slots");
    tell(&format!(
        "{:<10} {:>9} {:>10} {:>7} {:>9} {:>7} {:>9} {:>8} {:>9}",
        "compaction", "pause ms", "folios/s", "whole", "fallback", "share", "moved", "failed", "per byte"
    ));
    let mut runs = Runs::new(1 + args.pause.len());
    let progress = Progress::of_runs(&runs);
    let mut run = |turn: Turn| {
        let found = turn.run(args, &options, device_bytes, &mut report, &progress);
        progress.run_ended(&mut runs);
        found
    };
    let off = run(Turn { pause_ms: 0, compaction: false })?;
    let mut bad_words = off.bad_words;
    let mut measured = None;
    for &pause_ms in &args.pause {
        let found = run(Turn { pause_ms, compaction: true })?;
        bad_words += found.bad_words;
        measured = Some((pause_ms, found)); // the last turn counts
    }
    progress.clear();
    if let Some((pause_ms, found)) = measured {
        report.measure("slots_pause_ms", pause_ms as f64);
        report.measure("slots_whole_share", found.share);
        report.verdict(format!(
            "with {pause_ms} ms between folios, {:.0} % find a whole run of slots; without compaction {:.0} %",
            found.share * 100.0,
            off.share * 100.0
        ));
        report.measure("slots_moved_per_placed", found.moved_per_placed);
    }
    report.measure("slots_whole_share_off", off.share);
    report.conclude(args.json.as_deref(), bad_words)
}

/// One device of a known size: the first one given, or RAM.
fn with_one_device(options: &PagingOptions) -> Result<(PagingOptions, u64), Failure> {
    let mut options = options.clone();
    let device = match options.swap.drain(..).next().map(|device| device.spec) {
        None => DeviceSpec::Ram { size: DEVICE_BYTES },
        Some(DeviceSpec::File { path, size }) => DeviceSpec::File { path, size: size.or(Some(DEVICE_BYTES)) },
        Some(other) => other,
    };
    let (DeviceSpec::Ram { size } | DeviceSpec::File { size: Some(size), .. }) = device else {
        return Err(Failure::new("the device needs a size, as in ram:768M".to_owned()));
    };
    if nr_large(size) <= FIRST {
        let message = format!("a device of {size} bytes is too small for {FIRST} folios and more; try ram:768M");
        return Err(Failure::new(message));
    }
    options.swap.push(device.into());
    Ok((options, size))
}

/// The number of 2 MiB folios to swap out.
fn nr_large(device_bytes: u64) -> usize {
    let scattered = device_bytes / 4 * 3 / 2;
    (device_bytes * FULL_PERCENT / 100).saturating_sub(scattered) as usize / BLOCK
}

impl Turn {
    fn run(
        &self,
        args: &CompactArgs,
        options: &PagingOptions,
        device: u64,
        report: &mut Report,
        progress: &Progress,
    ) -> Result<Found, Failure> {
        let name = if self.compaction { "on" } else { "off" };
        progress.say(format!("{name}, pause {} ms", self.pause_ms));
        let stage = self.compaction.then(Stage::default);
        let plan = ArenaPlan {
            tuning: Tuning { compaction: stage, ..Tuning::default() },
            ..ArenaPlan::new(args.memory, options, FolioSize::Auto)
        };
        let arena = plan.build()?;
        let nr_large = nr_large(device);
        let mut random = Rng::with_seed(args.seed);
        let mut small = Words::new(&arena, device as usize / 4 * 3 / BLOCK * BLOCK, Order::PAGE)?;
        small.write(0..small.region.len());
        arena.evict_all();
        small.drop_half(&mut random);
        // Gives back the frames that small folios have fragmented, so that the large ones get fresh frames.
        arena.set_memory(LEAST_MEMORY).and_then(|()| arena.set_memory(args.memory))?;
        let mut large = Words::new(&arena, nr_large * BLOCK, Order::HUGE)?;
        let (begun, before) = (Instant::now(), arena.stats());
        let mut after_first = None;
        for folio in 0..nr_large {
            if folio == FIRST {
                after_first = Some(arena.stats());
            }
            let bytes = folio * BLOCK..(folio + 1) * BLOCK;
            large.write(bytes.clone());
            send_out(&arena, &mut large, bytes);
            std::thread::sleep(Duration::from_millis(self.pause_ms));
        }
        let (seconds, end) = (begun.elapsed().as_secs_f64(), arena.stats());
        let first = after_first.unwrap_or_else(|| before.clone());
        let (whole, fallback) =
            (end.thp_swpout - first.thp_swpout, end.thp_swpout_fallback - first.thp_swpout_fallback);
        let moved = end.slots_migrated - before.slots_migrated;
        let failed = end.slots_migrate_failed - before.slots_migrate_failed;
        let share = whole as f64 / (nr_large - FIRST) as f64;
        let moved_per_placed = (moved * PAGE as u64) as f64 / (whole * BLOCK as u64) as f64;
        let rate = nr_large as f64 / seconds;
        progress.line(&format!(
            "{name:<10} {:>9} {rate:>10.1} {whole:>7} {fallback:>9} {share:>7.3} {moved:>9} {failed:>8} {moved_per_placed:>9.2}",
            self.pause_ms
        ));
        report.row(json!({
            "compaction": name, "pause_ms": self.pause_ms, "folios_per_second": rate, "whole": whole,
            "fallback": fallback, "share": share, "slots_migrated": moved, "slots_migrate_failed": failed,
            "slot_compact_success": end.slot_compact_success, "slot_compact_fail": end.slot_compact_fail,
        }));
        Ok(Found { share, moved_per_placed, bad_words: small.check() + large.check() })
    }
}

/// 2 MiB folios that were swapped out so far, whole or not.
fn nr_out(arena: &Arena) -> u64 {
    let stats = arena.stats();
    stats.thp_swpout + stats.thp_swpout_fallback
}

/// Swaps a folio out. A folio that is busy stays in RAM, so that this may take several attempts.
fn send_out(arena: &Arena, large: &mut Words, bytes: Range<usize>) {
    let before = nr_out(arena);
    for _ in 0..TRIES {
        large.region.advise(bytes.clone(), Advice::Cold);
        if nr_out(arena) > before {
            return;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A region in which every word encodes its index. Dropped pages are zero.
struct Words {
    region: Region,
    dropped: Vec<bool>,
}

impl Words {
    fn new(arena: &Arena, bytes: usize, folio: Order) -> Result<Words, Failure> {
        let region = arena.map_with(bytes, FolioSize::Fixed(folio))?;
        Ok(Words { region, dropped: vec![false; bytes / PAGE] })
    }

    fn write(&mut self, bytes: Range<usize>) {
        let first = (bytes.start / size_of::<u64>()) as u64;
        let words: &mut [u64] = bytemuck::cast_slice_mut(&mut self.region[bytes]);
        words.iter_mut().zip(first..).for_each(|(word, index)| *word = value(index, 1));
    }

    fn drop_half(&mut self, random: &mut Rng) {
        for page in 0..self.dropped.len() {
            if random.bool() {
                self.dropped[page] = true;
                self.region.advise(page * PAGE..(page + 1) * PAGE, Advice::DontNeed);
            }
        }
    }

    /// The number of wrong words.
    fn check(&self) -> u64 {
        let words: &[u64] = bytemuck::cast_slice(&self.region);
        let expected = |index: usize| if self.dropped[index / PAGE_WORDS] { 0 } else { value(index as u64, 1) };
        words.iter().enumerate().filter(|&(index, &word)| word != expected(index)).count() as u64
    }
}
