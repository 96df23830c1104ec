//! A benchmark's turn under the kernel's swap: a hidden subcommand of our own, run in a memory cgroup, tells its figures in lines.
//!
//! What it has stored in a zram is looked at from outside, while it runs. The turn is over and everything undone when [`KernelTurn::run`] returns, so the two sides never share the machine.

use super::progress::Progress;
use super::stored::Stored;
use crate::exit::{Failure, Status};
use crate::launch::{ExecArgs, own_executable};
use crate::peer::{Backing, Peer, Setup};
use crate::supervise::Supervisor;
use clap::ValueEnum;
use std::ffi::OsString;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

/// How often what is stored is looked at.
const SAMPLE_PERIOD: Duration = Duration::from_millis(50);

/// What a benchmark can be compared with.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Versus {
    /// The kernel's own swap (root)
    Kernel,
}

/// What to run.
pub struct KernelTurn {
    /// Limit of the cgroup.
    pub memory_bytes: u64,
    /// Memory that the program fills.
    pub data_bytes: u64,
    /// Where the kernel swaps.
    pub backing: Backing,
    /// The command line of the hidden subcommand.
    pub argv: Vec<OsString>,
}

/// How it went.
pub enum Turn<T> {
    /// To its end; what was stored when it was most, where that can be seen.
    Over(T, Option<Stored>),
    /// A user ended it; the command is to end with this status.
    Ended(u8),
}

impl KernelTurn {
    /// Runs it while `read` takes what it says on its standard output.
    pub fn run<T: Default>(self, read: impl FnOnce(ChildStdout) -> T) -> Result<Turn<T>, Failure> {
        let mut supervisor = Supervisor::new()?;
        let peer = Peer::start(&Setup {
            memory_bytes: self.memory_bytes,
            // Ample: huge pages want whole clusters of it, and a full device would end the program.
            swap_bytes: self.data_bytes.saturating_add(self.data_bytes / 2).saturating_add(128 << 20),
            backing: self.backing,
        })?;
        let step = ExecArgs {
            parent: rustix::process::getpid().as_raw_nonzero().get(),
            cgroup: Some(peer.cgroup().to_owned()),
            preload: None,
            settings: None,
            file: own_executable()?,
            argv: self.argv,
        };
        let mut said = T::default();
        let mut command = step.command()?;
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let (zram, mut stored) = (peer.zram(), None);
        let sample = || Stored::of_mm_stat(&zram.as_ref()?.mm_stat()?);
        let status = Progress::new(0, false).during(
            SAMPLE_PERIOD,
            |_| Stored::keep_most(&mut stored, sample()),
            || {
                supervisor.run(command, |child| {
                    if let Some(output) = child.stdout.take() {
                        said = read(output);
                    }
                })
            },
        );
        peer.stop()?;
        let ended = supervisor.asked_to_end();
        supervisor.release()?;
        match (status?, ended) {
            (0, None) => Ok(Turn::Over(said, stored)),
            (0, Some(signal)) => Ok(Turn::Ended(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
            (status, _) if is_end_by_user(status) => Ok(Turn::Ended(status)),
            (137, _) => Err(Failure::new(
                Status::NoKernelPeer,
                "the run under the kernel's swap was killed, most likely for want of memory in its cgroup; try a larger --memory",
            )),
            (status, _) => Err(Failure::new(
                Status::NoKernelPeer,
                format!("the run under the kernel's swap failed with status {status}"),
            )),
        }
    }
}

/// Whether a status says that a signal ended the program with which a user ends programs.
fn is_end_by_user(status: u8) -> bool {
    use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&(i32::from(status) - 128))
}
