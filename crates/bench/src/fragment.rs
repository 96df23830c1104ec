//! `folioswap bench fragment`: whether folios keep finding free runs of slots on a nearly full device.
//!
//! Modelled on Linux's selftest of its swap allocator (thp_swap_allocator_test). An area nearly as large as its
//! device is written and swapped out. Each round then swaps in some folios, drops others, writes those again, and
//! swaps everything out. A folio that finds no free run of slots is a fallback. Content is checked at every touch,
//! and all of it at the end.

use crate::shared::pages::{PAGE_WORDS, value};
use crate::shared::progress::tell;
use crate::shared::report::Report;
use crate::shared::setup::ArenaPlan;
use clap::{Args, ValueEnum};
use fastrand::Rng;
use folioswap::{Advice, Arena, DeviceSpec, FolioSize, Order, Region, StatsSnapshot};
use folioswap_command::args::{PagingOptions, check_budget, memory};
use folioswap_command::exit::Failure;
use folioswap_command::swap_check;
use serde_json::json;
use std::ops::Range;
use std::path::PathBuf;

const FOLIO_BYTES: usize = 64 << 10;
const AREA_BYTES: usize = 60 << 20;
/// The area of single-page folios in the mixed variant.
const SMALL_AREA_BYTES: usize = 4 << 20;
const DEVICE_BYTES: u64 = 64 << 20;
/// Bytes that each round swaps in, and that it drops. The small area has the same share.
const TURNED_BYTES: usize = 16 << 20;
/// Rounds until the allocator has settled. They do not count for the maximum.
const SETTLING_ROUNDS: u16 = 5;

/// The variants of a round.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Variant {
    /// Single pages are touched
    Plain,
    /// The same, with 4 MiB of single-page folios as well
    Mixed,
    /// Whole folios are touched
    Aligned,
    /// Each variant in turn
    All,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Plain => "plain",
            Variant::Mixed => "mixed",
            Variant::Aligned => "aligned",
            Variant::All => "all",
        }
    }
}

/// Arguments of `bench fragment`.
#[derive(Args, Debug)]
pub struct FragmentArgs {
    /// Number of rounds
    #[arg(long, value_name = "R", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// The variant of the rounds
    #[arg(long, default_value = "all")]
    pub variant: Variant,
    /// RAM that the memory may use, at least 16M
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = memory)]
    pub memory: u64,
    /// Seed of the random choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub options: PagingOptions,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A region of folios, and the content of each.
struct Area {
    region: Region,
    folio_bytes: usize,
    generations: Vec<u32>,
    /// Whether a touch reads the whole folio, or one page.
    whole: bool,
}

impl Area {
    fn new(arena: &Arena, bytes: usize, folio_bytes: usize, whole: bool) -> Result<Area, Failure> {
        let folio = Order::from_bytes(folio_bytes).map_or(FolioSize::Auto, FolioSize::Fixed);
        let region = arena.map_with(bytes, folio)?;
        let mut area = Area { region, folio_bytes, generations: vec![0; bytes / folio_bytes], whole };
        (0..area.generations.len()).for_each(|index| area.write(index));
        Ok(area)
    }

    fn bytes_of(&self, index: usize) -> Range<usize> {
        index * self.folio_bytes..(index + 1) * self.folio_bytes
    }

    fn write(&mut self, index: usize) {
        self.generations[index] += 1;
        let (range, generation) = (self.bytes_of(index), self.generations[index]);
        let first = (range.start / size_of::<u64>()) as u64;
        let words: &mut [u64] = bytemuck::cast_slice_mut(&mut self.region[range]);
        words.iter_mut().zip(first..).for_each(|(word, index)| *word = value(index, generation));
    }

    /// Reads a range of bytes of a folio. Returns the number of wrong words.
    fn check(&self, index: usize, range: Range<usize>) -> u64 {
        let first = (range.start / size_of::<u64>()) as u64;
        let words: &[u64] = bytemuck::cast_slice(&self.region[range]);
        words.iter().zip(first..).filter(|(word, at)| **word != value(*at, self.generations[index])).count() as u64
    }

    /// Reads some folios, drops others, and writes those again. The share is the same for any area. Returns the
    /// number of wrong words.
    fn turn(&mut self, random: &mut Rng) -> u64 {
        let nr_folios = self.generations.len();
        let nr_turned = (nr_folios * TURNED_BYTES / AREA_BYTES).max(1);
        let mut bad_words = 0;
        for _ in 0..nr_turned {
            let index = random.usize(..nr_folios);
            let range = self.bytes_of(index);
            let page_bytes = PAGE_WORDS * size_of::<u64>();
            let page = range.start + random.usize(..self.folio_bytes / page_bytes) * page_bytes;
            bad_words += self.check(index, if self.whole { range } else { page..page + page_bytes });
        }
        let dropped: Vec<usize> = (0..nr_turned).map(|_| random.usize(..nr_folios)).collect();
        for &index in &dropped {
            let range = self.bytes_of(index);
            self.region.advise(range, Advice::DontNeed);
        }
        dropped.into_iter().for_each(|index| self.write(index));
        bad_words
    }

    fn check_all(&self) -> u64 {
        (0..self.generations.len()).map(|index| self.check(index, self.bytes_of(index))).sum()
    }
}

/// The result of a variant.
struct Found {
    whole: u64,
    fallback_max: u64,
    bad_words: u64,
}

/// The benchmark.
pub fn fragment(args: &FragmentArgs) -> Result<u8, Failure> {
    check_budget(args.memory)?;
    let mut options = args.options.clone();
    if options.swap.is_empty() {
        options.swap.push(DeviceSpec::Ram { size: DEVICE_BYTES }.into());
    }
    swap_check::check_all(&options)?;
    let variants = match args.variant {
        Variant::All => &[Variant::Plain, Variant::Mixed, Variant::Aligned][..],
        _ => std::slice::from_ref(&args.variant),
    };
    let mut report = Report::new("fragment");
    tell(&format!(
        "{:<10} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "variant", "rounds", "whole", "fallback", "max", "pages in", "pages out"
    ));
    let (mut whole, mut fallback_max, mut bad_words) = (0, 0, 0);
    for variant in variants {
        let found = run(args, &options, *variant, &mut report)?;
        report.measure(&format!("fallback_max_{}", variant.name()), found.fallback_max as f64);
        whole += found.whole;
        fallback_max = fallback_max.max(found.fallback_max);
        bad_words += found.bad_words;
    }
    report.measure("fallback_max", fallback_max as f64);
    // Without whole folios, zero fallbacks would mean nothing.
    report.measure("swpout", whole as f64);
    report.conclude(args.json.as_deref(), bad_words)
}

fn run(args: &FragmentArgs, options: &PagingOptions, variant: Variant, report: &mut Report) -> Result<Found, Failure> {
    let folio = Order::from_bytes(FOLIO_BYTES).map_or(FolioSize::Auto, FolioSize::Fixed);
    let arena = ArenaPlan::new(args.memory, options, folio).build()?;
    let mut areas = vec![Area::new(&arena, AREA_BYTES, FOLIO_BYTES, variant == Variant::Aligned)?];
    if variant == Variant::Mixed {
        areas.push(Area::new(&arena, SMALL_AREA_BYTES, PAGE_WORDS * size_of::<u64>(), false)?);
    }
    arena.evict_all();
    let mut random = Rng::with_seed(args.seed);
    let begin = arena.stats();
    let (mut before, mut found) = (begin.clone(), Found { whole: 0, fallback_max: 0, bad_words: 0 });
    for round in 1..=args.rounds {
        found.bad_words += areas.iter_mut().map(|area| area.turn(&mut random)).sum::<u64>();
        arena.evict_all();
        let now = arena.stats();
        let fallback = fallbacks(&now) - fallbacks(&before);
        report.row(json!({
            "variant": variant.name(), "round": round, "fallback": fallback, "whole": wholes(&now) - wholes(&before),
            "pswpin": now.pswpin() - before.pswpin(), "pswpout": now.pswpout() - before.pswpout(),
        }));
        if round > SETTLING_ROUNDS {
            found.fallback_max = found.fallback_max.max(fallback);
        }
        before = now;
    }
    found.bad_words += areas.iter().map(Area::check_all).sum::<u64>();
    found.whole = wholes(&before) - wholes(&begin);
    tell(&format!(
        "{:<10} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10}",
        variant.name(),
        args.rounds,
        found.whole,
        fallbacks(&before) - fallbacks(&begin),
        found.fallback_max,
        before.pswpin() - begin.pswpin(),
        before.pswpout() - begin.pswpout(),
    ));
    Ok(found)
}

/// Folios so far that found no free run of slots.
fn fallbacks(stats: &StatsSnapshot) -> u64 {
    stats.swpout_fallback.iter().sum()
}

/// Folios so far that were swapped out whole.
fn wholes(stats: &StatsSnapshot) -> u64 {
    stats.swpout.iter().sum()
}
