//! One sweep over a managed region, in an arena of its own.

use crate::shared::progress::{Progress, tell};
use crate::shared::setup::ArenaPlan;
use crate::shared::stored::Stored;
use crate::sweep::{self, Plan, Row};
use folioswap::Arena;
use folioswap_command::exit::Failure;
use serde_json::{Value, json};
use std::time::Duration;

/// Sampling period of residency.
const SAMPLE_PERIOD: Duration = Duration::from_millis(50);

pub struct Managed {
    pub rows: Vec<Row>,
    /// Share of the resident memory that was in huge pages at the end.
    pub huge_share: Option<f64>,
    /// The most bytes seen above the budget.
    pub over_budget_bytes: u64,
    /// The largest sample of compressed RAM.
    pub stored: Option<Stored>,
}

impl Managed {
    /// The number of wrong words.
    pub fn bad_words(&self) -> u64 {
        self.rows.iter().map(|row| row.bad_words).sum()
    }
}

/// Sweeps `bytes` of a new arena. `system` is its name in the table.
pub fn managed(arena: &ArenaPlan, plan: &Plan, bytes: usize, system: &str) -> Result<Managed, Failure> {
    let arena = arena.build()?;
    let mut region = arena.map(bytes)?;
    let words: &mut [u64] = bytemuck::cast_slice_mut(&mut region[..bytes]);
    let progress = Progress::new(bytes as u64, true);
    progress.say(format!("{system}, {} {}", arena.fault_mode(), arena.mapping()));
    let (mut over_budget_bytes, mut stored) = (0, None);
    let mut sample = || {
        Stored::keep_most(&mut stored, Stored::of_arena(&arena));
        over_budget_bytes = over_budget_bytes.max(beyond_budget(&arena, over_budget_bytes));
    };
    let rows = progress.during(
        SAMPLE_PERIOD,
        |_| sample(),
        || sweep::sweep(words, plan, progress.counter(), |row| show(&progress, system, row)),
    );
    sample();
    progress.clear();
    let measured = arena.measure()?;
    let huge_share = (measured.resident_bytes > 0).then(|| measured.huge_bytes as f64 / measured.resident_bytes as f64);
    Ok(Managed { rows, huge_share, over_budget_bytes, stored })
}

/// Resident bytes above the budget. A folio that moves during the scan of the page tables is counted twice or not at
/// all. Many move if the scanning thread is preempted. A value above `most` is therefore replaced by the median of
/// three. A scan that fails counts as zero.
fn beyond_budget(arena: &Arena, most: u64) -> u64 {
    let beyond = || arena.measure().map_or(0, |found| found.resident_bytes.saturating_sub(found.budget_bytes));
    let first = beyond();
    if first <= most {
        return first;
    }
    let mut found = [first, beyond(), beyond()];
    found.sort_unstable();
    found[1]
}

/// Prints the head of the table.
pub fn show_head() {
    tell(&format!("{:<10} {:<8} {:>10} {:>10}", "system", "round", "seconds", "GB/s"));
}

/// Prints a row of the table.
pub fn show(progress: &Progress, system: &str, row: &Row) {
    progress.line(&format!("{system:<10} {:<8} {:>10.3} {:>10.3}", row.kind.name(), row.seconds, row.gbps()));
}

pub fn to_json<'a>(system: &'a str, rows: &'a [Row]) -> impl Iterator<Item = Value> + 'a {
    rows.iter().enumerate().map(move |(index, row)| {
        json!({
            "system": system, "round": index + 1, "kind": row.kind.name(), "seconds": row.seconds,
            "bytes": row.bytes, "gbps": row.gbps(), "bad_words": row.bad_words,
        })
    })
}
