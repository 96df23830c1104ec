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

/// Watches until it is dropped.
pub struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub struct Watched {
    /// What each process may have in RAM.
    pub allowed: Allowed,
    library: Library,
    /// When the program was started, as in `/proc/PID/stat`: what this process has started before is not of the run.
    begun: u64,
}

/// The preload library's file name in a list of mappings, and in the environment.
struct Library {
    mapped: String,
    named: String,
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
        let outside = process.in_ram.saturating_sub(if process.has_library == Some(false) { 0 } else { managed_bytes });
        let most = self.memory_bytes + self.memory_bytes / 10 + self.in_ram_bytes + BESIDE;
        (outside > self.memory_bytes + outside::LITTLE || process.in_ram > most).then_some(outside)
    }
}

impl Watched {
    /// The process `program` of this one's, and its descendants, into which `library` is loaded.
    pub fn new(program: u32, library: &Path, allowed: Allowed) -> Watched {
        let begun = said::read(format!("/proc/{program}/stat")).ok().and_then(|stat| parent_in(&stat));
        Watched { allowed, library: Library::new(library), begun: begun.map_or(0, |(_, begun)| begun) }
    }
}

impl Library {
    fn new(path: &Path) -> Library {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Library { mapped: name(&fs::canonicalize(path).unwrap_or_else(|_| path.into())), named: name(path) }
    }
}

impl Watch {
    /// Watches processes that count in `counters` what is managed.
    pub fn start(watched: Watched, counters: Option<&'static SharedCounters>, say: fn(&str)) -> Watch {
        let (end, ended) = channel();
        let thread =
            std::thread::Builder::new().name("watch".into()).spawn(move || run(&ended, &watched, counters, say));
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

fn run(ended: &Receiver<()>, watched: &Watched, counters: Option<&SharedCounters>, say: fn(&str)) {
    let mut pause = FIRST;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let begin = Instant::now();
        if let Some(line) = descendants(watched.begun).into_iter().find_map(|pid| note(pid, watched, counters)) {
            say(&line);
            return; // said once
        }
        pause = EVERY.max(begin.elapsed() * PART);
    }
}

/// What to say of a process that has too much in RAM.
fn note(pid: u32, watched: &Watched, counters: Option<&SharedCounters>) -> Option<String> {
    let Watched { allowed, library, .. } = watched;
    let process = Process::of(pid, allowed.memory_bytes, library)?;
    // Read after the process's memory, and the highest value: what has just left RAM does not look unmanaged.
    let managed = counters.map_or(u64::MAX, |counters| counters.stats().snapshot().resident_bytes.peak);
    let outside = allowed.excess(&process, managed)?;
    if counters.is_some_and(|counters| counters.unpaged().any(|unpaged| unpaged == pid)) {
        return None; // it has said why itself
    }
    let (why, help) = process.reason(pid, outside, library);
    Some(format!(
        "folioswap: note: process {pid} ({}) has {} in RAM, at least {} of it not managed, beside a budget of {}: \
         {why}; {help}",
        process.name,
        Bytes(process.in_ram),
        Bytes(outside),
        Bytes(allowed.memory_bytes),
    ))
}

/// All processes that this one has started since then, and those that they have started.
fn descendants(since: u64) -> Vec<u32> {
    if fs::read_link("/proc/self").ok() != Some(std::process::id().to_string().into()) {
        return Vec::new(); // the processes of another PID namespace
    }
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let parent = pid.and_then(|pid| parent_in(&said::read(format!("/proc/{pid}/stat")).ok()?));
        if let (Some(pid), Some((parent, begun))) = (pid, parent)
            && (parent != std::process::id() || begun >= since)
        {
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

/// The parent in a line of `/proc/PID/stat`, and when the process was started. The name before them may hold anything.
fn parent_in(stat: &str) -> Option<(u32, u64)> {
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    Some((words.nth(1)?.parse().ok()?, words.nth(17)?.parse().ok()?))
}

struct Process {
    name: String,
    /// Bytes of anonymous and shared memory.
    in_ram: u64,
    /// Those of shared memory.
    shared: u64,
    /// `None`: this user may not look.
    has_library: Option<bool>,
}

impl Process {
    /// A process that has more than `least_bytes` in RAM. Of others the mappings are not read, which takes longer.
    fn of(pid: u32, least_bytes: u64, library: &Library) -> Option<Process> {
        Process::in_ram_of(pid, least_bytes)?;
        let maps = said::read(format!("/proc/{pid}/maps")).ok();
        // The process may have ended meanwhile, or executed another program, which has less in RAM yet.
        let (name, in_ram, shared) = Process::in_ram_of(pid, least_bytes)?;
        Some(Process { name, in_ram, shared, has_library: maps.map(|maps| maps.contains(&library.mapped)) })
    }

    /// Its name, and the bytes that it has in RAM, in all and of shared memory, if they are more than `least_bytes`.
    fn in_ram_of(pid: u32, least_bytes: u64) -> Option<(String, u64, u64)> {
        let status = said::read(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let bytes = |name| Some(field(name)?.split_whitespace().next()?.parse::<u64>().ok()? << 10);
        let (anonymous, shared) = (bytes("RssAnon:")?, bytes("RssShmem:")?);
        let in_ram = anonymous + shared;
        (in_ram > least_bytes).then(|| Some((field("Name:")?.trim().to_owned(), in_ram, shared)))?
    }

    /// Why `outside_bytes` are not managed, and what would help.
    fn reason(&self, pid: u32, outside_bytes: u64, library: &Library) -> (&'static str, &'static str) {
        if let Some(obstacle) = program::obstacle(Path::new(&format!("/proc/{pid}/exe"))) {
            return (obstacle, outside::MANAGED_KIND); // it may have the library in what it emulates
        }
        let lacks_preload = || fs::read(format!("/proc/{pid}/environ")).is_ok_and(|texts| !has(&texts, &library.named));
        if self.has_library == Some(true) {
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
fn has(texts: &[u8], name: &str) -> bool {
    texts.windows(name.len()).any(|part| part == name.as_bytes())
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
        let library = Library::new(Path::new("/nowhere/libfolioswap_preload.so"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let stat = said::read(format!("/proc/{}/stat", child.id())).unwrap();
        let (parent, begun) = parent_in(&stat).unwrap();
        assert_eq!(parent, std::process::id());
        assert!(
            !descendants(begun + 1).iter().any(|pid| [child.id(), grandchild].contains(pid)),
            "it was there before"
        );
        let found = descendants(begun);
        assert!(found.contains(&child.id()) && found.contains(&grandchild), "{found:?}");
        assert!(Process::of(grandchild, 1 << 30, &library).is_none());
        let process = Process::of(grandchild, 0, &library).unwrap();
        assert!(process.in_ram > 0 && process.shared <= process.in_ram && process.has_library == Some(false));
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
            let process = Process { name: String::new(), in_ram: 0, shared: 0, has_library: Some(false) };
            let (why, _) = process.reason(child.id(), 1, &Library::new(Path::new("/elsewhere/another.so")));
            drop(child.stdin.take());
            child.wait().unwrap();
            why
        };
        assert!(why(None).contains("LD_PRELOAD"));
        assert!(why(Some("/nowhere/another.so")).contains("sanitizer"), "it has the name that it was given");
    }

    #[test]
    fn what_fits_is_passed_over_and_what_cannot_be_managed_is_not() {
        const MIB: u64 = 1 << 20;
        let excess = |memory: u64, in_ram: u64, managed: u64, has_library: Option<bool>| {
            let allowed = Allowed { memory_bytes: memory * MIB, in_ram_bytes: 8 * MIB };
            let process = Process { name: String::new(), in_ram: in_ram * MIB, shared: 0, has_library };
            allowed.excess(&process, managed * MIB).map(|bytes| bytes / MIB)
        };
        assert_eq!(excess(32, 56, 0, Some(true)), None, "a little beside the budget");
        assert_eq!(excess(32, 57, 0, Some(true)), Some(49));
        assert_eq!(excess(32, 49, 0, Some(false)), Some(49), "neither budget nor devices serve it");
        assert_eq!(excess(32, 88, 32, Some(true)), None);
        assert_eq!(excess(32, 88, 32, None), None, "it may have the library");
        assert_eq!(excess(32, 89, 900, Some(true)), Some(49), "no process has more than the budget managed");
        assert_eq!(excess(1000, 1172, 1000, Some(true)), None);
        assert_eq!(excess(1000, 1173, 1000, Some(true)), Some(165), "far beyond the budget");
        assert_eq!(excess(1000, 1000, 0, Some(true)), None, "what the budget would hold");
    }

    #[test]
    fn names_do_not_mislead() {
        let stat = "7 (a) S 1 b) R 5 7 7 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 345 3211264 285 18446744073709551615 1";
        assert_eq!(parent_in(stat), Some((5, 345)));
        assert_eq!(parent_in(""), None);
    }
}
