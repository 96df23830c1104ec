//! RAM that the processes of a run had outside managed memory, and the warning if it was much.
//!
//! A process that ends itself records its own figures. For all others (statically linked, set-user-ID, killed) the
//! kernel only reports the peak of the largest one, managed or not. Only what certainly was not managed is counted.

use folioswap::{Bytes, DeviceSpec, SharedCounters, SwapDevice};
use folioswap_core::ProcessMemory;
use folioswap_sys::resident::{self, Unseen};
use serde_json::{Value, json};

/// No warning up to this size, however small the budget: code and the engine's own data take that much.
pub const LITTLE: u64 = 16 << 20;

/// If the kernel's peak exceeds every recorded process by more than this, it belongs to a process that was not
/// recorded.
const SAME: u64 = 4 << 20;

/// Memory that was not managed.
pub struct Outside {
    processes: Vec<ProcessMemory>,
    /// Lower bound for unmanaged memory of a process that was not recorded.
    unnoted: u64,
    /// The peak of the largest process.
    largest: u64,
    /// Why the program's own executable is not managed, if it is not.
    obstacle: Option<&'static str>,
    /// A process has said why its memory is not paged.
    has_said: bool,
}

/// The size of the devices that are in RAM.
pub fn in_ram(swap: &[SwapDevice]) -> u64 {
    let sizes = swap.iter().map(|device| match device.spec {
        DeviceSpec::Ram { size } | DeviceSpec::Zram { size, .. } => size,
        DeviceSpec::File { .. } => 0,
    });
    sizes.sum()
}

impl Outside {
    /// Covers all processes of a run with these swap devices, after the run has ended.
    pub fn of_run(counters: &SharedCounters, swap: &[SwapDevice], obstacle: Option<&'static str>) -> Outside {
        let managed = counters.stats().resident_bytes.peak() + in_ram(swap);
        let has_said = counters.unpaged().next().is_some();
        let found = Outside::new(counters.ended(), resident::peak(true), resident::peak(false), managed, obstacle);
        Outside { has_said, ..found }
    }

    /// `largest` is the peak of the largest process. `own` is the peak of this command, which every process of the
    /// run starts as.
    fn new(
        processes: Vec<ProcessMemory>,
        largest: u64,
        own: u64,
        managed: u64,
        obstacle: Option<&'static str>,
    ) -> Outside {
        let known = processes.iter().map(|process| process.peak).fold(own, u64::max);
        let unnoted = if largest > known + SAME { largest - managed.min(largest) } else { 0 };
        Outside { processes, unnoted, largest, obstacle, has_said: false }
    }

    /// The recorded process with the most unmanaged memory.
    fn worst(&self) -> Option<&ProcessMemory> {
        self.processes.iter().max_by_key(|process| process.outside)
    }

    /// A one-line warning if a process had more than a tenth of the budget unmanaged, and more than the budget in RAM.
    pub fn complaint(&self, memory_bytes: u64) -> Option<String> {
        let most = (memory_bytes / 10).max(LITTLE);
        let worst =
            self.worst().filter(|process| process.outside > most.max(self.unnoted) && process.peak > memory_bytes);
        if let Some(process) = worst {
            // Of a recorded process the engine's records do not count.
            let unseen = Unseen { of_files: process.of_files, of_threads: process.of_threads, of_records: 0 };
            let (why, help) = reason(process.outside, process.shared, unseen);
            let (outside, name) = (Bytes(process.outside), name_of(process));
            return Some(format!(
                "{outside} of process {} ({name}) were not managed, beside a budget of {}: {why}; {help}",
                process.pid,
                Bytes(memory_bytes)
            ));
        }
        if self.unnoted <= most || self.largest <= memory_bytes {
            return None;
        }
        let (unnoted, budget) = (Bytes(self.unnoted), Bytes(memory_bytes));
        Some(match self.obstacle {
            _ if self.has_said => {
                format!("{unnoted} of a process were not managed, beside a budget of {budget}: a note above says why")
            }
            Some(why) => {
                format!("{unnoted} of a process were not managed, beside a budget of {budget}: {why}; {MANAGED_KIND}")
            }
            None => format!(
                "{unnoted} of a process may not have been managed, beside a budget of {budget}: ended by a signal, in \
                 another network namespace, started without LD_PRELOAD in its environment, linked statically or without \
                 glibc, set-user-ID, or built with a sanitizer"
            ),
        })
    }

    /// The value of the `not managed` line of `--stats`.
    pub fn text(&self) -> String {
        let worst = self.worst().map_or_else(
            || "no process was noted".to_owned(),
            |process| format!("{} of {} in process {}", Bytes(process.outside), Bytes(process.peak), name_of(process)),
        );
        match self.unnoted {
            0 => worst,
            unnoted => format!("{worst}; {} of one that was not noted", Bytes(unnoted)),
        }
    }

    pub fn json(&self, memory_bytes: u64) -> Value {
        let process = |process: &ProcessMemory| {
            json!({
                "pid": process.pid,
                "name": name_of(process),
                "peak_resident_bytes": process.peak,
                "managed_bytes": process.managed,
                "shared_bytes": process.shared,
                "file_data_bytes": process.of_files,
                "thread_bytes": process.of_threads,
                "outside_bytes": process.outside,
            })
        };
        json!({
            "processes": self.processes.iter().map(process).collect::<Vec<_>>(),
            "unnoted_bytes": self.unnoted,
            "complaint": self.complaint(memory_bytes),
        })
    }
}

fn name_of(process: &ProcessMemory) -> String {
    let len = process.name.iter().position(|byte| *byte == 0).unwrap_or(process.name.len());
    String::from_utf8_lossy(&process.name[..len]).into_owned()
}

/// What would help a program into which the library is not loaded.
pub const MANAGED_KIND: &str =
    "a program that is linked dynamically with glibc, and runs with its user's own rights, is managed";

/// Why `outside_bytes` of a process that has the library are not managed, and what would help. `shared_bytes` of them
/// are shared memory.
pub fn reason(outside_bytes: u64, shared_bytes: u64, unseen: Unseen) -> (&'static str, &'static str) {
    if shared_bytes > outside_bytes / 2 {
        ("it is shared memory", "make it smaller, or leave room for it beside --memory")
    } else if unseen.of_files > outside_bytes / 2 {
        (
            "it is data of its executable and libraries, or of files that it has mapped privately",
            "leave room for it beside --memory",
        )
    } else if unseen.of_threads > outside_bytes / 2 {
        ("it is stacks and thread-local data of threads", "leave room for it beside --memory")
    } else if unseen.of_records > outside_bytes / 2 {
        (
            "it is folioswap's records of what was swapped out in pages",
            "leave room for it beside --memory (`folioswap doctor` says how much), or give a larger --folio",
        )
    } else {
        (
            "the program mapped it by a way that is not seen, or gave it to KVM or a userfaultfd",
            "leave room for it beside --memory, or set the program's own allocator to malloc",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn process(peak: u64, managed: u64) -> ProcessMemory {
        let (peak, managed) = (peak * MIB, managed * MIB);
        ProcessMemory { pid: 7, peak, managed, outside: peak - managed, ..ProcessMemory::default() }
    }

    #[test]
    fn more_than_a_tenth_is_said_with_its_reason() {
        let line = |processes: &[ProcessMemory], largest: u64, managed: u64| {
            let outside = Outside::new(processes.to_vec(), largest * MIB, 10 * MIB, managed * MIB, None);
            outside.complaint(400 * MIB).unwrap_or_default()
        };
        assert_eq!(line(&[], 12, 0), "", "the command itself");
        assert_eq!(line(&[process(430, 390)], 433, 390), "");
        assert!(line(&[process(100, 10), process(500, 390)], 500, 390).starts_with("110M of process 7"));
        let shared = ProcessMemory { shared: 80 * MIB, ..process(500, 410) };
        assert!(line(&[shared], 500, 410).contains("shared memory"));
        let data = ProcessMemory { of_files: 60 * MIB, ..process(500, 410) };
        assert!(line(&[data], 500, 410).contains("executable and libraries"));
        let stacks = ProcessMemory { of_threads: 60 * MIB, ..process(500, 410) };
        assert!(line(&[stacks], 500, 410).contains("stacks"));
        assert!(line(&[process(20, 10)], 500, 10).starts_with("490M of a process may not have been managed"));
        assert_eq!(line(&[process(390, 10)], 395, 10), "", "it fits into the budget");
        // The peak of a killed process includes its managed memory.
        assert_eq!(line(&[process(20, 10)], 400, 390), "");
        let small = Outside::new(vec![process(25, 10)], 0, 0, 0, None);
        assert_eq!(small.complaint(16 * MIB), None, "code and the engine's own are not spoken of");
    }
}
