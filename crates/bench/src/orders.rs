//! `folioswap bench orders`: the gain from contiguous runs of slots, for folios of 4K, 64K and 2M.
//!
//! For each size the sweep runs with contiguous runs of slots and with single slots, in turn (with --full twice), each
//! time in an arena of its own. Only rounds that rewrite memory are compared: these allocate slots and free them.

use crate::shared::medians::median_of_ratios;
use crate::shared::progress::Runs;
use crate::shared::records::Data;
use crate::shared::report::Report;
use crate::shared::setup::{ArenaPlan, CommonArgs};
use crate::sweep::managed::{managed, show_head, to_json};
use crate::sweep::{Kind, Plan, gbps};
use clap::Args;
use folioswap::{FolioSize, Order, Tuning};
use folioswap_command::exit::Failure;

/// Turns of each way with --full; otherwise one.
const REPEATS: usize = 2;

/// The sizes, with the names in their measures.
const SIZES: [(&str, usize); 3] = [("4k", 4 << 10), ("64k", 64 << 10), ("2m", 2 << 20)];

/// Arguments of `bench orders`.
#[derive(Args, Debug)]
pub struct OrdersArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Number of threads, each with a share of its own; 70 with --full
    #[arg(
        long, value_name = "N", default_value = "16", default_value_if("full", "true", "70"),
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub threads: u16,
    /// How often each share is written; the first time is not compared
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..))]
    pub rounds: u16,
}

/// GB/s of the rewrite rounds of one size.
#[derive(Default)]
struct Rounds {
    whole: Vec<f64>,
    split: Vec<f64>,
}

/// The benchmark.
pub fn orders(args: &OrdersArgs) -> Result<u8, Failure> {
    let bytes = args.common.check(0)?;
    let plan = Plan {
        threads: usize::from(args.threads),
        rounds: usize::from(args.rounds),
        read_rounds: 1,
        data: Data::Plain,
    };
    let mut report = Report::new("orders");
    let mut bad_words = 0;
    show_head();
    let nr_repeats = if args.common.full { REPEATS } else { 1 };
    let mut runs = Runs::new(SIZES.len() * nr_repeats * 2);
    let mut all = Vec::new();
    for (name, folio_bytes) in SIZES {
        let Some(order) = Order::from_bytes(folio_bytes) else { continue };
        let mut rounds = Rounds::default();
        for _ in 0..nr_repeats {
            for (split_slots, into) in [(false, &mut rounds.whole), (true, &mut rounds.split)] {
                let arena = ArenaPlan::new(args.common.memory, &args.common.options, FolioSize::Fixed(order));
                let system = format!("{order} {}", if split_slots { "split" } else { "whole" });
                let swept = managed(
                    &ArenaPlan { tuning: Tuning { split_slots, ..arena.tuning }, ..arena },
                    &plan,
                    bytes,
                    &system,
                    Some(&runs),
                )?;
                runs.ended();
                into.extend(gbps(&swept.rows, Kind::Rewrite));
                bad_words += swept.bad_words();
                to_json(&system, &swept.rows).for_each(|row| report.row(row));
            }
        }
        report.measure(&format!("whole_vs_split_{name}"), median_of_ratios(&rounds.whole, &rounds.split));
        all.push((name, rounds));
    }
    let whole = |wanted| all.iter().find(|(name, _)| *name == wanted).map(|(_, rounds)| &rounds.whole[..]);
    if let (Some(ours), Some(theirs)) = (whole("2m"), whole("64k")) {
        report.measure("2m_vs_64k", median_of_ratios(ours, theirs));
    }
    let [small, medium, large] = SIZES.map(|(name, _)| report.times(&format!("whole_vs_split_{name}")));
    report.verdict(format!(
        "with runs of slots, rewriting is {small} (4K), {medium} (64K) and {large} (2M) times as fast as with single slots"
    ));
    report.conclude(args.common.json.as_deref(), bad_words)
}
