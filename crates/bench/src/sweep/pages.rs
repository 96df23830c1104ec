//! `folioswap bench sweep --versus pages`: folios that are swapped in whole, compared with swap-in page by page.
//!
//! Both take turns, twice, each in an arena of its own, so that a machine whose speed drifts favours neither.

use crate::shared::medians::{median, ratio};
use crate::shared::report::Report;
use crate::shared::setup::ArenaPlan;
use crate::sweep::args::SweepArgs;
use crate::sweep::managed::{managed, show_head, to_json};
use crate::sweep::{Kind, gbps};
use folioswap::SwapIn;
use folioswap_command::exit::Failure;

/// Turns of each way.
const REPEATS: usize = 2;

/// Runs the comparison. `bytes` is the size in whole words.
pub fn sweep_pages(args: &SweepArgs, bytes: usize) -> Result<u8, Failure> {
    if args.shape.rounds < 2 {
        return Err(Failure::new("--versus pages compares what is written again: give --rounds 2 or more"));
    }
    if args.folios.swap_in != SwapIn::Always {
        return Err(Failure::new("--versus pages takes both ways in turn: leave --swap-in out"));
    }
    let mut report = Report::new("sweep");
    show_head();
    let policies = [(SwapIn::Always, "one piece"), (SwapIn::Never, "pages")];
    let (mut write, mut read) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut bad_words = 0;
    for _ in 0..REPEATS {
        for (which, (swap_in, system)) in policies.into_iter().enumerate() {
            let plan = ArenaPlan { swap_in, ..ArenaPlan::of(&args.paging, &args.folios) };
            let swept = managed(&plan, &args.shape.plan(), bytes, system)?;
            write[which].extend(gbps(&swept.rows, Kind::Rewrite));
            read[which].extend(gbps(&swept.rows, Kind::Read));
            bad_words += swept.bad_words();
            to_json(system, &swept.rows).for_each(|row| report.row(row));
        }
    }
    report.measure("write_gbps", median(&write[0]));
    report.measure("read_gbps", median(&read[0]));
    report.measure("pages_write_gbps", median(&write[1]));
    report.measure("pages_read_gbps", median(&read[1]));
    report.measure("one_piece_vs_pages", ratio(median(&write[0]), median(&write[1])));
    report.measure("read_one_piece_vs_pages", ratio(median(&read[0]), median(&read[1])));
    report.conclude(args.json.as_deref(), bad_words)
}
