//! The mixed workload of `bench compact`: a stream through 2 MiB folios and random access to 4 KiB folios share one
//! budget. Runs with compaction and without, in turn.

use crate::random::Plan;
use crate::shared::access::Distribution;
use crate::shared::medians::median_of_ratios;
use crate::shared::mix::mix;
use crate::shared::pages::{Access, PAGE_WORDS};
use crate::shared::progress::{Progress, Runs};
use crate::shared::report::Report;
use crate::shared::setup::ArenaPlan;
use folioswap::{FolioSize, Order, Tuning};
use folioswap_command::args::PagingOptions;
use folioswap_command::exit::Failure;
use folioswap_core::compact::Stage;
use serde_json::json;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// With compaction, and without.
pub const NR_WAYS: usize = 2;

const TURN: Duration = Duration::from_secs(4);

/// Measures `mix_on_vs_off`, `stream_on_vs_off` and `random_on_vs_off`. Returns the number of wrong words.
pub fn mixed(
    memory: u64,
    rounds: u16,
    options: &PagingOptions,
    report: &mut Report,
    (progress, runs): (&Progress, &mut Runs),
) -> Result<u64, Failure> {
    let mut figures: [[Vec<f64>; 3]; NR_WAYS] = Default::default();
    let mut bad_words = 0;
    progress.line("");
    progress.line(&format!("{:<8} {:>7} {:>12} {:>14}", "mix", "turn", "stream GB/s", "random ops/s"));
    for round in 1..=rounds {
        for (stage, figures) in [Some(Stage::default()), None].into_iter().zip(&mut figures) {
            let name = if stage.is_some() { "on" } else { "off" };
            progress.say(format!("mix, {name}"));
            let plan = ArenaPlan {
                tuning: Tuning { compaction: stage, ..Tuning::default() },
                ..ArenaPlan::new(memory, options, FolioSize::Auto)
            };
            let arena = plan.build()?;
            let bytes = memory as usize; // of each part
            let mut streamed = arena.map_with(bytes, FolioSize::Fixed(Order::HUGE))?;
            let mut accessed = arena.map_with(bytes, FolioSize::Fixed(Order::PAGE))?;
            let plan = Plan {
                threads: 1,
                time: TURN,
                distribution: Distribution::Uniform,
                access: Access::Change,
                access_words: PAGE_WORDS,
            };
            let (streamed, accessed) =
                (bytemuck::cast_slice_mut(&mut streamed), bytemuck::cast_slice_mut(&mut accessed));
            let mixed = mix(streamed, accessed, &plan, &AtomicU64::new(0));
            bad_words += mixed.bad_words;
            let (stream, random) = (mixed.stream_gbps, mixed.random.ops());
            progress.run_ended(runs);
            progress.line(&format!("{name:<8} {round:>7} {stream:>12.3} {random:>14.0}"));
            report.row(json!({ "mix": name, "turn": round, "stream_gbps": stream, "random_ops": random }));
            for (figures, figure) in figures.iter_mut().zip([mixed.score(), stream, random]) {
                figures.push(figure);
            }
        }
    }
    let [on, off] = figures;
    for (index, name) in ["mix_on_vs_off", "stream_on_vs_off", "random_on_vs_off"].into_iter().enumerate() {
        report.measure(name, median_of_ratios(&on[index], &off[index]));
    }
    Ok(bad_words)
}
