//! A swap device for the kernel: a file on disk, a loop device backed by memory, or a zram. Runs the commands that
//! create it and switch it on and off.

use super::system::command;
use super::{Backing, zram};
use folioswap_command::exit::Failure;
use folioswap_sys::said;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How to undo one step of the set-up.
pub enum Undo {
    /// Switch this swap device off.
    Swap(PathBuf),
    /// Remove this file.
    File(PathBuf),
    /// Detach this loop device. Its memory is freed with the descriptor.
    Loop(PathBuf, OwnedFd),
    /// Remove this zram.
    Zram(String),
}

impl Undo {
    /// Undoes the step.
    pub fn take_back(self) -> Result<(), String> {
        match self {
            Undo::Swap(device) => command("swapoff", &[device.as_ref()]).map(drop),
            Undo::File(path) => std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display())),
            Undo::Loop(device, _memory) => command("losetup", &["-d".as_ref(), device.as_ref()]).map(drop),
            Undo::Zram(name) => zram::remove(&name),
        }
    }
}

/// Creates the device and switches it on with the highest priority. Returns its path. Pushes each completed step on
/// `undo`, also if a later step fails.
pub fn switch_on(backing: &Backing, bytes: u64, undo: &mut Vec<Undo>) -> Result<PathBuf, Failure> {
    refuse_company()?;
    let device = match backing {
        Backing::Directory(directory) => file(directory, bytes, undo)?,
        Backing::Ram => loop_device(bytes, undo)?,
        Backing::Zram(codec) => zram::create(*codec, bytes, |name| undo.push(Undo::Zram(name.to_owned())))?,
    };
    command("mkswap", &[device.as_ref()]).map_err(Failure::new)?;
    command("swapon", &["-p".as_ref(), "32767".as_ref(), device.as_ref()]).map_err(Failure::new)?;
    undo.push(Undo::Swap(device.clone()));
    Ok(device)
}

fn file(directory: &Path, bytes: u64, undo: &mut Vec<Undo>) -> Result<PathBuf, Failure> {
    let path = directory.join(format!(".folioswap-kernel-{}.swap", std::process::id()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| Failure::new(format!("swap file {} was not made: {error}", path.display())))?;
    undo.push(Undo::File(path.clone()));
    allocate(&descriptor, bytes).map_err(|error| no_room(&path.display().to_string(), bytes, error))?;
    Ok(path)
}

/// A loop device backed by memory that the kernel never swaps out. On swappable memory (a memfd or a plain tmpfs)
/// reclaim would swap out pages of the swap device to the device itself. That has hung a machine for good.
fn loop_device(bytes: u64, undo: &mut Vec<Undo>) -> Result<PathBuf, Failure> {
    let directory = std::env::temp_dir().join(format!(".folioswap-kernel-{}", std::process::id()));
    std::fs::create_dir(&directory).map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    let memory = file_in_memory(&directory, bytes);
    // The file and the mount have no name by now. Both are freed with the descriptor.
    let removed =
        std::fs::remove_dir(&directory).map_err(|error| Failure::new(format!("{}: {error}", directory.display())));
    let memory = memory.and_then(|memory| removed.map(|()| memory))?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
    let device = command("losetup", &["--find".as_ref(), "--show".as_ref(), path.as_ref()]).map_err(Failure::new)?;
    let device = PathBuf::from(device.trim());
    undo.push(Undo::Loop(device.clone(), memory));
    Ok(device)
}

fn file_in_memory(directory: &Path, bytes: u64) -> Result<OwnedFd, Failure> {
    let options = format!("noswap,mode=0700,size={}", bytes + (1 << 20));
    let mount =
        ["-t".as_ref(), "tmpfs".as_ref(), "-o".as_ref(), options.as_ref(), "tmpfs".as_ref(), directory.as_ref()];
    command("mount", &mount)
        .map_err(|message| Failure::new(format!("memory that is never swapped needs Linux 6.4 or later: {message}")))?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let made = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| Failure::new(format!("memory for the loop device was not made: {error}")))
        // Allocates every page now. Later, the loop device would charge them to the cgroup of the program that swaps.
        .and_then(|memory| allocate(&memory, bytes).map(|()| memory).map_err(|error| no_room("memory", bytes, error)));
    command("umount", &["--lazy".as_ref(), directory.as_ref()]).map_err(Failure::new)?;
    made
}

/// Rejects a machine with swap already on. The kernel may swap to those devices too, and the result would not be of
/// this device alone.
fn refuse_company() -> Result<(), Failure> {
    let swaps = said::read("/proc/swaps").unwrap_or_default();
    let names: Vec<_> = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let message = format!("the kernel swaps to {} already: switch that off first (swapoff)", names.join(", "));
    Err(Failure::new(message))
}

fn allocate(descriptor: &OwnedFd, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(descriptor, FallocateFlags::empty(), 0, bytes)
}

fn no_room(place: &str, bytes: u64, error: rustix::io::Errno) -> Failure {
    Failure::new(format!("{bytes} bytes of swap for the kernel do not fit in {place}: {error}"))
}
