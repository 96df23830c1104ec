//! The sweep: threads write their shares of one array from start to end, again and again, then read and check them.
//!
//! The code does not depend on folioswap, so that it runs over a managed region and over the kernel's memory alike.
//! Every word of a round has one right value, computed from its index and the round (plain data, all different, or
//! `records`). No folio equals another and none is zero. A word from another place or another round is detected. All
//! threads meet at a barrier between two rounds. A round is timed from the barrier before it to the barrier after it.

pub mod args;
pub mod command;
pub mod managed;
pub mod pages;
pub mod plot;

use crate::shared::medians::median;
use crate::shared::records::{self, Data};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Words of one step, 2 MiB. Progress is counted and wrong words are searched in steps.
const STEP_WORDS: usize = (2 << 20) / size_of::<u64>();

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// The first write, which touches memory for the first time.
    First,
    /// Every later write, to memory that was written before.
    Rewrite,
    /// Read and check.
    Read,
}

impl Kind {
    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::First => "write",
            Kind::Rewrite => "rewrite",
            Kind::Read => "read",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        [Kind::First, Kind::Rewrite, Kind::Read].into_iter().find(|kind| kind.name() == name)
    }
}

#[derive(Copy, Clone, Debug)]
pub struct Plan {
    /// Number of threads, each with a share of its own.
    pub threads: usize,
    pub rounds: usize,
    /// Read rounds after them.
    pub read_rounds: usize,
    /// The content to write.
    pub data: Data,
}

impl Plan {
    /// The rounds in order.
    pub fn kinds(&self) -> Vec<Kind> {
        let writes = (0..self.rounds).map(|round| if round == 0 { Kind::First } else { Kind::Rewrite });
        writes.chain((0..self.read_rounds).map(|_| Kind::Read)).collect()
    }
}

/// The result of a round.
#[derive(Copy, Clone, Debug)]
pub struct Row {
    pub kind: Kind,
    /// Wall time.
    pub seconds: f64,
    /// Bytes written or read.
    pub bytes: u64,
    /// Words that do not have the value written last.
    pub bad_words: u64,
}

impl Row {
    /// 10^9 bytes per second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9) / 1e9
    }
}

/// Runs the plan over `words`. `progress` counts bytes of the current round. `finished` is called with each row at
/// once.
pub fn sweep(words: &mut [u64], plan: &Plan, progress: &AtomicU64, mut finished: impl FnMut(&Row)) -> Vec<Row> {
    let (kinds, data) = (plan.kinds(), plan.data);
    let bytes = size_of_val(words) as u64;
    let share = words.len().div_ceil(plan.threads.max(1)).next_multiple_of(STEP_WORDS).max(STEP_WORDS);
    let shares: Vec<&mut [u64]> = words.chunks_mut(share).collect();
    let barrier = Barrier::new(shares.len() + 1);
    let bad_words = AtomicU64::new(0);
    let mut rows = Vec::new();
    std::thread::scope(|scope| {
        for (index, share_words) in shares.into_iter().enumerate() {
            let (barrier, kinds, bad_words) = (&barrier, &kinds, &bad_words);
            scope.spawn(move || {
                let mut written = 0;
                for kind in kinds {
                    barrier.wait();
                    let first = (index * share) as u64;
                    match kind {
                        Kind::First | Kind::Rewrite => {
                            written += 1;
                            write(share_words, first, written, data, progress);
                        }
                        Kind::Read => {
                            let bad = read(share_words, first, written, data, progress);
                            bad_words.fetch_add(bad, Ordering::Relaxed);
                        }
                    }
                    barrier.wait();
                }
            });
        }
        for &kind in &kinds {
            progress.store(0, Ordering::Relaxed);
            barrier.wait();
            let begin = Instant::now();
            barrier.wait();
            let seconds = begin.elapsed().as_secs_f64();
            let row = Row { kind, seconds, bytes, bad_words: bad_words.swap(0, Ordering::Relaxed) };
            finished(&row);
            rows.push(row);
        }
    });
    rows
}

/// Encodes the round in bits above any index.
fn round_mask(round: u64) -> u64 {
    round << 40 | 1 << 63
}

/// Writes the words of a round. `first` is the index of the first word and must begin a row.
pub fn write(words: &mut [u64], first: u64, round: u64, data: Data, progress: &AtomicU64) {
    let mut index = first;
    for step in words.chunks_mut(STEP_WORDS) {
        match data {
            Data::Plain => write_plain(step, index, round_mask(round)),
            Data::Records => records::write(step, index, round as u32),
        }
        index += step.len() as u64;
        progress.fetch_add(size_of_val(step) as u64, Ordering::Relaxed);
    }
}

/// Checks the words of a round. Returns the number of wrong words.
pub fn read(words: &[u64], first: u64, round: u64, data: Data, progress: &AtomicU64) -> u64 {
    let (mut index, mut bad_words) = (first, 0);
    for step in words.chunks(STEP_WORDS) {
        bad_words += match data {
            Data::Plain => read_plain(step, index, round_mask(round)),
            Data::Records => records::count_bad(step, index, round as u32),
        };
        index += step.len() as u64;
        progress.fetch_add(size_of_val(step) as u64, Ordering::Relaxed);
    }
    bad_words
}

fn write_plain(step: &mut [u64], index: u64, mask: u64) {
    for (offset, word) in step.iter_mut().enumerate() {
        *word = (index + offset as u64) ^ mask;
    }
}

fn read_plain(step: &[u64], index: u64, mask: u64) -> u64 {
    let mut difference = 0;
    for (offset, word) in step.iter().enumerate() {
        difference |= *word ^ (index + offset as u64) ^ mask;
    }
    if difference == 0 {
        return 0;
    }
    count_bad(step, index..index + step.len() as u64, mask)
}

/// At least one, even if the words are right when read again: they were wrong once.
#[cold]
fn count_bad(step: &[u64], indices: Range<u64>, mask: u64) -> u64 {
    let bad = step.iter().zip(indices).filter(|(word, index)| **word != index ^ mask).count();
    (bad as u64).max(1)
}

/// GB/s of all rounds of a kind, in order.
pub fn gbps(rows: &[Row], kind: Kind) -> Vec<f64> {
    rows.iter().filter(|row| row.kind == kind).map(Row::gbps).collect()
}

pub fn median_gbps(rows: &[Row], kind: Kind) -> Option<f64> {
    median(&gbps(rows, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { threads: 3, rounds: 2, read_rounds: 1, data: Data::Plain };

    #[test]
    fn a_sweep_of_sound_memory_finds_nothing() {
        let lens = [1, STEP_WORDS - 1, STEP_WORDS * 5 + 17];
        for (len, data) in lens.into_iter().flat_map(|len| [(len, Data::Plain), (len, Data::Records)]) {
            let mut words = vec![0; len];
            let progress = AtomicU64::new(0);
            let rows = sweep(&mut words, &Plan { data, ..PLAN }, &progress, |_| ());
            assert_eq!(rows.iter().map(|row| row.kind).collect::<Vec<_>>(), [Kind::First, Kind::Rewrite, Kind::Read]);
            assert!(rows.iter().all(|row| row.bad_words == 0 && row.bytes == len as u64 * 8));
            assert_eq!(progress.load(Ordering::Relaxed), len as u64 * 8);
            assert!(words.iter().all(|word| *word != 0));
        }
    }

    #[test]
    fn wrong_words_are_counted() {
        let progress = AtomicU64::new(0);
        for data in [Data::Plain, Data::Records] {
            let mut words = vec![0; 100];
            write(&mut words, 48, 2, data, &progress);
            let bad = |words: &[u64], first, round| read(words, first, round, data, &progress);
            assert_eq!(bad(&words, 48, 2), 0);
            words[7] = 0;
            words[99] ^= 1 << 40;
            assert_eq!(bad(&words, 48, 2), 2);
            assert_eq!(bad(&words, 48, 1), 100, "the round before");
            let elsewhere = bad(&words, 64, 2);
            // Rows share words with other rows, and four rows belong to one order.
            assert!(if data == Data::Plain { elsewhere == 100 } else { elsewhere > 40 }, "another place: {elsewhere}");
        }
    }
}
