//! First touches of 2 MiB folios, with a stock of zeroed memory and without. Part of `bench latency`.
//!
//! Half of the budget is touched for the first time, one folio at a time at a steady pace, then dropped and touched
//! again. The frames of dropped folios hold old data, so that each first touch needs 2 MiB cleared. Both ways take
//! turns, each in an arena of its own. Each folio is checked to be zero, and written.

use crate::shared::medians::median_of_ratios;
use crate::shared::pages::BLOCK;
use crate::shared::progress::tell;
use crate::shared::report::Report;
use crate::shared::setup::ArenaPlan;
use folioswap::{Advice, FolioSize, Order, Tuning};
use folioswap_command::args::PagingOptions;
use folioswap_command::exit::Failure;
use folioswap_core::Histogram;
use serde_json::json;
use std::time::{Duration, Instant};

/// Time between two first touches: several times what clearing 2 MiB takes.
const PACE: Duration = Duration::from_millis(2);
/// Passes over the memory in a turn. The first one takes memory from the kernel and is not counted.
const PASSES: usize = 4;
/// The most folios in a pass.
const MOST_FOLIOS: usize = 64;

/// Runs the turns and reports the measures. Returns the number of wrong words.
pub fn first_touches(
    memory_bytes: u64,
    rounds: u16,
    options: &PagingOptions,
    report: &mut Report,
) -> Result<u64, Failure> {
    let (mut p50_us, mut bad_words) = ([Vec::new(), Vec::new()], 0);
    tell(&format!("{:<14} {:>6} {:>9} {:>9} {:>9}", "first touch 2M", "round", "p50 us", "p99 us", "max us"));
    for round in 1..=rounds {
        for (zeroed_stock, p50_us) in [false, true].into_iter().zip(&mut p50_us) {
            let name = if zeroed_stock { "stock" } else { "plain" };
            let (latencies, bad) = turn(memory_bytes, options, zeroed_stock)?;
            let us = |q| latencies.quantile(q) as f64 / 1e3;
            tell(&format!("{name:<14} {round:>6} {:>9.1} {:>9.1} {:>9.1}", us(0.5), us(0.99), us(1.0)));
            report.row(json!({
                "first_touch": name, "round": round, "p50_us": us(0.5), "p99_us": us(0.99), "max_us": us(1.0),
            }));
            p50_us.push(us(0.5));
            bad_words += bad;
        }
    }
    let [plain, stock] = p50_us;
    report.measure("first_touch_vs_plain", median_of_ratios(&stock, &plain));
    Ok(bad_words)
}

fn turn(
    memory_bytes: u64,
    options: &PagingOptions,
    zeroed_stock: bool,
) -> Result<(folioswap_core::HistogramSnapshot, u64), Failure> {
    let plan = ArenaPlan {
        tuning: Tuning { zeroed_stock, ..Tuning::default() },
        ..ArenaPlan::new(memory_bytes, options, FolioSize::Fixed(Order::HUGE))
    };
    let arena = plan.build()?;
    let nr_folios = (memory_bytes as usize / 2 / BLOCK).clamp(1, MOST_FOLIOS);
    let mut region = arena.map(nr_folios * BLOCK)?;
    let (latencies, mut bad_words) = (Histogram::new(), 0);
    for pass in 0..PASSES {
        let begin = Instant::now();
        for (index, folio) in region.chunks_mut(BLOCK).enumerate() {
            // Never early, and a late touch is not caught up: each touch is measured on its own.
            let due = begin + PACE * index as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let touched = Instant::now();
            folio[BLOCK / 2] |= 1;
            if pass > 0 {
                latencies.record_alone(touched.elapsed().as_nanos() as u64);
            }
            folio[BLOCK / 2] ^= 1;
            let words: &mut [u64] = bytemuck::cast_slice_mut(folio);
            bad_words += words.iter().filter(|&&word| word != 0).count() as u64;
            words.fill(index as u64 + 1);
        }
        region.advise(.., Advice::DontNeed);
    }
    Ok((latencies.snapshot(), bad_words))
}
