//! Why the command ended: one exit status for each cause, and the error that carries it.
//!
//! The table here is the only place that gives these numbers a meaning; `--help` prints it. Statuses below 64 and above
//! 128 belong to the program that `folioswap run` ran.

use std::fmt;

/// The causes that have an exit status of their own. `sysexits.h` begins at 64 as well, so they rarely meet a program's.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Status {
    /// Something in the command went wrong that has no number of its own, or a check did not hold.
    Failed = 1,
    /// The command line could not be understood, a size among it.
    Usage = 64,
    /// The memory budget is below the smallest that works.
    BudgetTooSmall = 65,
    /// The program is not there.
    ProgramNotFound = 66,
    /// The program is there but cannot be executed.
    ProgramNotExecutable = 67,
    /// The swap path is a directory, not writable, or cannot do direct I/O.
    SwapUnusable = 68,
    /// The swap device is too small, or the disk under it has no room.
    SwapTooSmall = 69,
    /// While the program ran, neither a frame nor a slot could be had.
    OutOfMemory = 70,
    /// The system permits no userfaultfd of the kind that was asked for.
    NoUserfaultfd = 71,
    /// The library that is loaded into the program is not beside the command.
    NoPreload = 72,
    /// The kernel's swap could not be set up to compare with.
    NoKernelPeer = 73,
    /// `--lock`: the limit of locked memory is too small, or folios are copied.
    LockNotPermitted = 74,
    /// `--lock`: the budget's RAM is not to be had.
    NoMemoryToLock = 75,
}

/// Every status with its meaning, in order.
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
];

/// The table as `--help` shows it.
pub fn help_table() -> String {
    let mut text = String::from("Exit status:\n");
    text.push_str("  0-63  of the program; 128+n when signal n ended it\n");
    for (status, meaning) in TABLE {
        text.push_str(&format!("  {:<4}  {meaning}\n", *status as u8));
    }
    text.push_str("\nSizes are bytes or end in K, M, G, T (powers of 1024).");
    text
}

/// One clear sentence and the status to exit with.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// What was wrong and what would do; no line breaks.
    pub message: String,
}

impl Failure {
    /// A failure with a status of the table.
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
