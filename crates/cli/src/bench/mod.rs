//! `folioswap bench`: what every benchmark shares, that is the report, its JSON form, and rounds shown as they end.
//!
//! The JSON form is `{"bench": name, "machine": {…}, "measures": {name: number}, "rows": […]}`; names of measures stay as they are.

pub mod raw;
pub mod sweep;
pub mod sweep_command;

use crate::exit::{Failure, Status};
use crate::swap_check::meminfo;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// What a benchmark found.
pub struct Report {
    bench: &'static str,
    measures: Map<String, Value>,
    rows: Vec<Value>,
}

impl Report {
    /// An empty one.
    pub fn new(bench: &'static str) -> Report {
        Report { bench, measures: Map::new(), rows: Vec::new() }
    }

    /// Records a measure; one that could not be taken is left out.
    pub fn measure(&mut self, name: &str, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            // Counts stay whole numbers in JSON.
            let whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
            self.measures.insert(name.to_owned(), if whole { json!(value as u64) } else { json!(value) });
        }
    }

    /// Records a row.
    pub fn row(&mut self, row: Value) {
        self.rows.push(row);
    }

    /// Prints the measures, and writes the file if one was asked for.
    pub fn finish(self, file: Option<&Path>) -> Result<(), Failure> {
        tell("");
        for (name, value) in &self.measures {
            match value.as_u64() {
                Some(count) => tell(&format!("{name:<20} {count}")),
                None => tell(&format!("{name:<20} {:.3}", value.as_f64().unwrap_or(f64::NAN))),
            }
        }
        let Some(file) = file else { return Ok(()) };
        let report = json!({
            "bench": self.bench, "machine": machine(), "measures": self.measures, "rows": self.rows,
        });
        std::fs::write(file, format!("{report:#}\n"))
            .map_err(|error| Failure::new(Status::Failed, format!("{} was not written: {error}", file.display())))
    }
}

/// Prints a line at once. A reader that went away, as `head` does, loses lines and stops nothing: the JSON file is still to come.
fn tell(line: &str) {
    let mut output = std::io::stdout();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// What the figures were taken on.
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
        "memory_bytes": meminfo("MemTotal:"),
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled").trim(),
    })
}

/// A progress bar on a terminal; elsewhere nothing.
pub struct Progress {
    bar: ProgressBar,
    counted: AtomicU64,
}

impl Progress {
    /// A bar for rounds of `bytes` each; `shown` is false where lines on standard output are read by a program.
    pub fn new(bytes: u64, shown: bool) -> Progress {
        // Standard error that is no terminal draws nothing.
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        if let Ok(style) = ProgressStyle::with_template("{msg:<24} [{bar:40}] {bytes}/{total_bytes}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress { bar, counted: AtomicU64::new(0) }
    }

    /// The counter that a round adds its bytes to.
    pub fn counter(&self) -> &AtomicU64 {
        &self.counted
    }

    /// Says what is going on.
    pub fn say(&self, message: String) {
        self.bar.set_message(message);
    }

    /// Prints a line above the bar.
    pub fn line(&self, line: &str) {
        self.bar.suspend(|| tell(line));
    }

    /// Runs `work` while `every` is called about every `period` and the bar is kept up to date.
    pub fn during<T>(&self, period: Duration, mut every: impl FnMut(u64) + Send, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let (finished, end) = channel::<()>();
            scope.spawn(move || {
                while end.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                    let counted = self.counted.load(Ordering::Relaxed);
                    every(counted);
                    self.bar.set_position(counted);
                }
            });
            let result = work();
            drop(finished);
            result
        })
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
