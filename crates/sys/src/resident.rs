//! How much of its memory a process had in RAM, as the kernel counts it: managed or not.

use std::mem::MaybeUninit;

/// What this process has in RAM, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resident {
    /// The most so far, since it executed its program.
    pub peak: u64,
    /// Anonymous memory, now.
    pub anonymous: u64,
    /// Shared memory, now. (The rest is pages of files, which the kernel can drop.)
    pub shared: u64,
}

impl Resident {
    /// As `/proc/self/status` has it; none where that cannot be read.
    #[must_use]
    pub fn now() -> Option<Resident> {
        std::fs::read_to_string("/proc/self/status").ok().map(|status| Resident::parse(&status))
    }

    fn parse(status: &str) -> Resident {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
        };
        Resident { peak: field("VmHWM:"), anonymous: field("RssAnon:"), shared: field("RssShmem:") }
    }
}

/// The most that one process had in RAM: this one, or of its children that have ended and been waited for, and theirs, the one that
/// had most.
#[must_use]
pub fn peak(of_children: bool) -> u64 {
    let who = if of_children { libc::RUSAGE_CHILDREN } else { libc::RUSAGE_SELF };
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure, of this frame's own; zeros are a value of it should it fail.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_counted() {
        let status =
            "VmHWM:\t    2048 kB\nVmRSS:\t 8 kB\nRssAnon:\t 4 kB\nRssFile:\t    1024 kB\nRssShmem:\t       8 kB\n";
        assert_eq!(Resident::parse(status), Resident { peak: 2 << 20, anonymous: 4096, shared: 8192 });
        let touched = std::hint::black_box(vec![1u8; 8 << 20]);
        assert!(Resident::now().unwrap().peak > 8 << 20 && peak(false) > 8 << 20);
        drop(touched);
    }
}
