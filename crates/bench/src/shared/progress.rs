//! Output while a benchmark runs: a line for each round, and a progress bar on a terminal.

use folioswap_command::exit::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{Error, ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why a line could not be printed, the first time.
static UNTOLD: Mutex<Option<Error>> = Mutex::new(None);

/// Prints a line at once. Goes on if that fails: the JSON file must still be written.
pub fn tell(line: &str) {
    let mut output = std::io::stdout();
    if let Err(error) = writeln!(output, "{line}").and_then(|()| output.flush()) {
        UNTOLD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Fails if a line could not be printed, unless its reader has gone away, like `head`.
pub fn check_told() -> Result<(), Failure> {
    match UNTOLD.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("standard output: {error}"))),
        _ => Ok(()),
    }
}

/// A progress bar. Does nothing without a terminal.
pub struct Progress {
    bar: ProgressBar,
    counted: AtomicU64,
}

impl Progress {
    /// A bar for rounds of `bytes` each. `shown` is false if a program reads the lines on standard output.
    pub fn new(bytes: u64, shown: bool) -> Progress {
        // Nothing is drawn if standard error is not a terminal.
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        if let Ok(style) = ProgressStyle::with_template("{msg:<24} [{bar:40}] {bytes}/{total_bytes} {prefix}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress { bar, counted: AtomicU64::new(0) }
    }

    /// A bar for `runs`, without bytes.
    pub fn of_runs(runs: &Runs) -> Progress {
        let bar = ProgressBar::new(runs.nr_runs.into());
        if let Ok(style) = ProgressStyle::with_template("{msg:<24} [{bar:40}] {prefix}") {
            bar.set_style(style.progress_chars("=> "));
        }
        let progress = Progress { bar, counted: AtomicU64::new(0) };
        progress.left(runs);
        progress
    }

    /// Counts a run that has ended on a bar for runs.
    pub fn run_ended(&self, runs: &mut Runs) {
        runs.ended();
        self.bar.set_position(runs.nr_ended.into());
        self.left(runs);
    }

    /// Shows which of these runs it is and how long is left.
    pub fn left(&self, runs: &Runs) {
        self.bar.set_prefix(runs.left());
    }

    /// The counter that rounds add their bytes to.
    pub fn counter(&self) -> &AtomicU64 {
        &self.counted
    }

    /// Sets the text of the bar.
    pub fn say(&self, message: String) {
        self.bar.set_message(message);
    }

    /// Moves the bar to the count of another process.
    pub fn at(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    /// Prints a line above the bar.
    pub fn line(&self, line: &str) {
        self.bar.suspend(|| tell(line));
    }

    /// Runs `work`. Meanwhile calls `every` about once every `period` and updates the bar.
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

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Counts runs of about the same length.
pub struct Runs {
    nr_runs: u32,
    nr_ended: u32,
    begun: Instant,
}

impl Runs {
    /// `nr_runs` runs, of which the first begins now.
    pub fn new(nr_runs: usize) -> Runs {
        Runs { nr_runs: nr_runs as u32, nr_ended: 0, begun: Instant::now() }
    }

    /// Counts a run that has ended.
    pub fn ended(&mut self) {
        self.nr_ended += 1;
    }

    /// Which run it is, and how long this one and those after it will take at the pace so far: `3/12, 40 s left`.
    fn left(&self) -> String {
        let number = format!("{}/{}", (self.nr_ended + 1).min(self.nr_runs), self.nr_runs);
        match self.nr_ended {
            0 => number,
            ended => {
                let left = self.begun.elapsed() / ended * (self.nr_runs - ended);
                format!("{number}, {} s left", left.as_secs())
            }
        }
    }
}
