//! Checks what folioswap needs of this system, and names one command that would fix what is missing.

use std::fs;

use folioswap_core::{Clusters, FolioTable, Order, Zone};
use folioswap_sys::uffd::{Delivery, Door, Userfaultfd};
use folioswap_sys::{control_group, direct_io, memory, said, uring};

use crate::config::limits::MIN_MEMORY;
use crate::config::size::Bytes;
use crate::device::{FileDevice, default_directory};
use crate::memory::mlock;
use crate::memory::selftest::self_test;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works, but slower or with fewer choices.
    Limited,
    /// folioswap cannot run without it.
    Missing,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub name: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// What was found, in one sentence.
    pub text: String,
    /// The command that would fix it.
    pub remedy: Option<String>,
}

impl Finding {
    fn good(name: &'static str, text: impl Into<String>) -> Self {
        Finding { name, verdict: Verdict::Good, text: text.into(), remedy: None }
    }

    fn limited(name: &'static str, text: impl Into<String>, remedy: &str) -> Self {
        Finding { name, verdict: Verdict::Limited, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn missing(name: &'static str, text: impl Into<String>, remedy: &str) -> Self {
        Finding { name, verdict: Verdict::Missing, text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// Checks kernel, userfaultfd, MOVE, huge pages, io_uring, memory limits and free disk space, and reports the size of
/// records.
pub fn doctor() -> Vec<Finding> {
    vec![
        kernel(),
        direct(),
        monitor(),
        mapping(),
        huge_pages(),
        io_uring(),
        memory_limit(),
        locked_budget(),
        disk(),
        records(),
    ]
}

fn kernel() -> Finding {
    let release = said::kernel_release();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (..=5, _) | (6, ..=7) => Finding::limited(
            "kernel",
            format!("Linux {release}: no UFFDIO_MOVE before 6.8, folios are copied"),
            "upgrade to Linux 6.17 or later",
        ),
        (6, 8..=16) => Finding::limited(
            "kernel",
            format!("Linux {release}: UFFDIO_MOVE has published defects in 6.8 to 6.16"),
            "upgrade to Linux 6.17 or later, or run with --mapper copy",
        ),
        _ => Finding::good("kernel", format!("Linux {release}")),
    }
}

fn direct() -> Finding {
    match Userfaultfd::open(Delivery::Sigbus) {
        Ok(_) => Finding::good("direct faults", "userfaultfd with SIGBUS, for any user"),
        Err(error) => Finding::missing(
            "direct faults",
            format!("userfaultfd: {error}"),
            "use a kernel with CONFIG_USERFAULTFD, and a sandbox that permits it",
        ),
    }
}

fn monitor() -> Finding {
    match Userfaultfd::open(Delivery::Monitor) {
        Ok((_, _, door)) => {
            let by = match door {
                Door::Syscall => "by system call (privileged, or vm.unprivileged_userfaultfd=1)",
                Door::Device => "by /dev/userfaultfd",
                Door::UserModeOnly => "for user-mode faults only",
            };
            Finding::good("monitor faults", format!("userfaultfd {by}"))
        }
        Err(error) => Finding::limited(
            "monitor faults",
            format!("not permitted ({error}); direct faults are used, with buffers touched before system calls"),
            "sysctl -w vm.unprivileged_userfaultfd=1",
        ),
    }
}

fn mapping() -> Finding {
    let found = self_test();
    match (found.moves, found.stays_huge) {
        (Ok(()), true) => Finding::good("mapping", "move: a huge page moved out and in, its content and size kept"),
        (Ok(()), false) => Finding::limited(
            "mapping",
            "move: content is kept, but the page was or became a small one",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (Err(reason), _) => Finding::limited(
            "mapping",
            format!("copy, because {reason}; programs are refused io_uring and libaio"),
            "upgrade to Linux 6.17 or later",
        ),
    }
}

fn huge_pages() -> Finding {
    match fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(text) if text.contains("[never]") => {
            Finding::limited("huge pages", "switched off", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        }
        Ok(text) => {
            let chosen = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
            Finding::good("huge pages", format!("transparent huge pages: {chosen}"))
        }
        Err(error) => {
            Finding::limited("huge pages", format!("none ({error})"), "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE")
        }
    }
}

fn io_uring() -> Finding {
    match uring::probe() {
        Ok(()) => Finding::good("io_uring", "several reads and writes in flight"),
        Err(error) => Finding::limited(
            "io_uring",
            format!("{error}; one read or write at a time"),
            "sysctl -w kernel.io_uring_disabled=0",
        ),
    }
}

fn memory_limit() -> Finding {
    let (limit, total) = (control_group::memory_limit(), memory::total_ram());
    let text = if limit < total {
        format!("{} by control group, of {} in the machine", Bytes(limit), Bytes(total))
    } else {
        format!("{} in the machine, no limit by control group", Bytes(total))
    };
    Finding::good("memory", text)
}

fn locked_budget() -> Finding {
    match mlock::check_limit(MIN_MEMORY) {
        Ok(()) => Finding::good("locked budget", "permitted: `run --lock` takes its RAM at once and keeps it"),
        Err(_) => Finding::limited(
            "locked budget",
            format!(
                "not permitted: the limit of locked memory is {}, and `run --lock` locks at least {} of addresses",
                memory::memlock_limit().map_or("none".into(), |limit| Bytes(limit).to_string()),
                Bytes(mlock::least_to_lock())
            ),
            "ulimit -l unlimited (as root), or give it CAP_IPC_LOCK",
        ),
    }
}

/// Size of the engine's own records, which are outside the budget.
fn records() -> Finding {
    let per_gib = |bytes: usize, of: usize| Bytes((bytes * ((1 << 30) / of)) as u64);
    let block = Order::HUGE.bytes();
    let [whole, pages] = [Order::HUGE, Order::PAGE].map(|order| per_gib(FolioTable::record_bytes(order), block));
    let (budget, swap) = (per_gib(Zone::RECORD_BYTES, Order::PAGE.bytes()), per_gib(Clusters::RECORD_BYTES, block));
    let text = format!(
        "for each GiB of memory {whole}, or {pages} where it was swapped in pages; of budget {budget}; of swap {swap}"
    );
    Finding::good("records", text)
}

fn disk() -> Finding {
    let directory = default_directory();
    match FileDevice::check_directory(&directory) {
        Ok(()) => {
            let free = direct_io::free_bytes(&directory).unwrap_or(0);
            Finding::good("disk", format!("{} free for swap in {}", Bytes(free), directory.display()))
        }
        Err(error) => {
            Finding::limited("disk", error.to_string(), "export FOLIOSWAP_DIR=DIRECTORY, on a disk with O_DIRECT")
        }
    }
}
