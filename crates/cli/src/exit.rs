//! Exit statuses: one for each cause, and the error type that carries it.
//!
//! This table is the only place that defines these numbers; `--help` prints it. Apart from 1, statuses below 64 and
//! above 128 come from the program that `folioswap run` ran.

use std::fmt;

/// Causes that have an exit status of their own. Like those of `sysexits.h` they begin at 64, where few programs have
/// theirs.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The command failed in a way that has no status of its own, or a check did not hold.
    Failed = 1,
    /// The command line or a size in it could not be parsed.
    Usage = 64,
    /// The memory budget is below the minimum.
    BudgetTooSmall = 65,
    /// The program does not exist.
    ProgramNotFound = 66,
    /// The program exists but cannot be executed.
    ProgramNotExecutable = 67,
    /// The swap device cannot be used: it is a directory, is not writable, has no direct I/O, or is in use.
    SwapUnusable = 68,
    /// The swap device is too small, or its disk has too little space.
    SwapTooSmall = 69,
    /// Neither a frame nor a slot was free while the program ran.
    OutOfMemory = 70,
    /// The system does not permit the kind of userfaultfd that was asked for.
    NoUserfaultfd = 71,
    /// The preload library was not found.
    NoPreload = 72,
    /// Kernel swap could not be set up for the comparison.
    NoKernelPeer = 73,
    /// `--lock`: the limit of locked memory is too small, or folios are copied.
    LockNotPermitted = 74,
    /// `--lock`: the RAM of the budget is not available.
    NoMemoryToLock = 75,
    /// Code of folioswap panicked.
    Defect = 76,
}

/// Every status with its meaning, in ascending order.
pub const TABLE: &[(Status, &str)] = &[
    (Status::Failed, "the command itself failed, or a check of `bench` or `doctor` did not hold"),
    (Status::Usage, "the command line or a size could not be understood"),
    (Status::BudgetTooSmall, "--memory is below 16M"),
    (Status::ProgramNotFound, "the program was not found"),
    (Status::ProgramNotExecutable, "the program cannot be executed"),
    (Status::SwapUnusable, "the swap path cannot be used"),
    (Status::SwapTooSmall, "the swap device is too small, or its disk is full"),
    (Status::OutOfMemory, "budget and swap were both full while the program ran"),
    (Status::NoUserfaultfd, "no permission for userfaultfd (see `folioswap doctor`)"),
    (Status::NoPreload, "libfolioswap_preload.so was not found"),
    (Status::NoKernelPeer, "the kernel's swap could not be set up to compare with"),
    (Status::LockNotPermitted, "--lock: the limit of locked memory is too small (ulimit -l), or folios are copied"),
    (Status::NoMemoryToLock, "--lock: so much RAM is not to be had"),
    (Status::Defect, "a defect of folioswap: its own code panicked, in the command or in a process of the program"),
];

/// The table as `--help` prints it.
pub fn help_table() -> String {
    let mut text = String::from("Exit status:\n");
    text.push_str("  0-63  of the program; 128+n when signal n ended it\n");
    for (status, meaning) in TABLE {
        text.push_str(&format!("  {:<4}  {meaning}\n", *status as u8));
    }
    text.push_str("\nSizes are bytes or end in K, M, G, T (powers of 1024).");
    text
}

/// An error message of one sentence, and the exit status.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// What went wrong and what would help, without line breaks.
    pub message: String,
}

impl Failure {
    /// A failure with a status from the table.
    pub fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status: status as u8, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_distinct_and_ascending() {
        let numbers: Vec<u8> = TABLE.iter().map(|(status, _)| *status as u8).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        assert!(numbers.iter().all(|number| *number < 128));
    }

    #[test]
    fn help_names_every_status() {
        let help = help_table();
        for (status, meaning) in TABLE {
            assert!(help.contains(meaning) && help.contains(&(*status as u8).to_string()), "{status:?}");
        }
    }
}
