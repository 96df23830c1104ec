//! `folioswap __guard`: sets the peer up, waits for the end of its parent, undoes it.
//!
//! It speaks lines on its standard output: `ready CGROUP` or `failed STATUS MESSAGE`, and after the end `clean` or `left MESSAGE`.
//! The end is the end of its standard input. Signals that end ordinary processes do not end it, and it has a process group of
//! its own, so that Ctrl-C does not reach it.
//! Order of the tear-down: first the processes die, so that no swapped page has to come back, then swap goes off.

use super::{Backing, Setup, cgroup, swap};
use crate::exit::{Failure, Status};
use clap::Args;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Arguments of the hidden command; sizes in bytes.
#[derive(Args, Debug)]
pub struct GuardArgs {
    #[arg(long)]
    memory: u64,
    #[arg(long)]
    swap_size: u64,
    /// Directory of the swap file; without it, a loop device on memory.
    #[arg(long)]
    swap_dir: Option<PathBuf>,
}

/// The arguments that make the guard set this up.
pub fn to_arguments(setup: &Setup) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--memory".into(), setup.memory_bytes.to_string().into()];
    arguments.extend(["--swap-size".into(), setup.swap_bytes.to_string().into()]);
    if let Backing::Directory(directory) = &setup.backing {
        arguments.extend(["--swap-dir".into(), directory.into()]);
    }
    arguments
}

/// What is set up, to be taken back from the end.
#[derive(Default)]
struct Built {
    cgroup: Option<PathBuf>,
    swap: Vec<swap::Undo>,
}

impl Built {
    fn build(&mut self, setup: &Setup) -> Result<PathBuf, Failure> {
        swap::switch_on(&setup.backing, setup.swap_bytes, &mut self.swap)?;
        let directory =
            cgroup::create(setup.memory_bytes).map_err(|message| Failure::new(Status::NoKernelPeer, message))?;
        self.cgroup = Some(directory.clone());
        Ok(directory)
    }

    /// Takes everything back, each step even when another fails, and says what was left.
    fn take_back(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(directory) = &self.cgroup {
            left.extend(cgroup::end(directory).err());
        }
        for undo in self.swap.drain(..).rev() {
            left.extend(undo.take_back().err());
        }
        if let Some(directory) = self.cgroup.take() {
            left.extend(cgroup::remove(&directory).err());
        }
        left
    }
}

/// The guard's whole life.
pub fn guard(args: &GuardArgs) -> Result<u8, Failure> {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))
            .map_err(|error| Failure::new(Status::NoKernelPeer, format!("signal handlers: {error}")))?;
    }
    let backing = args.swap_dir.clone().map_or(Backing::Ram, Backing::Directory);
    let setup = Setup { memory_bytes: args.memory, swap_bytes: args.swap_size, backing };
    let mut built = Built::default();
    match built.build(&setup) {
        Ok(directory) => say(&format!("ready {}", directory.display())),
        Err(failure) => {
            let left = built.take_back();
            let also = if left.is_empty() { String::new() } else { format!("; and not undone: {}", left.join("; ")) };
            say(&format!("failed {} {}{also}", failure.status, failure.message));
            return Ok(0);
        }
    }
    // Nobody writes; the read ends when the last writing end closes.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let left = built.take_back();
    if left.is_empty() {
        say("clean");
        return Ok(0);
    }
    say(&format!("left {}", left.join("; ")));
    Ok(Status::NoKernelPeer as u8)
}

/// One line to the parent, which may be gone.
fn say(line: &str) {
    let mut output = std::io::stdout();
    let _ = writeln!(output, "{}", line.replace('\n', " ")).and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: GuardArgs,
    }

    #[test]
    fn arguments_survive_the_way() {
        use clap::Parser;
        let setup = Setup { memory_bytes: 7, swap_bytes: 9, backing: Backing::Directory("/a b".into()) };
        let line = std::iter::once("x".into()).chain(to_arguments(&setup));
        let args = Line::try_parse_from(line).expect("own arguments parse").args;
        assert_eq!((args.memory, args.swap_size, args.swap_dir), (7, 9, Some("/a b".into())));
    }
}
