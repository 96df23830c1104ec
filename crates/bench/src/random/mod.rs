//! Random access: threads access random pages for some time. Each access is timed and checked.
//!
//! The code does not depend on folioswap, so that it runs over a managed region and over the kernel's memory alike.
//! The pages are filled before the timed part and verified after it.

pub mod command;

use crate::shared::access::{Distribution, Places};
use crate::shared::pages::{Access, PAGE_WORDS, PageSet};
use crate::shared::records::Data;
use fastrand::Rng;
use folioswap_core::{Histogram, HistogramSnapshot};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Warm-up that is not counted, as a fraction of the time.
const WARM_UP: f64 = 0.2;

/// The parameters of a run.
#[derive(Copy, Clone, Debug)]
pub struct Plan {
    /// Threads, each over the whole region.
    pub threads: usize,
    /// Wall time, including warm-up.
    pub time: Duration,
    /// Which pages are accessed.
    pub distribution: Distribution,
    pub access: Access,
    /// Words of an access. Divides a page; a multiple of a row for records.
    pub access_words: usize,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub seconds: f64,
    /// Latencies of the counted accesses.
    pub latencies: HistogramSnapshot,
    /// Words with a wrong value.
    pub bad_words: u64,
}

impl Outcome {
    /// Accesses per second.
    pub fn ops(&self) -> f64 {
        self.latencies.count() as f64 / self.seconds.max(1e-9)
    }
}

/// Fills the memory, accesses it, and verifies it. `progress` counts bytes filled.
pub fn run(words: &mut [u64], data: Data, plan: &Plan, progress: &AtomicU64) -> Outcome {
    let pages = PageSet::fill(words, data, plan.threads, progress);
    let mut outcome = access(&pages, plan);
    outcome.bad_words += pages.verify(plan.threads);
    outcome
}

/// Accesses filled pages.
pub fn access(pages: &PageSet, plan: &Plan) -> Outcome {
    access_once_more(pages, plan, 0)
}

/// The same for pages that were accessed `times` times before. Each time chooses other pages.
pub fn access_once_more(pages: &PageSet, plan: &Plan, times: u64) -> Outcome {
    let places = Places::new(plan.distribution, pages.len());
    let (latencies, bad_words) = (Mutex::new(HistogramSnapshot::default()), AtomicU64::new(0));
    let begin = Instant::now();
    let counted_from = begin + plan.time.mul_f64(WARM_UP);
    std::thread::scope(|scope| {
        for thread in 0..plan.threads.max(1) {
            let (places, latencies, bad_words) = (&places, &latencies, &bad_words);
            scope.spawn(move || {
                let own = Histogram::new();
                // Forked, so that the sequences of neighbouring seeds are not alike.
                let mut random = Rng::with_seed(times << 48 | (thread as u64 + 1) << 32).fork();
                let (mut now, mut is_counted) = (Instant::now(), false);
                // At least one access of each thread is counted, even if the machine stalls for all of the time.
                while now < begin + plan.time || !is_counted {
                    let page = places.draw(&mut random);
                    let first = random.usize(..PAGE_WORDS / plan.access_words) * plan.access_words;
                    let started = Instant::now();
                    let bad = pages.access(page, first..first + plan.access_words, plan.access);
                    now = Instant::now();
                    if started >= counted_from {
                        own.record(now.duration_since(started).as_nanos() as u64);
                        is_counted = true;
                    }
                    if bad > 0 {
                        bad_words.fetch_add(bad, Ordering::Relaxed);
                    }
                }
                own.add_to(&mut latencies.lock().expect("nothing panics under this lock"));
            });
        }
    });
    let seconds = counted_from.elapsed().as_secs_f64();
    let latencies = latencies.into_inner().expect("nothing panics under this lock");
    Outcome { seconds, latencies, bad_words: bad_words.into_inner() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_does_something_however_short_the_time() {
        let (mut words, time) = (vec![0; 8 * PAGE_WORDS], Duration::from_nanos(1));
        let plan =
            Plan { threads: 3, time, distribution: Distribution::Uniform, access: Access::Read, access_words: 1 };
        assert_eq!(run(&mut words, Data::Plain, &plan, &AtomicU64::new(0)).latencies.count(), 3);
    }

    #[test]
    fn every_kind_of_access_leaves_sound_memory() {
        for access in [Access::Read, Access::Write, Access::Change] {
            for (data, access_words, distribution) in [
                (Data::Plain, 512, Distribution::Uniform),
                (Data::Plain, 1, Distribution::Zipf { theta: 0.9 }),
                (Data::Records, 512, Distribution::HotCold),
                (Data::Records, 16, Distribution::Uniform),
            ] {
                let mut words = vec![0; 40 * PAGE_WORDS];
                let time = Duration::from_millis(100);
                let plan = Plan { threads: 3, time, distribution, access, access_words };
                let outcome = run(&mut words, data, &plan, &AtomicU64::new(0));
                assert_eq!(outcome.bad_words, 0);
                assert!(outcome.ops() > 0.0 && outcome.latencies.quantile(0.5) > 0);
                assert!(words.iter().all(|word| *word != 0));
            }
        }
    }
}
