//! Checks that swap devices can be used. Those of sizes and nodes come before a device is opened, too; [`all`] makes
//! the others ahead of time, without leaving a trace.

use std::path::{Path, PathBuf};

use folioswap_core::Order;
use folioswap_sys::memory::available_ram;

use super::zram::MAX_BYTES;
use super::{DIRECTORY_VARIABLE, DeviceSpec, FileDevice, SwapDevice, default_directory, too_small, unusable};
use crate::config::error::Error;
use crate::config::limits::{MAX_DEVICE_BYTES, MAX_DEVICES};
use crate::config::size::Bytes;
use crate::device::topology::Topology;

/// The smallest device: one folio of 2 MiB.
const LEAST_BYTES: u64 = Order::HUGE.bytes() as u64;

/// The smallest memory of a device in compressed RAM.
const LEAST_ZRAM_BYTES: u64 = 8 << 20;

/// Checks that each device could be opened now; without any, that a file could be made in the default directory.
/// Returns the devices with absolute paths.
pub(crate) fn all(devices: &[SwapDevice], topology: &Topology) -> Result<Vec<SwapDevice>, Error> {
    if devices.len() > MAX_DEVICES {
        return Err(Error::TooManyDevices(MAX_DEVICES));
    }
    if devices.is_empty() {
        FileDevice::check_directory(&default_directory()).map_err(with_variable)?;
    }
    let mut in_ram = 0;
    devices.iter().map(|device| one(device, topology, &mut in_ram)).collect()
}

/// What is wrong with the default directory, with the variable that names it.
fn with_variable(error: Error) -> Error {
    let longer = |reason| format!("{reason} ({DIRECTORY_VARIABLE} names the directory)");
    match error {
        Error::SwapUnusable { path, reason, number } => unusable(&path, longer(reason), number),
        Error::SwapTooSmall { path, reason, number } => too_small(&path, longer(reason), number),
        other => other,
    }
}

/// `in_ram`: the bytes of the devices in RAM so far.
fn one(wanted: &SwapDevice, topology: &Topology, in_ram: &mut u64) -> Result<SwapDevice, Error> {
    node_and_least(wanted, topology)?;
    let spec = match &wanted.spec {
        spec @ (DeviceSpec::Ram { size } | DeviceSpec::Zram { size, .. }) => {
            let (available, before) = (available_ram(), *in_ram);
            *in_ram = before.saturating_add(*size);
            if *in_ram > available {
                let others = if before > 0 { "with those in RAM before it, " } else { "" };
                let reason = format!("{others}is more than the {} of memory that are free", Bytes(available));
                return Err(too_small(Path::new(&spec.to_string()), reason, Some(libc::ENOMEM)));
            }
            spec.clone()
        }
        DeviceSpec::File { path, size } => {
            let path = absolute(path)?;
            FileDevice::check(&path, *size, wanted.force)?;
            DeviceSpec::File { path, size: *size }
        }
    };
    stated_most(&spec)?;
    Ok(SwapDevice { spec, ..wanted.clone() })
}

/// The same device, with an absolute path: the program may change its directory before a child opens such a device.
pub(crate) fn with_absolute_path(wanted: SwapDevice) -> Result<SwapDevice, Error> {
    match wanted.spec {
        DeviceSpec::File { path, size } => {
            Ok(SwapDevice { spec: DeviceSpec::File { path: absolute(&path)?, size }, ..wanted })
        }
        spec => Ok(SwapDevice { spec, ..wanted }),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| unusable(path, error.to_string(), error.raw_os_error()))
}

/// Checks that the stated node exists, and that the stated size is large enough.
pub(super) fn node_and_least(wanted: &SwapDevice, topology: &Topology) -> Result<(), Error> {
    let (path, stated) = stated(&wanted.spec);
    if let Some(node) = wanted.node.filter(|&node| !topology.has(node)) {
        return Err(unusable(Path::new(&wanted.spec.to_string()), topology.describe_missing(node), None));
    }
    match stated {
        Some((size, least, _)) if size < least => {
            Err(too_small(&path, format!("{} are too few: give at least {}", Bytes(size), Bytes(least)), None))
        }
        _ => Ok(()),
    }
}

/// Refuses a device whose stated size is larger than the engine can use.
pub(super) fn stated_most(spec: &DeviceSpec) -> Result<(), Error> {
    let (path, stated) = stated(spec);
    stated.map_or(Ok(()), |(size, _, most_bytes)| most(&path, size, most_bytes))
}

/// What a device is called in messages, and its stated size with the least and the most that it may be.
fn stated(spec: &DeviceSpec) -> (PathBuf, Option<(u64, u64, u64)>) {
    let shown = PathBuf::from(spec.to_string());
    match spec {
        DeviceSpec::File { path, size } => (path.clone(), size.map(|size| (size, LEAST_BYTES, MAX_DEVICE_BYTES))),
        DeviceSpec::Ram { size } => (shown, Some((*size, LEAST_BYTES, MAX_DEVICE_BYTES))),
        DeviceSpec::Zram { size, .. } => (shown, Some((*size, LEAST_ZRAM_BYTES, MAX_BYTES))),
    }
}

/// Refuses a device that is larger than the engine can use, rather than silently use a part of it.
pub(super) fn most(path: &Path, size_bytes: u64, most_bytes: u64) -> Result<(), Error> {
    if size_bytes > most_bytes {
        return Err(Error::SwapTooLarge { path: path.into(), size_bytes, most_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a device is refused; empty if it is not.
    fn refusal_of(spec: &str) -> String {
        let device: SwapDevice = spec.parse().unwrap();
        let topology = "node 0".parse().unwrap();
        all(&[device], &topology).map_or_else(|error| error.to_string(), |_| String::new())
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
            ("/etc/passwd/swap", "a part of its path is no directory"),
            ("/proc/swap", "swap /proc/swap: its file system has no direct I/O"),
            ("/dev/null", "no block device"),
            ("Cargo.toml", "exists and is no block device"),
            (&format!("{new}:4K"), "4K are too few: give at least 2M"),
            (&format!("{new}:900T"), "free"),
            ("ram:4K", "at least 2M"),
            ("ram:900T", "free"),
            ("zram:4M", "at least 8M"),
            ("zram:900T", "free"),
            ("ram:2M,node=1", "NUMA node"),
        ] {
            let said = refusal_of(spec);
            assert!(said.contains(reason) && said.lines().count() == 1, "{spec}: {said}");
        }
        let many: Vec<SwapDevice> = vec!["ram:2M".parse().unwrap(); MAX_DEVICES + 1];
        assert!(matches!(all(&many, &"node 0".parse().unwrap()), Err(Error::TooManyDevices(MAX_DEVICES))));
    }

    #[test]
    fn devices_in_ram_are_added_up() {
        let size = available_ram() / 5 * 3;
        let devices = ["ram", "zram"].map(|kind| format!("{kind}:{size}").parse().unwrap());
        let topology = "node 0".parse().unwrap();
        assert!(all(&devices[..1], &topology).is_ok());
        let said = all(&devices, &topology).unwrap_err().to_string();
        assert!(said.starts_with("swap zram:") && said.contains("with those in RAM before it"), "{said}");
    }

    #[test]
    fn nothing_is_left_behind() {
        let path = std::env::temp_dir().join(format!("folioswap-check-{}", std::process::id()));
        assert_eq!(refusal_of(&format!("{}:4M", path.display())), "");
        assert!(!path.exists());
    }

    #[test]
    fn paths_become_absolute() {
        let checked = all(&["no-such-file-yet:4M".parse().unwrap()], &"node 0".parse().unwrap()).unwrap();
        assert!(matches!(&checked[0].spec, DeviceSpec::File { path, .. } if path.is_absolute()), "{checked:?}");
    }
}
