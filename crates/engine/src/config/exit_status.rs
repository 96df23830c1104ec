//! The exit statuses of folioswap. This table is the only one in code: the command, the library in the program and the
//! documents follow it. All others are the program's own.

/// Why a process of folioswap ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// A check of `bench` or `doctor` did not hold.
    CheckFailed = 1,
    /// Neither a frame nor a slot was free while the program ran, or something else that the engine cannot do without.
    OutOfMemory = 70,
    /// Code of folioswap panicked.
    Defect = 76,
    /// folioswap itself failed. As with env, timeout and docker, this and the next two are out of the way of programs.
    Failed = 125,
    /// The program exists but cannot be executed.
    NotExecutable = 126,
    /// The program does not exist.
    NotFound = 127,
}

impl ExitStatus {
    /// Every status, in ascending order.
    pub const ALL: [ExitStatus; 6] = [
        ExitStatus::CheckFailed,
        ExitStatus::OutOfMemory,
        ExitStatus::Defect,
        ExitStatus::Failed,
        ExitStatus::NotExecutable,
        ExitStatus::NotFound,
    ];

    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What it means, as `--help` and docs/options.md have it.
    pub const fn meaning(self) -> &'static str {
        match self {
            ExitStatus::CheckFailed => "a check of `bench` or `doctor` did not hold",
            ExitStatus::OutOfMemory => {
                "folioswap could not go on while the program ran: mostly, budget and swap were both full"
            }
            ExitStatus::Defect => "a defect of folioswap: its own code panicked, in the command or in the program",
            ExitStatus::Failed => "folioswap itself failed, with `run` before the program began; one line says why",
            ExitStatus::NotExecutable => "the program cannot be executed",
            ExitStatus::NotFound => "the program was not found",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_distinct_ascending_and_no_signals() {
        let codes = ExitStatus::ALL.map(ExitStatus::code);
        assert!(codes.is_sorted_by(|one, next| one < next) && codes.iter().all(|code| *code < 128), "{codes:?}");
    }
}
