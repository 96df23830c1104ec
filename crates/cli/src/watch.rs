//! Watches the processes of a run, and says so when one has more memory in RAM than it should: what is not managed is
//! not held to the budget, and the machine may run short long before the program ends.

use crate::{outside, program};
use folioswap::{Bytes, SharedCounters};
use folioswap_sys::resident::Unseen;
use folioswap_sys::said;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When the processes are looked at first, and how often afterwards.
const FIRST: Duration = Duration::from_millis(250);
const EVERY: Duration = Duration::from_secs(1);

/// The pause is at least this many times as long as a look, which takes long where there are many processes.
const PART: u32 = 200;

/// Beside the budget: code, and what the engine itself takes.
const BESIDE: u64 = 64 << 20;

/// Part of the library's name in a list of mappings.
const LIBRARY: &str = "libfolioswap_preload";

/// Watches until it is dropped.
pub struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a process of a run may have in RAM.
#[derive(Copy, Clone)]
pub struct Allowed {
    /// The budget.
    pub memory_bytes: u64,
    /// The size of swap devices in RAM, which each process may fill.
    pub in_ram_bytes: u64,
}

impl Allowed {
    /// How much of a process is certainly not managed, if that is more than can be passed over. `managed_bytes` is an
    /// upper limit of what is.
    fn excess(self, process: &Process, managed_bytes: u64) -> Option<u64> {
        let managed_bytes = managed_bytes.min(self.memory_bytes) + self.in_ram_bytes;
        let outside = process.in_ram.saturating_sub(if process.has_library { managed_bytes } else { 0 });
        let most = self.memory_bytes + self.memory_bytes / 10 + self.in_ram_bytes + BESIDE;
        (outside > self.memory_bytes + outside::LITTLE || process.in_ram > most).then_some(outside)
    }
}

impl Watch {
    /// Watches the descendants of this process, which count in `counters` what is managed.
    pub fn start(allowed: Allowed, counters: Option<&'static SharedCounters>, say: fn(&str)) -> Watch {
        let (end, ended) = channel();
        let thread =
            std::thread::Builder::new().name("watch".into()).spawn(move || run(&ended, allowed, counters, say));
        Watch { end: Some(end), thread: thread.ok() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(ended: &Receiver<()>, allowed: Allowed, counters: Option<&SharedCounters>, say: fn(&str)) {
    let mut pause = FIRST;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let begin = Instant::now();
        if let Some(line) = descendants().into_iter().find_map(|pid| note(pid, allowed, counters)) {
            say(&line);
            return; // said once
        }
        pause = EVERY.max(begin.elapsed() * PART);
    }
}

/// What to say of a process that has too much in RAM.
fn note(pid: u32, allowed: Allowed, counters: Option<&SharedCounters>) -> Option<String> {
    let process = Process::of(pid, allowed.memory_bytes)?;
    // Read after the process's memory, and the highest value: what has just left RAM does not look unmanaged.
    let managed = counters.map_or(u64::MAX, |counters| counters.stats().snapshot().resident_bytes.peak);
    let outside = allowed.excess(&process, managed)?;
    if counters.is_some_and(|counters| counters.unpaged().any(|unpaged| unpaged == pid)) {
        return None; // it has said why itself
    }
    let (why, help) = process.reason(pid, outside);
    Some(format!(
        "folioswap: note: process {pid} ({}) has {} in RAM, at least {} of it not managed, beside a budget of {}: \
         {why}; {help}",
        process.name,
        Bytes(process.in_ram),
        Bytes(outside),
        Bytes(allowed.memory_bytes),
    ))
}

/// All processes that this one has started, and those that they have started.
fn descendants() -> Vec<u32> {
    if fs::read_link("/proc/self").ok() != Some(std::process::id().to_string().into()) {
        return Vec::new(); // the processes of another PID namespace
    }
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let parent = pid.and_then(|pid| parent_in(&said::read(format!("/proc/{pid}/stat")).ok()?));
        if let (Some(pid), Some(parent)) = (pid, parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![std::process::id()];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children.remove(&pid).into_iter().flatten());
        next += 1;
    }
    found.split_off(1)
}

/// The parent in a line of `/proc/PID/stat`. The name before it may hold anything.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

struct Process {
    name: String,
    /// Bytes of anonymous and shared memory.
    in_ram: u64,
    /// Those of shared memory.
    shared: u64,
    has_library: bool,
}

impl Process {
    /// A process that has more than `least_bytes` in RAM. Of others the mappings are not read, which takes longer.
    fn of(pid: u32, least_bytes: u64) -> Option<Process> {
        let status = said::read(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let bytes = |name| Some(field(name)?.split_whitespace().next()?.parse::<u64>().ok()? << 10);
        let (anonymous, shared) = (bytes("RssAnon:")?, bytes("RssShmem:")?);
        let in_ram = anonymous + shared;
        if in_ram <= least_bytes {
            return None;
        }
        let has_library = said::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(LIBRARY));
        Some(Process { name: field("Name:")?.trim().to_owned(), in_ram, shared, has_library })
    }

    /// Why `outside_bytes` are not managed, and what would help.
    fn reason(&self, pid: u32, outside_bytes: u64) -> (&'static str, &'static str) {
        if let Some(obstacle) = program::obstacle(Path::new(&format!("/proc/{pid}/exe"))) {
            return (obstacle, outside::MANAGED_KIND); // it may have the library in what it emulates
        }
        let lacks_preload = || fs::read(format!("/proc/{pid}/environ")).is_ok_and(|texts| !names_library(&texts));
        if self.has_library {
            outside::reason(outside_bytes, self.shared, Unseen::of(&pid.to_string()).unwrap_or_default())
        } else if lacks_preload() {
            (
                "it was started without LD_PRELOAD in its environment",
                "start it with LD_PRELOAD and FOLIOSWAP_RUN as they were",
            )
        } else {
            ("it is linked statically or without glibc, set-user-ID, or built with a sanitizer", outside::MANAGED_KIND)
        }
    }
}

/// Whether a process's environment names the library.
fn names_library(texts: &[u8]) -> bool {
    texts.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn children_of_children_are_found_and_measured() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'echo $$; read x' ; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let found = descendants();
        assert!(found.contains(&child.id()) && found.contains(&grandchild), "{found:?}");
        assert!(Process::of(grandchild, 1 << 30).is_none());
        let process = Process::of(grandchild, 0).unwrap();
        assert!(process.in_ram > 0 && process.shared <= process.in_ram && !process.has_library);
        assert_eq!(process.name, "sh");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_with_a_list_of_variables_of_its_own_is_told_from_others() {
        let why = |preload: Option<&str>| {
            let mut command = Command::new("cat");
            command.env_clear().envs(preload.map(|library| ("LD_PRELOAD", library)));
            let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let process = Process { name: String::new(), in_ram: 0, shared: 0, has_library: false };
            let (why, _) = process.reason(child.id(), 1);
            drop(child.stdin.take());
            child.wait().unwrap();
            why
        };
        assert!(why(None).contains("LD_PRELOAD"));
        assert!(why(Some("/nowhere/libfolioswap_preload.so")).contains("sanitizer"));
    }

    #[test]
    fn what_fits_is_passed_over_and_what_cannot_be_managed_is_not() {
        const MIB: u64 = 1 << 20;
        let excess = |memory: u64, in_ram: u64, managed: u64, has_library| {
            let allowed = Allowed { memory_bytes: memory * MIB, in_ram_bytes: 8 * MIB };
            let process = Process { name: String::new(), in_ram: in_ram * MIB, shared: 0, has_library };
            allowed.excess(&process, managed * MIB).map(|bytes| bytes / MIB)
        };
        assert_eq!(excess(32, 56, 0, true), None, "a little beside the budget");
        assert_eq!(excess(32, 57, 0, true), Some(49));
        assert_eq!(excess(32, 49, 0, false), Some(49), "neither budget nor devices serve it");
        assert_eq!(excess(32, 88, 32, true), None);
        assert_eq!(excess(32, 89, 900, true), Some(49), "no process has more than the budget managed");
        assert_eq!(excess(1000, 1172, 1000, true), None);
        assert_eq!(excess(1000, 1173, 1000, true), Some(165), "far beyond the budget");
        assert_eq!(excess(1000, 1000, 0, true), None, "what the budget would hold");
    }

    #[test]
    fn names_do_not_mislead() {
        assert_eq!(parent_in("7 (a) S 1 b) R 5 7 7 0"), Some(5));
        assert_eq!(parent_in(""), None);
    }
}
