//! Checks that the swap devices of a command line can be used, before the program starts and without leaving a trace.
//!
//! The engine checks them again when it opens them inside the program. Here each cause is reported with its own
//! sentence before anything has started. For a path that does not exist yet, an unnamed file
//! (O_TMPFILE) is opened in its directory.

use crate::args::PagingOptions;
use crate::exit::Failure;
use folioswap::device::KeptDevice;
use folioswap::{DeviceSpec, SwapDevice, Topology};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// The smallest useful device: one folio of 2 MiB.
const SMALLEST_BYTES: u64 = 2 << 20;

/// Returns the devices with absolute paths if each can be used. Without any device, checks the default directory.
pub fn check_all(options: &PagingOptions) -> Result<Vec<SwapDevice>, Failure> {
    let topology = options.topology()?.unwrap_or_else(Topology::of_machine);
    if options.swap.len() > folioswap::MAX_DEVICES {
        let message = format!("{} swap devices: {} can be given", options.swap.len(), folioswap::MAX_DEVICES);
        return Err(Failure::new(message));
    }
    if options.swap.is_empty() {
        check_directory(&folioswap::device::default_directory())?;
    }
    options.swap.iter().map(|device| check_device(device, &topology)).collect()
}

/// Opens the devices that the processes of a program cannot each open for themselves, and records in `swap` how to
/// find them. They stay open as long as the returned values live.
pub fn keep(swap: &mut [SwapDevice]) -> Result<Vec<KeptDevice>, Failure> {
    let mut kept = Vec::new();
    for device in swap {
        if let Some(opened) = KeptDevice::open(device)? {
            device.shared = Some(opened.share());
            kept.push(opened);
        }
    }
    Ok(kept)
}

fn check_device(device: &SwapDevice, topology: &Topology) -> Result<SwapDevice, Failure> {
    folioswap::device::check_node(device, topology)?;
    Ok(SwapDevice { spec: check(&device.spec, device.force)?, ..device.clone() })
}

fn check(spec: &DeviceSpec, force: bool) -> Result<DeviceSpec, Failure> {
    match spec {
        DeviceSpec::Ram { size } | DeviceSpec::Zram { size, .. } => {
            at_least_one_folio(&spec.to_string(), Some(*size))?;
            if matches!(spec, DeviceSpec::Zram { .. }) && *size < folioswap::device::SMALLEST_ZRAM_BYTES {
                let message = format!("swap {spec}: compressed RAM takes at least 8M");
                return Err(Failure::new(message));
            }
            let available = available_memory().unwrap_or(u64::MAX);
            if *size > available {
                return Err(Failure::new(format!(
                    "swap {spec} is more than the {available} bytes of memory that are free"
                )));
            }
            Ok(spec.clone())
        }
        DeviceSpec::File { path, size } => {
            let shown = path.display().to_string();
            at_least_one_folio(&shown, *size)?;
            let path = std::path::absolute(path).map_err(|error| unusable(&shown, &error.to_string()))?;
            check_path(&path, *size, force)?;
            Ok(DeviceSpec::File { path, size: *size })
        }
    }
}

fn at_least_one_folio(shown: &str, size: Option<u64>) -> Result<(), Failure> {
    match size {
        Some(size) if size < SMALLEST_BYTES => {
            Err(Failure::new(format!("swap {shown}: {size} bytes are too few; give at least 2M")))
        }
        _ => Ok(()),
    }
}

fn check_path(path: &Path, size: Option<u64>, force: bool) -> Result<(), Failure> {
    let shown = path.display().to_string();
    let here = match rustix::fs::stat(path) {
        Err(Errno::NOENT) => None,
        Err(error) => return Err(unusable(&shown, &error.to_string())),
        Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
    };
    match here {
        None => {
            let directory = path.parent().unwrap_or(Path::new("/"));
            let file = open_unnamed(directory, &shown)?;
            room(&file, &shown, size.unwrap_or(SMALLEST_BYTES))
        }
        Some(FileType::Directory) => {
            Err(unusable(&shown, &format!("is a directory; name a file in it, as in {shown}/swap")))
        }
        Some(_) => folioswap::device::check_block_device(path, size, force).map_err(Failure::from),
    }
}

fn check_directory(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display().to_string();
    let file = open_unnamed(directory, &shown)?;
    room(&file, &shown, SMALLEST_BYTES)
}

fn open_unnamed(directory: &Path, shown: &str) -> Result<std::os::fd::OwnedFd, Failure> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map_err(|error| refused(directory, shown, error))
}

fn refused(path: &Path, shown: &str, error: Errno) -> Failure {
    match error {
        Errno::INVAL if is_tmpfs(path) => {
            unusable(shown, "lies on tmpfs, which has no direct I/O here; use ram:SIZE instead")
        }
        Errno::INVAL | Errno::OPNOTSUPP => {
            unusable(shown, "its file system has no direct I/O (O_DIRECT); use another disk")
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => unusable(shown, &format!("is not writable: {error}")),
        Errno::NOENT | Errno::NOTDIR => unusable(shown, "its directory does not exist"),
        Errno::NOSPC => Failure::new(format!("swap {shown}: the disk is full")),
        _ => unusable(shown, &error.to_string()),
    }
}

fn is_tmpfs(path: &Path) -> bool {
    // TMPFS_MAGIC. The type of the field differs between architectures.
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == 0x0102_1994)
}

/// Fails if the disk has less than `bytes` free.
fn room(file: &std::os::fd::OwnedFd, shown: &str, bytes: u64) -> Result<(), Failure> {
    let Ok(stat) = rustix::fs::fstatvfs(file) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < bytes {
        return Err(Failure::new(format!("swap {shown}: {bytes} bytes are wanted, but the disk has only {free} free")));
    }
    Ok(())
}

fn unusable(shown: &str, why: &str) -> Failure {
    Failure::new(format!("swap {shown}: {why}"))
}

/// MemAvailable in bytes.
pub fn available_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// A field of /proc/meminfo in bytes; `name` includes the colon.
pub fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a device is refused; empty if it is not.
    fn refusal_of(spec: &str) -> String {
        let device: SwapDevice = spec.parse().expect("a device");
        let topology = "node 0".parse().expect("a topology");
        check_device(&device, &topology).map_or_else(|failure| failure.message, |_| String::new())
    }

    #[test]
    fn causes_are_told_apart() {
        let new = std::env::temp_dir().join("no-such-file-yet").display().to_string();
        for spec in [&format!("{new}:4M"), "ram:2M", "zram:8M,algo=zstd", "ram:2M,prio=7,node=0"] {
            assert_eq!(refusal_of(spec), "", "{spec}");
        }
        for (spec, reason) in [
            ("/usr", "is a directory"),
            ("/no/such/dir/swap", "its directory does not exist"),
            ("/proc/swap", "swap /proc/swap: "),
            ("/dev/null", "no block device"),
            ("Cargo.toml", "exists and is no block device"),
            (&format!("{new}:4K"), "too few"),
            (&format!("{new}:900T"), "free"),
            ("ram:900T", "free"),
            ("zram:4M", "at least 8M"),
            ("ram:2M,node=1", "NUMA node"),
        ] {
            let said = refusal_of(spec);
            assert!(said.contains(reason) && said.lines().count() == 1, "{spec}: {said}");
        }
    }

    #[test]
    fn nothing_is_left_behind() {
        let path = std::env::temp_dir().join(format!("folioswap-check-{}", std::process::id()));
        assert_eq!(refusal_of(&format!("{}:4M", path.display())), "");
        assert!(!path.exists());
    }
}
