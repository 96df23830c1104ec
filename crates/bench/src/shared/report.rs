//! The results of a benchmark, for people and as JSON.
//!
//! The JSON form is `{"bench": name, "machine": {…}, "measures": {name: number}, "rows": […]}`. Names of measures
//! never change; a measure goes with the mechanism that it measured.

use crate::shared::progress::tell;
use folioswap::ExitStatus;
use folioswap_command::exit::Failure;
use folioswap_sys::memory::total_ram;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The results of a benchmark.
pub struct Report {
    bench: &'static str,
    measures: Map<String, Value>,
    rows: Vec<Value>,
    verdict: String,
}

impl Report {
    pub fn new(bench: &'static str) -> Report {
        Report { bench, measures: Map::new(), rows: Vec::new(), verdict: String::new() }
    }

    /// Records a measure. Leaves out a value that could not be measured.
    pub fn measure(&mut self, name: &str, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            // Counts remain integers in JSON.
            let whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
            self.measures.insert(name.to_owned(), if whole { json!(value as u64) } else { json!(value) });
        }
    }

    pub fn row(&mut self, row: Value) {
        self.rows.push(row);
    }

    /// The value of a measure, for people.
    pub fn times(&self, name: &str) -> String {
        self.measures.get(name).and_then(Value::as_f64).map_or("?".into(), |value| format!("{value:.2}"))
    }

    /// Sets the last line: what the figures say, in one sentence.
    pub fn verdict(&mut self, sentence: String) {
        self.verdict = sentence;
    }

    /// Prints all figures and ends the benchmark. Wrong words are a measure and make it fail.
    pub fn conclude(mut self, file: Option<&Path>, bad_words: u64) -> Result<u8, Failure> {
        self.measure("bad_words", bad_words as f64);
        self.finish(file)?;
        if bad_words > 0 {
            return Err(Failure::of(ExitStatus::CheckFailed, format!("{bad_words} words were wrong")));
        }
        Ok(0)
    }

    /// Prints the measures. Writes the file if one was asked for.
    fn finish(self, file: Option<&Path>) -> Result<(), Failure> {
        tell("");
        for (name, value) in &self.measures {
            match value.as_u64() {
                Some(count) => tell(&format!("{name:<24} {count}")),
                None => tell(&format!("{name:<24} {:.3}", value.as_f64().unwrap_or(f64::NAN))),
            }
        }
        if !self.verdict.is_empty() {
            tell(&format!("\n{}", self.verdict));
        }
        let Some(file) = file else { return Ok(()) };
        let report = json!({
            "bench": self.bench, "machine": machine(), "measures": self.measures, "rows": self.rows,
        });
        std::fs::write(file, format!("{report:#}\n"))
            .map_err(|error| Failure::new(format!("{} was not written: {error}", file.display())))
    }
}

/// The machine that gave the figures.
fn machine() -> Value {
    let name = rustix::system::uname();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    json!({
        "kernel": name.release().to_string_lossy(),
        "arch": name.machine().to_string_lossy(),
        "cpu": model.unwrap_or("unknown"),
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": total_ram(),
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled").trim(),
    })
}
