//! A mixed workload: one thread streams through one part of the memory while others access the other part at random.

use crate::random::{self, Outcome, Plan};
use crate::shared::pages::PageSet;
use crate::shared::records::Data;
use crate::sweep::{read, write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Words of one step of the stream, 2 MiB.
const STEP_WORDS: usize = (2 << 20) / size_of::<u64>();

/// The result of both.
pub struct Mixed {
    /// 10^9 bytes per second that were read, checked and rewritten.
    pub stream_gbps: f64,
    pub random: Outcome,
    /// Wrong words in either part.
    pub bad_words: u64,
}

impl Mixed {
    /// The geometric mean of both figures. A speed-up by some factor counts the same in either of them.
    pub fn score(&self) -> f64 {
        (self.stream_gbps * self.random.ops()).sqrt()
    }
}

/// Streams through one part and runs `plan` on the other. `progress` counts bytes filled.
pub fn mix(streamed: &mut [u64], accessed: &mut [u64], plan: &Plan, progress: &AtomicU64) -> Mixed {
    write(streamed, 0, 1, Data::Plain, progress);
    let pages = PageSet::fill(accessed, Data::Plain, 1, progress);
    let stop = AtomicBool::new(false);
    let mut mixed = std::thread::scope(|scope| {
        let stream = scope.spawn(|| stream(streamed, &stop));
        let random = random::access(&pages, plan);
        stop.store(true, Ordering::Relaxed);
        // The stream has no reason to panic. If it does, this reports a wrong word.
        let (stream_gbps, bad_words) = stream.join().unwrap_or((0.0, 1));
        Mixed { stream_gbps, bad_words: bad_words + random.bad_words, random }
    });
    mixed.bad_words += pages.verify_written(1);
    mixed
}

/// Checks and rewrites the words, step by step, until told to stop. Returns GB/s and the number of wrong words.
fn stream(words: &mut [u64], stop: &AtomicBool) -> (f64, u64) {
    let uncounted = AtomicU64::new(0);
    let (mut bytes, mut bad_words) = (0, 0);
    let begin = Instant::now();
    let mut round = 1;
    let mut written = usize::MAX;
    while written == usize::MAX && !words.is_empty() {
        for (step, part) in words.chunks_mut(STEP_WORDS).enumerate() {
            if stop.load(Ordering::Relaxed) {
                written = step;
                break;
            }
            let first = (step * STEP_WORDS) as u64;
            bad_words += read(part, first, round, Data::Plain, &uncounted);
            write(part, first, round + 1, Data::Plain, &uncounted);
            bytes += size_of_val(part) as u64;
        }
        round += 1;
    }
    let gbps = bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9) / 1e9;
    for (step, part) in words.chunks(STEP_WORDS).enumerate() {
        let last = if step < written { round } else { round - 1 };
        bad_words += read(part, (step * STEP_WORDS) as u64, last, Data::Plain, &uncounted);
    }
    (gbps, bad_words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::access::Distribution;
    use crate::shared::pages::Access;
    use std::time::Duration;

    #[test]
    fn both_halves_are_sound_and_move() {
        let mut words = vec![0; 5 * STEP_WORDS + 512];
        let time = Duration::from_millis(50);
        let plan =
            Plan { threads: 1, time, distribution: Distribution::Uniform, access: Access::Change, access_words: 512 };
        let (streamed, accessed) = words.split_at_mut(3 * STEP_WORDS);
        let mixed = mix(streamed, accessed, &plan, &AtomicU64::new(0));
        assert_eq!(mixed.bad_words, 0);
        assert!(mixed.score() > 0.0);
    }
}
