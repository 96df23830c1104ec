//! `folioswap __guard`: sets the peer up, waits for the end of its parent, and undoes the set-up.
//!
//! It writes lines to standard output: `ready CGROUP DEVICE` or `failed STATUS MESSAGE`, and after the tear-down
//! `clean` or `left MESSAGE`. It tears down when its standard input ends. It survives SIGINT, SIGTERM and SIGHUP, and
//! has its own process group, so that Ctrl-C does not reach it. Order of the tear-down: first kill the processes, so
//! that no swapped page has to be read back, then swap off.

use super::{Backing, Setup, cgroup, swap};
use clap::Args;
use folioswap::{Codec, ExitStatus};
use folioswap_command::exit::Failure;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Arguments of the hidden command. Sizes are in bytes.
#[derive(Args, Debug)]
pub struct GuardArgs {
    #[arg(long)]
    memory: u64,
    #[arg(long)]
    swap_size: u64,
    /// Directory of the swap file. Without it and without `zram`, swap is on a loop device backed by memory.
    #[arg(long)]
    swap_dir: Option<PathBuf>,
    /// Swap to a zram with this compression.
    #[arg(long, value_parser = codec, conflicts_with = "swap_dir")]
    zram: Option<Codec>,
}

/// The arguments that make the guard set up `setup`.
pub fn to_arguments(setup: &Setup) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--memory".into(), setup.memory_bytes.to_string().into()];
    arguments.extend(["--swap-size".into(), setup.swap_bytes.to_string().into()]);
    match &setup.backing {
        Backing::Directory(directory) => arguments.extend(["--swap-dir".into(), directory.into()]),
        Backing::Zram(codec) => arguments.extend(["--zram".into(), codec.name().into()]),
        Backing::Ram => {}
    }
    arguments
}

fn codec(name: &str) -> Result<Codec, String> {
    name.parse().map_err(|()| format!("`{name}` is no way to compress"))
}

impl GuardArgs {
    fn setup(&self) -> Setup {
        let backing = match (&self.swap_dir, self.zram) {
            (Some(directory), _) => Backing::Directory(directory.clone()),
            (None, Some(codec)) => Backing::Zram(codec),
            (None, None) => Backing::Ram,
        };
        Setup { memory_bytes: self.memory, swap_bytes: self.swap_size, backing }
    }
}

/// What has been set up. The tear-down undoes it in reverse order.
#[derive(Default)]
struct Built {
    cgroup: Option<PathBuf>,
    swap: Vec<swap::Undo>,
}

impl Built {
    /// Sets up the swap device and the cgroup. Returns the paths of the cgroup and of the device.
    fn build(&mut self, setup: &Setup) -> Result<(PathBuf, PathBuf), Failure> {
        let device = swap::switch_on(&setup.backing, setup.swap_bytes, &mut self.swap)?;
        let directory = cgroup::create(setup.memory_bytes).map_err(Failure::new)?;
        self.cgroup = Some(directory.clone());
        Ok((directory, device))
    }

    /// Undoes every step, even if another one fails. Returns what could not be undone.
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

/// Runs the guard to its end.
pub fn guard(args: &GuardArgs) -> Result<u8, Failure> {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))
            .map_err(|error| Failure::new(format!("signal handlers: {error}")))?;
    }
    let mut built = Built::default();
    match built.build(&args.setup()) {
        Ok((cgroup, device)) => say(&format!("ready {} {}", cgroup.display(), device.display())),
        Err(failure) => {
            let left = built.take_back();
            let also = if left.is_empty() { String::new() } else { format!("; and not undone: {}", left.join("; ")) };
            say(&format!("failed {failure}{also}"));
            return Ok(0);
        }
    }
    // Nobody writes to this pipe. The read returns when its last writing end is closed.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let left = built.take_back();
    if left.is_empty() {
        say("clean");
        return Ok(0);
    }
    say(&format!("left {}", left.join("; ")));
    Ok(ExitStatus::Failed.code())
}

/// Writes one line to the parent. The parent may be gone, so errors are ignored.
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
        let zram = [Backing::Zram(Codec::Lz4), Backing::Zram(Codec::Zstd)];
        for backing in [Backing::Directory("/a b".into()), Backing::Ram].into_iter().chain(zram) {
            let setup = Setup { memory_bytes: 7, swap_bytes: 9, backing };
            let line = std::iter::once("x".into()).chain(to_arguments(&setup));
            let args = Line::try_parse_from(line).expect("own arguments parse").args;
            assert_eq!(args.setup(), setup);
        }
    }
}
