//! Watches the processes of a run, and says so when one has more memory in RAM than it should: what is not managed is
//! not held to the budget, and the machine may run short long before the program ends.

use folioswap::Bytes;
use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the processes are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Beside the budget: code, and what the engine itself takes.
const BESIDE: u64 = 64 << 20;

/// Part of the library's name in a list of mappings.
const LIBRARY: &str = "libfolioswap_preload";

/// Watches until it is dropped.
pub struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the descendants of this process. `in_ram_bytes`: the size of swap devices in RAM, which each may fill.
    pub fn start(memory_bytes: u64, in_ram_bytes: u64, say: fn(&str)) -> Watch {
        let (end, ended) = channel();
        let most = memory_bytes + memory_bytes / 10 + in_ram_bytes + BESIDE;
        let thread =
            std::thread::Builder::new().name("watch".into()).spawn(move || run(&ended, memory_bytes, most, say));
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

fn run(ended: &Receiver<()>, memory_bytes: u64, most: u64, say: fn(&str)) {
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        for pid in descendants() {
            let Some(process) = Process::of(pid).filter(|process| process.in_ram > most) else { continue };
            say(&format!(
                "folioswap: note: process {pid} ({}) has {} in RAM, beside a budget of {}: {}",
                process.name,
                Bytes(process.in_ram),
                Bytes(memory_bytes),
                process.reason()
            ));
            return; // said once
        }
    }
}

/// All processes that this one has started, and those that they have started.
fn descendants() -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let parent = pid.and_then(|pid| parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?));
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
    has_library: bool,
}

impl Process {
    fn of(pid: u32) -> Option<Process> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let kib = |name| field(name)?.split_whitespace().next()?.parse::<u64>().ok();
        let in_ram = (kib("RssAnon:")? + kib("RssShmem:")?) << 10;
        let has_library = fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(LIBRARY));
        Some(Process { name: field("Name:")?.trim().to_owned(), in_ram, has_library })
    }

    fn reason(&self) -> &'static str {
        if self.has_library {
            "a part of it is not managed, because it is shared, or was mapped unseen"
        } else {
            "it is not managed, because it is linked statically, or runs with rights of its own"
        }
    }
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
        let process = Process::of(grandchild).unwrap();
        assert!(process.in_ram > 0 && process.in_ram < 1 << 30 && !process.has_library);
        assert_eq!(process.name, "sh");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn names_do_not_mislead() {
        assert_eq!(parent_in("7 (a) S 1 b) R 5 7 7 0"), Some(5));
        assert_eq!(parent_in(""), None);
    }
}
