//! The counters of a run, in memory shared with the program, and what is printed of them at the end.
//!
//! The preload library opens this memory and counts in it. It outlives the program.

use crate::outside::Outside;
use folioswap::{
    Bytes, DeviceIo, DeviceTransfers, ExitStatus, FaultChoice, FaultMode, SharedStats, StatsPlace, StatsSnapshot,
    SwapDevice,
};
use folioswap_command::exit::{End, Failure};
use folioswap_core::{FaultKind, HistogramSnapshot, MAX_ORDER, NR_ORDERS, Order, PAGE_SIZE, PHASES_OF_ONE_IN, Phase};
use folioswap_sys::offered::Offer;
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::fmt::Write;
use std::time::Duration;

/// How the counters are printed.
#[derive(Copy, Clone, Eq, PartialEq, Debug, clap::ValueEnum)]
pub enum Form {
    /// Lines of text for people.
    Text,
    /// One JSON object on one line.
    Json,
}

/// Shared memory that the program counts in.
pub struct Counters {
    shared: SharedStats,
    place: StatsPlace,
    offer: Cell<Option<Offer>>,
}

impl Counters {
    /// New counters, all zero.
    pub fn create() -> Result<Counters, Failure> {
        let failure = |error| Failure::new(format!("the memory for the counters could not be made: {error}"));
        let shared = SharedStats::new().map_err(failure)?;
        let (place, offer) = shared.offer().map_err(failure)?;
        Ok(Counters { shared, place, offer: Cell::new(offer) })
    }

    /// Answers processes that ask for the memory, on a thread. Those that have asked before have waited.
    pub fn answer(&self) {
        // Without a thread, those of the same user and root find it.
        let _ = self.offer.take().map(Offer::answer);
    }

    /// Where other processes find the memory, for as long as this process lives.
    pub fn place(&self) -> &StatsPlace {
        &self.place
    }

    /// The end of a run whose program ended so: a panic of folioswap in any of its processes counts more.
    pub fn end(&self, program: End) -> End {
        if self.shared.get().defects() > 0 { End::Status(ExitStatus::Defect.code()) } else { program }
    }

    /// What was counted, given the budget and the run time of the program, and how its faults were resolved.
    pub fn describe(
        &self,
        form: Form,
        memory_bytes: u64,
        wall: Duration,
        outside: &Outside,
        faults: &FaultChoice,
    ) -> String {
        let FaultChoice { mode, reason } = faults;
        let [direct, monitor] = [FaultMode::Direct, FaultMode::Monitor].map(|mode| self.shared.get().nr_in_mode(mode));
        // As where a program has changed its user.
        let others = match mode {
            FaultMode::Direct if monitor > 0 => format!("; monitor in {monitor} of {} programs", direct + monitor),
            FaultMode::Monitor if direct > 0 => format!("; direct in {direct} of {} programs", direct + monitor),
            _ => String::new(),
        };
        let summary = Summary::new(&self.shared.get().stats().snapshot(), self.shared.get().devices());
        match form {
            Form::Text => format!(
                "{}\n  {:<14} {}\n  {:<14} {mode}: {reason}{others}",
                summary.text(memory_bytes, wall),
                "not managed",
                outside.text(),
                "fault mode"
            ),
            Form::Json => {
                let mut json = summary.json(memory_bytes, wall);
                json["outside"] = outside.json(memory_bytes);
                json["fault_mode"] = json!({
                    "mode": mode.to_string(), "reason": reason, "programs": { "direct": direct, "monitor": monitor },
                });
                json.to_string()
            }
        }
    }

    /// Memory that was not managed, once the program has ended. `obstacle` is why its executable is not managed.
    pub fn outside(&self, swap: &[SwapDevice], obstacle: Option<&'static str>) -> Outside {
        Outside::of_run(self.shared.get(), swap, obstacle)
    }
}

/// Times of one kind of fault, or of one phase of faults.
struct Times {
    count: u64,
    /// p50, p90, p99, p99.9 and the maximum.
    ns: [u64; 5],
    shares: [f64; 4],
}

/// JSON keys of [`Times::ns`].
const QUANTILE_KEYS: [&str; 5] = ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"];
/// JSON keys of [`Times::shares`].
const SHARE_KEYS: [&str; 4] = ["share_below_20us", "share_to_100us", "share_to_500us", "share_over_500us"];

impl Times {
    fn new(histogram: &HistogramSnapshot) -> Times {
        let quantiles = [0.5, 0.9, 0.99, 0.999].map(|q| histogram.quantile(q));
        let [p50, p90, p99, p999] = quantiles;
        Times { count: histogram.count(), ns: [p50, p90, p99, p999, histogram.max()], shares: histogram.shares() }
    }

    fn text(&self) -> String {
        let times = self.ns.map(|ns| format!("{:>10}", show_ns(ns))).join(" ");
        let shares = self.shares.map(|share| format!("{:>8.3}", share * 100.0)).join(" ");
        format!("{:>10} {times} {shares}", self.count)
    }

    fn json(&self) -> Value {
        let mut object = Map::from_iter([("count".to_owned(), json!(self.count))]);
        object.extend(QUANTILE_KEYS.into_iter().zip(self.ns).map(|(key, ns)| (key.to_owned(), json!(ns))));
        let shares = SHARE_KEYS.into_iter().zip(self.shares);
        object.extend(shares.map(|(key, share)| (key.to_owned(), json!(share))));
        object.into()
    }
}

/// The times as a JSON object, by name.
fn to_json(times: &[(&'static str, Times)]) -> Value {
    times.iter().map(|(name, times)| ((*name).to_owned(), times.json())).collect::<Map<_, _>>().into()
}

/// The figures of a run.
struct Summary {
    counters: Vec<(&'static str, u64)>,
    /// Indexed by order.
    by_order: Vec<(&'static str, [u64; NR_ORDERS])>,
    resident_bytes: u64,
    peak_resident_bytes: u64,
    huge_resident_bytes: u64,
    peak_huge_bytes: u64,
    faults: Vec<(&'static str, Times)>,
    /// Times of swap-ins, indexed by order.
    swap_ins: Vec<Times>,
    /// Phases of one fault in [`PHASES_OF_ONE_IN`].
    phases: Vec<(&'static str, Times)>,
    /// Faults over 100 us by their longest phase. The last entry counts those whose longest phase is unknown.
    slow: Vec<(&'static str, u64)>,
    /// Swap devices by name.
    devices: Vec<(String, DeviceIo)>,
}

impl Summary {
    fn new(stats: &StatsSnapshot, devices: Vec<(String, DeviceIo)>) -> Summary {
        let slow_in = |phase| FaultKind::ALL.into_iter().map(|kind| stats.slow(kind, phase)).sum();
        let slow_unknown = ("unknown", FaultKind::ALL.into_iter().map(|kind| stats.slow_unknown(kind)).sum());
        // Linux's names for pages read and written. They are computed from the bytes, so that both always agree.
        let derived = [("pswpin", stats.pswpin()), ("pswpout", stats.pswpout()), ("stalled_ns", stats.stalled_ns())];
        Summary {
            counters: stats.counters().chain(derived).collect(),
            by_order: stats.by_order().collect(),
            resident_bytes: stats.resident_bytes.now,
            peak_resident_bytes: stats.resident_bytes.peak,
            huge_resident_bytes: stats.huge_resident_bytes.now,
            peak_huge_bytes: stats.huge_resident_bytes.peak,
            faults: FaultKind::ALL.map(|kind| (kind.name(), Times::new(stats.fault(kind)))).into(),
            swap_ins: stats.swap_ins.iter().map(Times::new).collect(),
            phases: Phase::ALL.map(|phase| (phase.name(), Times::new(stats.phase(phase)))).into(),
            slow: Phase::ALL.map(|phase| (phase.name(), slow_in(phase))).into_iter().chain([slow_unknown]).collect(),
            devices,
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
    }

    /// None if nothing is resident, or if the program ended before its huge pages were counted. The two are counted one
    /// after the other.
    fn huge_share(&self) -> Option<f64> {
        (self.resident_bytes > 0 && self.peak_huge_bytes > 0)
            .then(|| (self.huge_resident_bytes as f64 / self.resident_bytes as f64).min(1.0))
    }

    fn text(&self, memory_bytes: u64, wall: Duration) -> String {
        let mut text = String::from("folioswap:\n");
        let mut line = |name: &str, rest: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<14} {rest}");
        };
        for (name, folios, pages) in
            [("swapped in", "swapped_in_folios", "pswpin"), ("swapped out", "swapped_out_folios", "pswpout")]
        {
            let pages = self.counter(pages);
            line(name, format!("{} folios, {pages} pages, {}", self.counter(folios), Bytes(pages * PAGE_SIZE as u64)));
        }
        line("not written", {
            let (zero, clean) = (self.counter("zero_folios_dropped"), self.counter("clean_folios_dropped"));
            format!("{zero} folios all zero, {clean} unchanged")
        });
        for (name, numbers) in &self.by_order {
            if let Some(text) = show_by_order(numbers) {
                line(name, text);
            }
        }
        let times = ["p50", "p90", "p99", "p99.9", "max"].map(|name| format!("{name:>10}")).join(" ");
        let head = format!("{:>10} {times} {:>8} {:>8} {:>8} {:>8}", "count", "<20us %", "-100 %", "-500 %", "above %");
        line("faults", head.clone());
        for (name, faults) in &self.faults {
            line(&format!("  {}", name.replace('_', " ")), faults.text());
            if *name == FaultKind::SwapIn.name() {
                let orders = (0..=MAX_ORDER).filter_map(Order::new).zip(&self.swap_ins);
                for (order, times) in orders.filter(|(_, times)| times.count > 0) {
                    line(&format!("    of {order}"), times.text());
                }
            }
        }
        line("phases", format!("{head}  (of one fault in {PHASES_OF_ONE_IN})"));
        for (name, times) in self.phases.iter().filter(|(_, times)| times.count > 0) {
            line(&format!("  {name}"), times.text());
        }
        let slow: Vec<_> = self.slow.iter().filter(|(_, count)| *count > 0).collect();
        if !slow.is_empty() {
            let counts: Vec<_> = slow.iter().map(|(name, count)| format!("{count} {name}")).collect();
            line("over 100 us", format!("{} (the longest phase of each)", counts.join(", ")));
        }
        let share = self.huge_share().map_or("not measured".into(), |share| format!("{:.1} %", share * 100.0));
        line("huge pages", share);
        line("peak resident", format!("{} of {}", Bytes(self.peak_resident_bytes), Bytes(memory_bytes)));
        let stalled = self.counter("stalled_ns") as f64 / 1e9;
        line("stalled", format!("{stalled:.3} s, all threads together, in {:.3} s", wall.as_secs_f64()));
        for (name, io) in &self.devices {
            device_text(name, io).into_iter().for_each(|(name, rest)| line(&name, rest));
        }
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
        for (name, numbers) in &self.by_order {
            object.insert((*name).to_owned(), json!(numbers));
        }
        object.insert("faults".into(), to_json(&self.faults));
        object.insert("swap_in_by_order".into(), self.swap_ins.iter().map(Times::json).collect());
        object.insert("phases".into(), to_json(&self.phases));
        object.insert("phases_of_one_fault_in".into(), json!(PHASES_OF_ONE_IN));
        let slow = self.slow.iter().map(|(name, count)| ((*name).to_owned(), json!(count)));
        object.insert("over_100us_by_phase".into(), slow.collect::<Map<_, _>>().into());
        object.insert("devices".into(), self.devices.iter().map(|(name, io)| device_json(name, io)).collect());
        object.insert("huge_share".into(), json!(self.huge_share()));
        object.insert("resident_bytes".into(), json!(self.resident_bytes));
        object.insert("peak_resident_bytes".into(), json!(self.peak_resident_bytes));
        object.insert("memory_bytes".into(), json!(memory_bytes));
        object.insert("seconds".into(), json!(wall.as_secs_f64()));
        object.into()
    }
}

/// A line with what a device transferred, and if known a line with its latencies.
fn device_text(name: &str, io: &DeviceIo) -> Vec<(String, String)> {
    let moved = |transfers: &DeviceTransfers| format!("{} in {}", Bytes(transfers.bytes), transfers.calls);
    let (used, read, written) = (Bytes(io.peak_used_bytes), moved(&io.reads), moved(&io.writes));
    let memory = match io.peak_memory_bytes {
        0 => String::new(),
        bytes => format!(" in {} of memory", Bytes(bytes)),
    };
    let mut lines =
        vec![("swap".into(), format!("{name}: {used} used at most{memory}, read {read}, written {written}"))];
    if io.most_in_flight > 0 {
        let times = |transfers: &DeviceTransfers| {
            let [p50, p99] = [0.5, 0.99].map(|q| show_ns(transfers.latency.quantile(q)));
            format!("p50 {p50} p99 {p99}")
        };
        let (mean, most) = (io.mean_in_flight(), io.most_in_flight);
        let times = format!("reads {}, writes {}", times(&io.reads), times(&io.writes));
        lines.push((String::new(), format!("{times}; {mean:.1} in flight, {most} at most")));
    }
    let errors =
        [(io.read_errors, "when read"), (io.write_errors, "when written"), (io.wrong_bytes, "with wrong bytes")];
    let errors: Vec<_> = errors.iter().filter(|error| error.0 > 0).map(|(nr, what)| format!("{nr} {what}")).collect();
    if !errors.is_empty() {
        lines.push((String::new(), format!("failures: {}", errors.join(", "))));
    }
    lines
}

fn device_json(name: &str, io: &DeviceIo) -> Value {
    let transfers = |transfers: &DeviceTransfers| {
        let mut object = Times::new(&transfers.latency).json();
        object["calls"] = json!(transfers.calls);
        object["bytes"] = json!(transfers.bytes);
        object
    };
    json!({
        "name": name,
        "peak_used_bytes": io.peak_used_bytes,
        "reads": transfers(&io.reads),
        "writes": transfers(&io.writes),
        "mean_in_flight": io.mean_in_flight(),
        "most_in_flight": io.most_in_flight,
        "peak_memory_bytes": io.peak_memory_bytes,
        "read_errors": io.read_errors,
        "write_errors": io.write_errors,
        "wrong_bytes": io.wrong_bytes,
    })
}

/// The nonzero orders, as in `12 of 2M, 3 of 64K`. None if all are zero.
fn show_by_order(numbers: &[u64; NR_ORDERS]) -> Option<String> {
    let shown = (0..=MAX_ORDER).zip(*numbers).rev().filter(|(_, number)| *number > 0);
    let shown: Vec<String> = shown.filter_map(|(k, number)| Some(format!("{number} of {}", Order::new(k)?))).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
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
    use folioswap::Stats;
    use folioswap_core::{DeviceFailure, DeviceRecord, Direction, FaultTimes};

    #[test]
    fn a_defect_in_any_process_is_the_status_of_the_run() {
        let counters = Counters::create().expect("a memfd");
        assert_eq!(counters.end(End::Signal(3)), End::Signal(3));
        counters.shared.get().count_defect();
        assert_eq!([End::Status(0), End::Signal(3)].map(|end| counters.end(end)), [End::Status(76); 2]);
    }

    #[test]
    fn a_new_one_is_empty_and_is_found() {
        let counters = Counters::create().expect("a memfd");
        assert_eq!(folioswap::open_shared_stats(counters.place()).expect("our own").defects(), 0);
        let faults = FaultChoice { mode: FaultMode::Direct, reason: "it is".into() };
        let describe =
            |form| counters.describe(form, 1 << 29, Duration::from_secs(1), &counters.outside(&[], None), &faults);
        assert!(describe(Form::Text).ends_with("\n  fault mode     direct: it is"));
        let json = describe(Form::Json);
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["swapped_in_folios"], &json["pswpin"]), (&json!(0), &json!(0)));
        assert_eq!((&json["thp_swpout"], &json["swpout"]), (&json!(0), &json!(vec![0; NR_ORDERS])));
        assert_eq!(json["faults"]["swap_in"]["count"], 0);
        assert_eq!((&json["huge_share"], &json["devices"]), (&Value::Null, &json!([])));
        assert_eq!(json["memory_bytes"], 1 << 29);
        assert_eq!(
            json["fault_mode"],
            json!({ "mode": "direct", "reason": "it is", "programs": { "direct": 0, "monitor": 0 } })
        );
    }

    #[test]
    fn the_summary_says_what_was_counted() {
        static STATS: Stats = Stats::new();
        let stats = &STATS;
        stats.swapped_out_folios.add(7);
        stats.swapped_out_bytes.add(7 << 21);
        stats.swpout.add(Order::HUGE, 7);
        stats.swpout.add(Order::PAGE, 1);
        stats.resident_bytes.set(300);
        stats.resident_bytes.set(100);
        stats.huge_resident_bytes.set(50);
        for (count, read_ns) in [(98, 4_000), (2, 1_999_000)] {
            let mut times = FaultTimes::new(true);
            times.add(Phase::Frame, 1_000);
            times.add(Phase::Read, read_ns);
            (0..count).for_each(|_| stats.record_fault(FaultKind::SwapIn, Order::HUGE, 1, &times));
        }
        let mut times = FaultTimes::new(false);
        times.add_uncut(200_000);
        stats.record_fault(FaultKind::Standby, Order::HUGE, 1, &times);
        let record = DeviceRecord::new();
        record.begin(3);
        record.record(Direction::Read, 90_000);
        let _ = record.count(Direction::Read, 4 << 20);
        record.record_used(8 << 20);
        record.record_memory(3 << 20);
        record.failed(DeviceFailure::Read);
        let devices = vec![("/swap/a".into(), record.snapshot()), ("ram:2M".into(), DeviceIo::default())];
        let summary = Summary::new(&stats.snapshot(), devices);
        assert_eq!(summary.counter("swapped_out_folios"), 7);
        assert_eq!((summary.resident_bytes, summary.peak_resident_bytes), (100, 300));
        assert_eq!(summary.huge_share(), Some(0.5));
        let (name, faults) = &summary.faults[FaultKind::SwapIn.index()];
        assert_eq!((*name, faults.count), ("swap_in", 100));
        let [p50, p90, p99, p999, max] = faults.ns;
        assert!((5_000..6_000).contains(&p50) && p50 == p90);
        assert_eq!((p99, p999, max, faults.shares), (2_000_000, 2_000_000, 2_000_000, [0.98, 0.0, 0.0, 0.02]));
        let json = summary.json(512, Duration::ZERO);
        assert_eq!(json["swap_in_by_order"][9], json["faults"]["swap_in"]);
        assert_eq!(json["swap_in_by_order"][0]["count"], 0);
        assert_eq!(
            (&json["phases"]["read"]["max_ns"], &json["phases"]["free"]["count"]),
            (&json!(1_999_000), &json!(0))
        );
        assert_eq!((&json["over_100us_by_phase"]["read"], &json["stalled_ns"]), (&json!(2), &json!(4_690_000)));
        assert_eq!((&json["devices"][0]["name"], &json["devices"][1]["name"]), (&json!("/swap/a"), &json!("ram:2M")));
        let reads = &json["devices"][0]["reads"];
        assert_eq!((&reads["bytes"], &reads["max_ns"], &reads["calls"]), (&json!(4 << 20), &json!(90_000), &json!(1)));
        let text = summary.text(512, Duration::ZERO);
        assert!(
            text.lines().any(|line| line.trim_start().starts_with("of 2M  "))
                && text.contains("over 100 us    2 read, 1 unknown (")
                && text.contains("(of one fault in 16)")
                && text.contains("7 folios, 3584 pages, 14M")
                && text.contains("7 of 2M, 1 of 4K")
                && text.contains("50.0 %")
                && text.contains("/swap/a: 8M used at most in 3M of memory, read 4M in 1, written 0 in 0\n")
                && text.contains("reads p50 90.0 us p99 90.0 us, writes p50 - p99 -; 3.0 in flight, 3 at most\n")
                && text.contains("failures: 1 when read\n")
                && text.contains("ram:2M: 0 used at most, read 0 in 0, written 0 in 0"),
            "{text}"
        );
    }
}
