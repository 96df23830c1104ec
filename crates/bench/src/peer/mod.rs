//! Kernel swap as the peer of a comparison: a memory cgroup of the same size that swaps to a device of ours.
//!
//! A guard, a child in its own process group, sets it up and undoes it (`guard`). The guard reads from a pipe whose
//! only writing end is here. It sees the end of this process whatever the cause, kill -9 included, and undoes
//! everything. The guard does not hold our standard output or standard error open.

mod cgroup;
pub mod guard;
pub mod kernel;
mod swap;
mod system;
pub mod zram;

use folioswap::Codec;
use folioswap_command::exit::Failure;
use folioswap_command::own_executable;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use zram::Zram;

/// Where the kernel swaps to.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Backing {
    /// A swap file in this directory.
    Directory(PathBuf),
    /// A loop device backed by memory.
    Ram,
    /// A zram.
    Zram(Codec),
}

#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Setup {
    /// Limit of the cgroup.
    pub memory_bytes: u64,
    /// Size of the swap device.
    pub swap_bytes: u64,
    /// Where the swap device is.
    pub backing: Backing,
}

/// A peer that is set up. Dropping it ends the programs in it and undoes the set-up.
pub struct Peer {
    guard: Child,
    answers: BufReader<ChildStdout>,
    cgroup: PathBuf,
    zram: Option<Zram>,
}

impl Peer {
    /// Sets up the peer. Needs root.
    pub fn start(setup: &Setup) -> Result<Peer, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new("comparing with the kernel's swap needs root; try it with sudo"));
        }
        let failed = |what: &str| Failure::new(format!("the guard of the kernel's swap {what}"));
        let mut command = Command::new(own_executable()?);
        command.arg("__guard").args(guard::to_arguments(setup));
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guard = command.spawn().map_err(|error| failed(&format!("could not be started: {error}")))?;
        let answers = guard.stdout.take().ok_or_else(|| failed("has no output"))?;
        let mut peer = Peer { guard, answers: BufReader::new(answers), cgroup: PathBuf::new(), zram: None };
        let answer = peer.answer();
        match answer.split_once(' ') {
            Some(("ready", rest)) => {
                let (cgroup, device) = rest.split_once(' ').unwrap_or((rest, ""));
                peer.cgroup = PathBuf::from(cgroup);
                if let Backing::Zram(_) = setup.backing {
                    peer.zram = Zram::of_device(Path::new(device));
                }
                Ok(peer)
            }
            Some(("failed", why)) => {
                Err(Failure::new(format!("the kernel's swap could not be set up to compare with: {why}")))
            }
            _ => Err(failed("ended early")),
        }
    }

    /// The command that starts a program in the cgroup, as a child, which is killed when the calling thread ends.
    /// `argv` has argument zero.
    pub fn command(&self, file: &Path, argv: &[OsString]) -> Result<Command, Failure> {
        let mut command = Command::new(file);
        command.arg0(&argv[0]).args(&argv[1..]);
        let group = cgroup::open(&self.cgroup).map_err(Failure::new)?;
        folioswap_child::bind(&mut command, Some(group.into()));
        Ok(command)
    }

    /// The zram that the kernel swaps to, if it swaps to one.
    pub fn zram(&self) -> Option<Zram> {
        self.zram.clone()
    }

    /// Ends the programs in the cgroup and undoes the set-up. Fails if something could not be undone.
    pub fn stop(mut self) -> Result<(), Failure> {
        drop(self.guard.stdin.take());
        let answer = self.answer();
        match answer.split_once(' ') {
            None if answer == "clean" => Ok(()),
            Some(("left", message)) => Err(Failure::new(format!("the kernel's swap was not undone: {message}"))),
            _ => Err(Failure::new("the guard of the kernel's swap ended early; see /proc/swaps")),
        }
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(_) => line.trim_end().to_owned(),
            Err(_) => String::new(),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // The guard exits once everything is undone. Its answer says everything that its status says.
        let _ = self.guard.wait();
    }
}
