//! What the command says and ends with when it fails: one sentence, and a status of the engine's table
//! ([`ExitStatus`]), which `--help` prints.

use folioswap::ExitStatus;
use std::fmt;

/// The table as `--help` prints it.
pub fn help_table() -> String {
    let mut text = String::from("Exit status:\n");
    text.push_str("  any   of the program; if a signal ended it, the same signal ends the command\n");
    for status in ExitStatus::ALL {
        text.push_str(&format!("  {:<4}  {}\n", status.code(), status.meaning()));
    }
    text.push_str("\nSizes are bytes, or end in K, M, G, T, KiB, MiB, GiB or TiB (powers of 1024),\n");
    text.push_str("or in KB, MB, GB or TB (powers of 1000).");
    text
}

/// How a program ended, and how the command ends then.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum End {
    /// With this exit status.
    Status(u8),
    /// By this signal.
    Signal(i32),
}

impl End {
    /// The exit status as a shell reports it.
    pub fn status(self) -> u8 {
        match self {
            End::Status(status) => status,
            End::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// An error message of one sentence, and the exit status.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: ExitStatus,
    /// What went wrong and what would help, without line breaks.
    pub message: String,
}

impl Failure {
    /// A failure of folioswap itself.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure::of(ExitStatus::Failed, message)
    }

    /// A failure with another status.
    pub fn of(status: ExitStatus, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }
}

impl From<folioswap::Error> for Failure {
    fn from(error: folioswap::Error) -> Failure {
        Failure::new(error.to_string())
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
    fn help_and_the_documents_have_every_status() {
        let help = help_table();
        let options = include_str!("../../../docs/options.md");
        let section = options.split("\n## ").find(|part| part.starts_with("Exit status\n")).expect("a section");
        let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ") && !line.contains("cause")).collect();
        for status in ExitStatus::ALL {
            let (code, meaning) = (status.code(), status.meaning());
            assert!(help.contains(&format!("  {code:<4}  {meaning}\n")), "{status:?}");
            assert!(rows.contains(&format!("| {code} | {meaning} |").as_str()), "{status:?}: {rows:#?}");
        }
        assert_eq!(rows.len(), ExitStatus::ALL.len() + 1, "{rows:#?}");
    }
}
