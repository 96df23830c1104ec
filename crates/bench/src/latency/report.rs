//! Output of `bench latency`: tables of shares and of phases, and the rows of its report.

use crate::latency::turn::Outcome;
use crate::shared::progress::tell;
use folioswap_core::{HistogramSnapshot, PHASES_OF_ONE_IN, Phase};
use serde_json::{Map, Value, json};

fn us(histogram: &HistogramSnapshot, q: f64) -> f64 {
    histogram.quantile(q) as f64 / 1e3
}

const QUANTILES: [(&str, f64); 4] = [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999)];
const SHARES: [&str; 4] = ["share_below_20us", "share_to_100us", "share_to_500us", "share_over_500us"];

fn to_json(histogram: &HistogramSnapshot) -> Value {
    let mut object = Map::from_iter([("count".to_owned(), json!(histogram.count()))]);
    object.extend(QUANTILES.map(|(name, q)| (name.to_owned(), json!(us(histogram, q)))));
    object.insert("max_us".into(), json!(histogram.max() as f64 / 1e3));
    object.extend(SHARES.into_iter().zip(histogram.shares()).map(|(name, share)| (name.to_owned(), json!(share))));
    object.into()
}

/// A turn as a row of the report.
pub fn row(folio: &str, way: &str, rate: f64, kept_up: bool, outcome: &Outcome) -> Value {
    let phases = Phase::ALL.into_iter().zip(&outcome.phases);
    let phases: Map<_, _> = phases.map(|(phase, times)| (phase.name().to_owned(), to_json(times))).collect();
    let slow = Phase::ALL.into_iter().zip(outcome.slow);
    let slow: Map<_, _> = slow.map(|(phase, count)| (phase.name().to_owned(), json!(count))).collect();
    json!({
        "folio": folio, "way": way, "rate": rate, "kept_up": kept_up, "due": to_json(&outcome.due),
        "touch": to_json(&outcome.touch), "swap_in": to_json(&outcome.swap_in), "phases": phases,
        "over_100us_by_phase": slow, "off_cpu_share": outcome.off_cpu_seconds / outcome.seconds,
        "bad_words": outcome.bad_words,
    })
}

/// Prints the head of the table of shares.
pub fn tell_head() {
    tell(&format!(
        "{:<5} {:<5} {:<7} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "folio",
        "way",
        "from",
        "count",
        "<20us %",
        "-100 %",
        "-500 %",
        "above %",
        "p50 us",
        "p90 us",
        "p99 us",
        "p99.9 us",
        "max us"
    ));
}

/// Prints shares and quantiles of one way over all its turns: from when a touch was due, from when it began, and
/// within the engine. The first minus the second is lateness. The second minus the third is the way into the engine
/// and back.
pub fn tell_shares(folio: &str, way: &str, outcome: &Outcome) {
    for (from, times) in [("due", &outcome.due), ("touch", &outcome.touch), ("engine", &outcome.swap_in)] {
        let shares = times.shares().map(|share| format!("{:>8.3}", share * 100.0)).join(" ");
        let quantiles = QUANTILES.map(|(_, q)| format!("{:>8.1}", us(times, q))).join(" ");
        let (count, max_us) = (times.count(), times.max() as f64 / 1e3);
        tell(&format!("{folio:<5} {way:<5} {from:<7} {count:>9} {shares} {quantiles} {max_us:>9.1}"));
    }
}

/// Prints the time that faults spent in each phase (of one fault in [`PHASES_OF_ONE_IN`]), and how often each phase
/// was the longest of a slow swap-in.
pub fn tell_phases(folio: &str, ways: &[(&str, &Outcome)]) {
    tell(&format!(
        "{:<5} {:<5} {:<7} {:>9} {:>8} {:>8} {:>10} {:>24}",
        "folio", "way", "phase", "count", "p50 us", "p99 us", ">100us %", "longest of slow swap-ins"
    ));
    tell(&format!("(phases of one fault in {PHASES_OF_ONE_IN}; the longest of slow swap-ins as far as it is known)"));
    for (way, outcome) in ways {
        for ((phase, times), slow) in Phase::ALL.into_iter().zip(&outcome.phases).zip(outcome.slow) {
            let (count, name) = (times.count(), phase.name());
            let (p50, p99, over) = (us(times, 0.5), us(times, 0.99), times.share_over_100us() * 100.0);
            tell(&format!("{folio:<5} {way:<5} {name:<7} {count:>9} {p50:>8.1} {p99:>8.1} {over:>10.3} {slow:>24}"));
        }
        let slow = outcome.swap_in.nr_over_100us();
        let off_cpu = 100.0 * outcome.off_cpu_seconds / outcome.seconds.max(1e-9);
        let longest = Phase::ALL.into_iter().zip(outcome.slow).max_by_key(|(_, count)| *count);
        let longest = longest.filter(|(_, count)| *count > 0).map_or(String::new(), |(phase, count)| {
            format!(", in {count} of them the longest phase was {}", phase.name())
        });
        tell(&format!(
            "{folio:<5} {way:<5} over 100 us in the engine: {slow}{longest}; the thread was off its CPU for {off_cpu:.1} % of the time"
        ));
    }
}
