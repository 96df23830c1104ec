//! The turn of a benchmark under kernel swap: a hidden subcommand of ours runs in a memory cgroup and prints its
//! figures.
//!
//! The fill of a zram is sampled from outside meanwhile. [`KernelTurn::run`] returns after the turn has ended and the
//! set-up is undone, so that the two systems never share the machine.

use crate::peer::{Backing, Peer, Setup};
use crate::shared::progress::Progress;
use crate::shared::stored::Stored;
use clap::ValueEnum;
use folioswap_command::exit::{End, Failure};
use folioswap_command::own_executable;
use folioswap_command::supervise::Supervisor;
use signal_hook::consts::signal;
use std::ffi::OsString;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

/// Sampling period of the zram.
const SAMPLE_PERIOD: Duration = Duration::from_millis(50);

/// The signals with which users end programs.
const BY_USER: [i32; 4] = [signal::SIGHUP, signal::SIGINT, signal::SIGQUIT, signal::SIGTERM];

#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub enum Versus {
    /// Kernel swap (needs root)
    Kernel,
}

pub struct KernelTurn {
    /// Memory limit of the cgroup.
    pub memory_bytes: u64,
    /// Memory that the program fills.
    pub data_bytes: u64,
    pub backing: Backing,
    /// The command line of the hidden subcommand.
    pub argv: Vec<OsString>,
}

pub enum Turn<T> {
    /// It ran to its end. With the largest sample of the zram, if there is one.
    Over(T, Option<Stored>),
    /// The user ended it. The command must exit with this status.
    Ended(u8),
}

impl KernelTurn {
    /// Runs the program while `read` reads its standard output.
    pub fn run<T: Default>(self, read: impl FnOnce(ChildStdout) -> T) -> Result<Turn<T>, Failure> {
        let mut supervisor = Supervisor::new()?;
        let peer = Peer::start(&Setup {
            memory_bytes: self.memory_bytes,
            // Generous: huge pages need whole clusters, and a full device would end the program.
            swap_bytes: self.data_bytes.saturating_add(self.data_bytes / 2).saturating_add(128 << 20),
            backing: self.backing,
        })?;
        let mut said = T::default();
        let mut command = peer.command(&own_executable()?, &self.argv)?;
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
        supervisor.release();
        match (status?, ended) {
            (End::Status(0), None) => Ok(Turn::Over(said, stored)),
            (End::Status(0), Some(signal)) => Ok(Turn::Ended(End::Signal(signal).status())),
            (End::Signal(signal), _) if BY_USER.contains(&signal) => Ok(Turn::Ended(End::Signal(signal).status())),
            (End::Signal(signal::SIGKILL), _) => Err(Failure::new(
                "the run under the kernel's swap was killed, most likely for want of memory in its cgroup; try a larger --memory",
            )),
            (end, _) => {
                Err(Failure::new(format!("the run under the kernel's swap failed with status {}", end.status())))
            }
        }
    }
}
