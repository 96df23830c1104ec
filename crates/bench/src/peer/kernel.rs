//! `folioswap __kernel`: runs a program under kernel swap, in a memory cgroup. Comparisons of whole programs use it.

use super::{Backing, Peer, Setup};
use clap::Args;
use folioswap_command::args::{memory, size};
use folioswap_command::exit::{End, Failure};
use folioswap_command::supervise::Supervisor;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Finds the file of a program, as a shell would.
pub type Find = fn(&OsStr) -> Result<PathBuf, Failure>;

/// Arguments of the hidden `__kernel`.
#[derive(Args, Debug)]
pub struct KernelArgs {
    /// Limit of the memory cgroup.
    #[arg(long, value_parser = memory)]
    memory: u64,
    /// Size of the swap device.
    #[arg(long, value_parser = size)]
    swap_size: u64,
    /// Directory of the swap file; `ram` means a loop device backed by memory, `zram` a zram. Default:
    /// $FOLIOSWAP_DIR, else /var/tmp.
    #[arg(long)]
    swap_dir: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true, num_args = 1..)]
    program: Vec<OsString>,
}

/// Runs the program under kernel swap.
pub fn kernel(args: &KernelArgs, find: Find) -> Result<u8, Failure> {
    let file = find(&args.program[0])?;
    let backing = match &args.swap_dir {
        Some(directory) if directory == Path::new("ram") => Backing::Ram,
        Some(directory) if directory == Path::new("zram") => Backing::Zram(folioswap::Codec::Lz4),
        Some(directory) => Backing::Directory(directory.clone()),
        None => Backing::Directory(folioswap::device::default_directory()),
    };
    let mut supervisor = Supervisor::new()?;
    let peer = Peer::start(&Setup { memory_bytes: args.memory, swap_bytes: args.swap_size, backing })?;
    let status = supervisor.run(&mut peer.command(&file, &args.program)?, |_| ());
    peer.stop()?;
    status.map(End::status)
}
