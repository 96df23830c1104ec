//! NUMA nodes: their CPUs and disks, and memory bound to a node.
//!
//! This reads the kernel's files itself. hwloc would load a C library into every program for three small files, and the
//! crates that read them are immature.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use crate::disk;

/// Upper bound for the numbers of nodes and CPUs, above what Linux can be built for.
const MOST: usize = 8192;

/// `mbind` policy: allocate from this node, and from others only when it has no memory left.
const MPOL_PREFERRED: libc::c_long = 1;

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// The numbers of its CPUs.
    pub cpus: Vec<usize>,
}

/// This machine's nodes in order of their numbers. Empty if the kernel does not report any.
pub fn nodes() -> Vec<Node> {
    nodes_in(Path::new("/sys/devices/system/node"))
}

fn nodes_in(directory: &Path) -> Vec<Node> {
    let Ok(found) = fs::read_dir(directory) else { return Vec::new() };
    let node = |name: &str| {
        let number = name.strip_prefix("node")?.parse().ok().filter(|&number| number < MOST)?;
        let cpus = cpu_list(fs::read_to_string(directory.join(name).join("cpulist")).ok()?.trim())?;
        Some(Node { number, cpus })
    };
    let mut nodes: Vec<_> = found.flatten().filter_map(|entry| node(entry.file_name().to_str()?)).collect();
    nodes.sort_unstable_by_key(|node| node.number);
    nodes
}

/// Parses a CPU list in the kernel's format: `0-3,8`. `None` if it is malformed.
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The node of a block device, or of the one that holds a file, if the kernel knows it.
pub fn node_of_disk(fd: RawFd) -> Option<usize> {
    node_of(&disk::entry(fd)?, disk::DEPTH)
}

/// The same for a device's sysfs directory. The bus that the device is attached to reports the node. A stacked device
/// has the node of the devices below it, if they agree.
fn node_of(entry: &Path, depth: usize) -> Option<usize> {
    let found = crate::unallocated::real_path(entry)?;
    let said = |at: &Path| {
        fs::read_to_string(at.join("numa_node")).or_else(|_| fs::read_to_string(at.join("device/numa_node")))
    };
    if let Some(number) = found.ancestors().find_map(|at| said(at).ok()) {
        return number.trim().parse().ok().filter(|&number| number < MOST); // -1: none
    }
    let below = disk::below(&found)?.into_iter();
    let mut nodes = below.map(|below| if depth > 0 { node_of(&below, depth - 1) } else { None });
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// Binds a range that has no memory yet to a node: its memory comes from that node as long as there is some. (With a
/// strict policy the OOM killer could end a process whose node is full although others have memory.)
///
/// # Errors
/// EINVAL: there is no such node, or it has no memory. EPERM: a container's filter. ENOSYS: a kernel without NUMA.
pub fn bind(addr: usize, len: usize, node: usize) -> io::Result<()> {
    let mut mask = vec![0u64; node / 64 + 1];
    mask[node / 64] = 1 << (node % 64);
    let nr_bits = mask.len() * 64 + 1; // the kernel subtracts one
    // SAFETY: the kernel reads `nr_bits` - 1 bits of the mask, which has that many. The range belongs to its owner (see
    // `memory`), and only the source of its future memory changes.
    crate::check(unsafe { libc::syscall(libc::SYS_mbind, addr, len, MPOL_PREFERRED, mask.as_ptr(), nr_bits, 0usize) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use std::os::unix::fs::symlink;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-3,8, 10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list(""), Some(Vec::new()));
        for bad in ["x", "3-1", "1,", "0-99999", "-1", "1-2-3"] {
            assert_eq!(cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn nodes_and_disks_as_sysfs_shows_them() {
        let root = std::env::temp_dir().join(format!("folioswap-numa-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), text).unwrap();
        };
        write("node/node1/cpulist", "2-3\n");
        write("node/node0/cpulist", "0-1\n");
        write("node/node10/cpulist", "\n");
        write("node/possible", "0-1\n");
        let expected = [(0, vec![0, 1]), (1, vec![2, 3]), (10, vec![])].map(|(number, cpus)| Node { number, cpus });
        assert_eq!(nodes_in(&root.join("node")), expected);
        assert_eq!(nodes_in(&root.join("none")), []);
        write("pci/numa_node", "1\n");
        write("pci/nvme0n1/nvme0n1p1/partition", "1\n");
        write("other/numa_node", "-1\n");
        write("other/vda/size", "8\n");
        let partition = root.join("pci/nvme0n1/nvme0n1p1");
        assert_eq!((node_of(&partition, 8), node_of(&root.join("other/vda"), 8)), (Some(1), None));
        for (name, below, expected) in [("dm-0", &partition, Some(1)), ("dm-1", &root.join("other/vda"), None)] {
            fs::create_dir_all(root.join(name).join("slaves")).unwrap();
            symlink(below, root.join(name).join("slaves/below")).unwrap();
            assert_eq!(node_of(&root.join(name), 8), expected, "{name}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn this_machine() {
        assert_eq!(node_of_disk(-1), None);
        let memory = memory::Reservation::new(2 << 20, 4096).unwrap();
        let Some(node) = nodes().into_iter().find(|node| !node.cpus.is_empty()) else {
            println!("SKIP: the kernel names no NUMA node");
            return;
        };
        if let Err(error) = bind(memory.addr(), memory.len(), node.number) {
            println!("SKIP: memory cannot be bound here: {error}");
        }
        assert!(bind(memory.addr(), memory.len(), MOST - 1).is_err(), "there is no such node");
    }
}
