//! The counters of a run: memory shared with the program, and what is printed of it at the end.
//!
//! The memory is a memfd of the size of [`folioswap_core::Stats`], which the injected library opens by its path in /proc and
//! counts into. `Stats` consists of 64-bit words without padding, all zero when empty, so here it is read as words: counters, then
//! gauges (value, peak), then one histogram for each kind of fault (buckets, sum).

use crate::exit::{Failure, Status};
use folioswap::Bytes;
use folioswap_core::{FaultKind, Histogram, Stats, StatsSnapshot};
use rustix::fs::MemfdFlags;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the counters are printed.
#[derive(Copy, Clone, Eq, PartialEq, Debug, clap::ValueEnum)]
pub enum Form {
    /// Lines for people.
    Text,
    /// One JSON object in one line.
    Json,
}

const NR_WORDS: usize = size_of::<Stats>() / 8;
const HISTOGRAM_WORDS: usize = size_of::<Histogram>() / 8;

/// Memory that the program counts into.
pub struct Counters {
    memory: File,
    path: PathBuf,
}

impl Counters {
    /// New, all zero.
    pub fn create() -> Result<Counters, Failure> {
        let failed = |error: rustix::io::Errno| {
            Failure::new(Status::Failed, format!("the memory for the counters could not be made: {error}"))
        };
        let memory = rustix::fs::memfd_create("folioswap-stats", MemfdFlags::CLOEXEC).map_err(failed)?;
        rustix::fs::ftruncate(&memory, size_of::<Stats>() as u64).map_err(failed)?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
        Ok(Counters { memory: memory.into(), path })
    }

    /// Where other processes open it, as long as this one lives.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was counted, for a budget and the time that the program took.
    pub fn describe(&self, form: Form, memory_bytes: u64, wall: Duration) -> String {
        let mut bytes = vec![0; size_of::<Stats>()];
        if let Err(error) = self.memory.read_exact_at(&mut bytes, 0) {
            return format!("folioswap: the counters could not be read: {error}");
        }
        let (words, _) = bytes.as_chunks::<8>();
        let summary = Summary::from_words(&words.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>());
        match form {
            Form::Text => summary.text(memory_bytes, wall),
            Form::Json => summary.json(memory_bytes, wall).to_string(),
        }
    }
}

/// Faults of one kind.
struct Faults {
    kind: FaultKind,
    count: u64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
}

/// The numbers of a run.
struct Summary {
    counters: Vec<(&'static str, u64)>,
    resident_bytes: u64,
    peak_resident_bytes: u64,
    huge_resident_bytes: u64,
    peak_huge_bytes: u64,
    faults: Vec<Faults>,
}

impl Summary {
    fn from_words(words: &[u64]) -> Summary {
        assert_eq!(words.len(), NR_WORDS);
        let empty = StatsSnapshot::default();
        let counters: Vec<_> = empty.counters().map(|(name, _)| name).zip(words.iter().copied()).collect();
        let gauges = &words[counters.len()..NR_WORDS - FaultKind::NR * HISTOGRAM_WORDS];
        let (_, histograms) = words.split_at(NR_WORDS - FaultKind::NR * HISTOGRAM_WORDS);
        let edges = bucket_edges();
        let faults = FaultKind::ALL.into_iter().zip(histograms.chunks(HISTOGRAM_WORDS)).map(|(kind, histogram)| {
            let buckets = &histogram[..HISTOGRAM_WORDS - 1];
            let quantile = |q| quantile(buckets, &edges, q);
            Faults {
                kind,
                count: buckets.iter().sum(),
                p50_ns: quantile(0.5),
                p99_ns: quantile(0.99),
                p999_ns: quantile(0.999),
            }
        });
        Summary {
            resident_bytes: gauges[0],
            peak_resident_bytes: gauges[1].max(gauges[0]),
            huge_resident_bytes: gauges[2],
            peak_huge_bytes: gauges[3].max(gauges[2]),
            faults: faults.collect(),
            counters,
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
    }

    /// None while nothing is resident, and when the program ended before huge pages were counted.
    fn huge_share(&self) -> Option<f64> {
        (self.resident_bytes > 0 && self.peak_huge_bytes > 0)
            .then(|| self.huge_resident_bytes as f64 / self.resident_bytes as f64)
    }

    fn text(&self, memory_bytes: u64, wall: Duration) -> String {
        let mut text = String::from("folioswap:\n");
        let mut line = |name: &str, rest: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {name:<14} {rest}");
        };
        for (name, folios, bytes) in [
            ("swapped in", "swapped_in_folios", "swapped_in_bytes"),
            ("swapped out", "swapped_out_folios", "swapped_out_bytes"),
        ] {
            line(name, format!("{} folios, {}", self.counter(folios), Bytes(self.counter(bytes))));
        }
        line("not written", {
            let (zero, clean) = (self.counter("zero_folios_dropped"), self.counter("clean_folios_dropped"));
            format!("{zero} folios all zero, {clean} unchanged")
        });
        line("faults", format!("{:>10} {:>10} {:>10} {:>10}", "count", "p50", "p99", "p99.9"));
        for faults in &self.faults {
            let times = [faults.p50_ns, faults.p99_ns, faults.p999_ns].map(show_ns);
            let name = format!("  {}", faults.kind.name().replace('_', " "));
            line(&name, format!("{:>10} {:>10} {:>10} {:>10}", faults.count, times[0], times[1], times[2]));
        }
        let share = self.huge_share().map_or("not measured".into(), |share| format!("{:.1} %", share * 100.0));
        line("huge pages", share);
        line("peak resident", format!("{} of {}", Bytes(self.peak_resident_bytes), Bytes(memory_bytes)));
        let stalled = self.counter("stalled_ns") as f64 / 1e9;
        line("stalled", format!("{stalled:.3} s, all threads together, in {:.3} s", wall.as_secs_f64()));
        for (name, label) in [("verify_failures", "wrong content"), ("io_errors", "I/O errors")] {
            if self.counter(name) > 0 {
                line(label, self.counter(name).to_string());
            }
        }
        text.trim_end().to_owned()
    }

    fn json(&self, memory_bytes: u64, wall: Duration) -> Value {
        let mut object: Map<String, Value> =
            self.counters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let faults: Map<String, Value> = self
            .faults
            .iter()
            .map(|faults| {
                let numbers = json!({
                    "count": faults.count, "p50_ns": faults.p50_ns, "p99_ns": faults.p99_ns, "p999_ns": faults.p999_ns,
                });
                (faults.kind.name().to_owned(), numbers)
            })
            .collect();
        object.insert("faults".into(), faults.into());
        object.insert("huge_share".into(), json!(self.huge_share()));
        object.insert("resident_bytes".into(), json!(self.resident_bytes));
        object.insert("peak_resident_bytes".into(), json!(self.peak_resident_bytes));
        object.insert("memory_bytes".into(), json!(memory_bytes));
        object.insert("seconds".into(), json!(wall.as_secs_f64()));
        object.into()
    }
}

/// The upper edge of each bucket of a histogram, found by asking one.
fn bucket_edges() -> Vec<u64> {
    let mut edges = Vec::with_capacity(HISTOGRAM_WORDS - 1);
    let mut next = 0;
    while edges.len() < HISTOGRAM_WORDS - 1 {
        let probe = Histogram::new();
        probe.record(next);
        let edge = probe.quantile(1.0);
        edges.push(edge);
        next = edge + 1;
    }
    edges
}

/// The smallest edge that at least the `q`-th part of the values do not exceed; 0 when there are none.
fn quantile(buckets: &[u64], edges: &[u64], q: f64) -> u64 {
    let count: u64 = buckets.iter().sum();
    let rank = ((q * count as f64).ceil() as u64).clamp(1, count.max(1));
    let mut seen = 0;
    for (bucket, edge) in buckets.iter().zip(edges) {
        seen += bucket;
        if seen >= rank {
            return *edge;
        }
    }
    0
}

fn show_ns(ns: u64) -> String {
    match ns {
        0 => "-".into(),
        1..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_one_is_empty_and_has_a_path() {
        let counters = Counters::create().expect("a memfd");
        assert_eq!(File::open(counters.path()).expect("our own").metadata().expect("a file").len() % 8, 0);
        let json = counters.describe(Form::Json, 1 << 29, Duration::from_secs(1));
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["swapped_in_folios"], 0);
        assert_eq!(json["faults"]["swap_in"]["count"], 0);
        assert_eq!(json["huge_share"], Value::Null);
        assert_eq!(json["memory_bytes"], 1 << 29);
    }

    #[test]
    fn words_mean_what_the_counters_say() {
        let mut words = vec![0; NR_WORDS];
        let nr_counters = StatsSnapshot::default().counters().count();
        words[2] = 7;
        words[nr_counters] = 100;
        words[nr_counters + 1] = 300;
        words[nr_counters + 2] = 50;
        let swap_in = NR_WORDS - 2 * HISTOGRAM_WORDS;
        words[swap_in + 20] = 98;
        words[swap_in + 40] = 2;
        let summary = Summary::from_words(&words);
        assert_eq!(summary.counter("swapped_out_folios"), 7);
        assert_eq!((summary.resident_bytes, summary.peak_resident_bytes), (100, 300));
        assert_eq!(summary.huge_share(), Some(0.5));
        let faults = &summary.faults[FaultKind::SwapIn.index()];
        let edges = bucket_edges();
        assert_eq!((faults.count, faults.p50_ns, faults.p99_ns), (100, edges[20], edges[40]));
        assert!(summary.text(512, Duration::ZERO).contains("7 folios"));
    }

    #[test]
    fn edges_ascend_and_quantiles_agree_with_the_histogram() {
        let edges = bucket_edges();
        assert!(edges.windows(2).all(|pair| pair[0] < pair[1]));
        let histogram = Histogram::new();
        let mut buckets = vec![0; edges.len()];
        for value in [3u64, 900, 5_000, 5_001, 70_000, 1_000_000, 4_000_000_000] {
            histogram.record(value);
            buckets[edges.partition_point(|edge| *edge < value)] += 1;
        }
        for q in [0.0, 0.3, 0.5, 0.99, 1.0] {
            assert_eq!(quantile(&buckets, &edges, q), histogram.quantile(q), "{q}");
        }
    }
}
