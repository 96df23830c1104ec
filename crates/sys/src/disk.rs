//! What the kernel reports about the disk below a file.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fstat;
use crate::unallocated::{paths_in, real_path};

/// Name prefixes of disks that are not rotational, whatever they report: virtio, Xen, NVMe.
const NEVER: [&str; 3] = ["vd", "xvd", "nvme"];

/// Vendors of SCSI disks that hypervisors emulate.
const VIRTUAL: [&str; 6] = ["QEMU", "VMware", "Msft", "Google", "VBOX", "ORACLE"];

/// How deep devices may be stacked.
pub(crate) const DEPTH: usize = 8;

/// The numbers of disks that were asked about, and the answers. A forked child asks about the same, and may have a
/// seccomp filter that refuses to read.
struct Answers([AtomicU64; 8]);

impl Answers {
    const fn new() -> Self {
        Answers([const { AtomicU64::new(0) }; 8])
    }

    /// `ask` gives the answer for a disk's directory.
    fn of(&self, fd: RawFd, ask: impl FnOnce(&Path) -> u32) -> u32 {
        let Some(device) = number(fd) else { return 0 };
        let name = u64::from(libc::major(device)) << 20 | u64::from(libc::minor(device)) & 0xf_ffff;
        let kept = || self.0.iter().map(|answer| answer.load(Ordering::Relaxed));
        if let Some(known) = kept().find(|kept| name != 0 && kept >> u32::BITS == name) {
            return known as u32;
        }
        let answer = ask(&entry_of(device));
        let place = kept().position(|kept| kept == 0).unwrap_or(0);
        self.0[place].store(name << u32::BITS | u64::from(answer), Ordering::Relaxed);
        answer
    }
}

/// Whether a block device, or the one that holds a file, is a rotational disk. `false` if this is unknown: file systems
/// without a device of their own, virtual disks.
pub fn is_rotational(fd: RawFd) -> bool {
    static ANSWERS: Answers = Answers::new();
    ANSWERS.of(fd, |entry| turns(entry, DEPTH).into()) != 0
}

/// The largest request that a block device, or the one that holds a file, took when it was first asked about, in bytes.
/// The kernel splits larger ones. `None` if this is unknown.
pub fn most_bytes_at_once(fd: RawFd) -> Option<usize> {
    static ANSWERS: Answers = Answers::new();
    let kib = ANSWERS.of(fd, |entry| {
        let said = real_path(entry).and_then(|found| said_of_disk(&found, "queue/max_sectors_kb"));
        said.and_then(|kib| kib.parse().ok()).unwrap_or(0)
    });
    (kib != 0).then_some(kib as usize * 1024)
}

/// Reads an attribute of a disk, for the disk itself or one of its partitions, whose directory is inside the disk's.
fn said_of_disk(found: &Path, what: &str) -> Option<String> {
    let said = found.ancestors().take(2).find_map(|at| fs::read_to_string(at.join(what)).ok())?;
    Some(said.trim().to_string())
}

/// The devices below a device: the components of a mapped device, or the disk that holds a loop device's file. `None`
/// if this is unknown: the loop device's file has no name any more.
pub(crate) fn below(found: &Path) -> Option<Vec<PathBuf>> {
    if let Ok(file) = fs::read(found.join("loop/backing_file")) {
        let file = fs::metadata(OsStr::from_bytes(file.strip_suffix(b"\n").unwrap_or(&file))).ok()?;
        return Some(vec![entry_of(if file.file_type().is_block_device() { file.rdev() } else { file.dev() })]);
    }
    Some(paths_in(&found.join("slaves")))
}

/// The sysfs directory of a block device, or of the one that holds a file.
pub(crate) fn entry(fd: RawFd) -> Option<PathBuf> {
    number(fd).map(entry_of)
}

/// The number of a block device, or of the one that holds a file.
fn number(fd: RawFd) -> Option<libc::dev_t> {
    let found = fstat(fd).ok()?;
    Some(if found.st_mode & libc::S_IFMT == libc::S_IFBLK { found.st_rdev } else { found.st_dev })
}

fn entry_of(device: libc::dev_t) -> PathBuf {
    format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device)).into()
}

/// The same for a device's sysfs directory, or a link to it.
fn turns(entry: &Path, depth: usize) -> bool {
    let Some(found) = real_path(entry) else { return false };
    // A partition's directory is inside its disk's.
    let Some(disk) = found.ancestors().take(2).find(|at| at.join("queue/rotational").exists()) else { return false };
    let name = disk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let said = fs::read_to_string(disk.join("queue/rotational")).unwrap_or_default();
    let vendor = fs::read_to_string(disk.join("device/vendor")).unwrap_or_default();
    if said.trim() != "1"
        || NEVER.iter().any(|never| name.starts_with(never))
        || VIRTUAL.iter().any(|made_up| vendor.trim_start().starts_with(made_up))
    {
        return false;
    }
    let Some(below) = below(disk) else { return false };
    below.is_empty() || depth > 0 && below.iter().any(|below| turns(below, depth - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A disk as sysfs shows it.
    fn disk(root: &Path, name: &str, rotational: &str, vendor: &str) -> PathBuf {
        let at = root.join(name);
        for (file, text) in [("queue/rotational", rotational), ("device/vendor", vendor)] {
            fs::create_dir_all(at.join(file).parent().unwrap()).unwrap();
            fs::write(at.join(file), text).unwrap();
        }
        at
    }

    #[test]
    fn disks_partitions_and_what_lies_on_them() {
        let root = std::env::temp_dir().join(format!("folioswap-disk-{}", std::process::id()));
        let (sda, vda) = (disk(&root, "sda", "1\n", "ATA     "), disk(&root, "vda", "1\n", ""));
        let partition = sda.join("sda1");
        fs::create_dir_all(&partition).unwrap();
        assert!(turns(&sda, DEPTH) && turns(&partition, DEPTH) && !turns(&vda, DEPTH));
        assert!(!turns(&disk(&root, "sdb", "0\n", "ATA"), DEPTH) && !turns(&disk(&root, "sdc", "1\n", "QEMU"), DEPTH));
        assert!(!turns(&root.join("nothing"), DEPTH));
        for (name, below, expected) in [("dm-0", &partition, true), ("dm-1", &vda, false)] {
            let mapped = disk(&root, name, "1\n", "");
            fs::create_dir_all(mapped.join("slaves")).unwrap();
            symlink(below, mapped.join("slaves/below")).unwrap();
            assert_eq!(turns(&mapped, DEPTH), expected, "{name}");
        }
        let (file, looped) = (root.join("file"), disk(&root, "loop0", "1\n", ""));
        fs::create_dir_all(looped.join("loop")).unwrap();
        fs::write(&file, "").unwrap();
        fs::write(looped.join("loop/backing_file"), format!("{}\n", file.display())).unwrap();
        assert_eq!(turns(&looped, DEPTH), is_rotational(fs::File::open(&file).unwrap().as_raw_fd()), "its file's disk");
        fs::remove_file(&file).unwrap();
        assert!(!turns(&looped, DEPTH), "nobody knows");
        fs::write(sda.join("queue/max_sectors_kb"), "1280\n").unwrap();
        for at in [&sda, &partition] {
            assert_eq!(said_of_disk(at, "queue/max_sectors_kb").as_deref(), Some("1280"));
        }
        assert_eq!(said_of_disk(&vda, "queue/max_sectors_kb"), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_has_no_disk_does_not_turn() {
        assert!(!is_rotational(-1) && most_bytes_at_once(-1).is_none());
        assert!(!is_rotational(fs::File::open("/proc/self/status").unwrap().as_raw_fd()));
    }
}
