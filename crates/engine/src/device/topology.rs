//! NUMA nodes, with their CPUs and devices: the machine's, read when an arena is built, or stated in plain text:
//! ```text
//! # two nodes of two CPUs, one with a device
//! node 0 cpus 0-1
//! node 1 cpus 2-3
//! device /mnt/a/swap node 0
//! ```
//! A node may have no CPUs. A CPU on no node, or added later, counts as on the first. Devices are named as for
//! `--swap`, by absolute path or as in ram:4G. A device that is not named in a stated topology is on no node, whatever
//! the kernel reports.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use folioswap_core::{CpuId, NodeId};
use folioswap_sys::numa;

use crate::config::error::Error;
use crate::config::size::{Bytes, SizeError};
use crate::device::DeviceSpec;

/// Node numbers are below this.
const MOST_NODES: u32 = 1024;

/// A file that states a topology has at most so many bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The NUMA nodes of a machine, their CPUs, and devices known to be on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// By number; at least one.
    nodes: Vec<NodeId>,
    /// By CPU number.
    node_of_cpu: Vec<Option<NodeId>>,
    devices: Vec<(String, NodeId)>,
    is_stated: bool,
}

/// Why a text is not a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopologyError(String);

impl Topology {
    fn empty(is_stated: bool) -> Topology {
        Topology { nodes: Vec::new(), node_of_cpu: Vec::new(), devices: Vec::new(), is_stated }
    }

    /// The machine's topology, as the kernel reports it, or one node if it reports none.
    pub fn of_machine() -> Topology {
        let mut topology = Topology::empty(false);
        for node in numa::nodes() {
            // Contradictions are left out.
            let _ = topology.add_node(node.number as u32, &node.cpus);
        }
        if topology.nodes.is_empty() {
            topology.nodes.push(NodeId::new(0));
        }
        topology
    }

    /// A stated topology, from a file.
    ///
    /// # Errors
    /// [`Error::Topology`]: the file cannot be read, or is not a topology.
    pub fn from_file(path: &Path) -> Result<Topology, Error> {
        let wrong = |reason: String| Error::Topology { path: path.into(), reason };
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
        if read.map_err(|error| wrong(error.to_string()))? as u64 > MOST_BYTES {
            return Err(wrong(format!("it has more than {}", Bytes(MOST_BYTES))));
        }
        text.parse().map_err(|error: TopologyError| wrong(error.0))
    }

    fn add_node(&mut self, number: u32, cpus: &[usize]) -> Result<(), String> {
        let node = NodeId::new(number);
        if number >= MOST_NODES {
            return Err(format!("nodes have numbers below {MOST_NODES}"));
        }
        if self.has(node) {
            return Err(format!("node {number} is named twice"));
        }
        for &cpu in cpus {
            if let Some(Some(other)) = self.node_of_cpu.get(cpu) {
                return Err(format!("CPU {cpu} is on node {} already", other.get()));
            }
        }
        for &cpu in cpus {
            self.node_of_cpu.resize(self.node_of_cpu.len().max(cpu + 1), None);
            self.node_of_cpu[cpu] = Some(node);
        }
        self.nodes.push(node);
        self.nodes.sort_unstable();
        Ok(())
    }

    fn read_line(&mut self, line: &str) -> Result<(), String> {
        let (what, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number of a node"));
        match what {
            "node" => {
                let (node, cpus) = rest.split_once("cpus").unwrap_or((rest, ""));
                let cpus = numa::cpu_list(cpus.trim()).ok_or_else(|| "CPUs are written as in 0-3,8".to_string())?;
                self.add_node(number(node.trim())?, &cpus)
            }
            "device" => {
                let (name, node) = rest.rsplit_once(" node ").ok_or("a device is on a node: device NAME node N")?;
                // ram:4096M is ram:4G, and the size of a file is not part of its name.
                let name = match name.trim().parse().map_err(|error: SizeError| error.to_string())? {
                    DeviceSpec::File { path, .. } => path.display().to_string(),
                    memory => memory.to_string(),
                };
                self.devices.push((name, NodeId::new(number(node.trim())?)));
                Ok(())
            }
            _ => Err("a line begins with `node` or `device`".into()),
        }
    }

    /// Whether this node exists.
    pub fn has(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// All nodes, by number.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The nodes with CPUs, or the first node if none has.
    pub(crate) fn nodes_with_cpus(&self) -> Vec<NodeId> {
        let with_cpus = |node: &&NodeId| self.node_of_cpu.contains(&Some(**node));
        let found: Vec<_> = self.nodes.iter().filter(with_cpus).copied().collect();
        if found.is_empty() { vec![self.nodes[0]] } else { found }
    }

    /// One more than the highest number of a CPU on a node.
    pub(crate) fn nr_cpus(&self) -> usize {
        self.node_of_cpu.len()
    }

    /// Whether it was stated, not read from the kernel.
    pub(crate) fn is_stated(&self) -> bool {
        self.is_stated
    }

    /// One more than the highest node number.
    pub(crate) fn nr_numbers(&self) -> usize {
        self.nodes.last().map_or(1, |last| last.index() + 1)
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.node_of_cpu.get(cpu.index()).copied().flatten().unwrap_or(self.nodes[0])
    }

    /// The node of a device of this name. `known` is the node that the kernel reports; a stated topology ignores it.
    pub(crate) fn node_of_device(&self, name: &str, known: Option<usize>) -> Option<NodeId> {
        if self.is_stated {
            return self.devices.iter().find(|(named, _)| named == name).map(|(_, node)| *node);
        }
        known.map(NodeId::from_index).filter(|&node| self.has(node))
    }

    /// The error text for a node that does not exist.
    pub(crate) fn describe_missing(&self, node: NodeId) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.get().to_string()).collect();
        let (node, nodes) = (node.get(), nodes.join(", "));
        if self.is_stated {
            format!("there is no NUMA node {node} in the topology given, which has {nodes}")
        } else {
            format!("this machine has no NUMA node {node}: it has {nodes}")
        }
    }
}

impl FromStr for Topology {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let mut topology = Topology::empty(true);
        let lines = text.lines().map(|line| line.split_once('#').map_or(line, |(before, _)| before).trim());
        for (number, line) in (1..).zip(lines).filter(|(_, line)| !line.is_empty()) {
            topology.read_line(line).map_err(|reason| TopologyError(format!("line {number}: {reason}")))?;
        }
        if topology.nodes.is_empty() {
            return Err(TopologyError("it names no node, as in: node 0 cpus 0-3".into()));
        }
        for (name, node) in &topology.devices {
            if !topology.has(*node) {
                return Err(TopologyError(format!("device {name}: {}", topology.describe_missing(*node))));
            }
        }
        Ok(topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32) -> NodeId {
        NodeId::new(number)
    }

    #[test]
    fn a_stated_topology_is_read() {
        let text = "# two\nnode 2 cpus 2-3,6\n\n node 0 cpus 0-1 # the first\nnode 5\ndevice /a b/swap:9M node 2\ndevice ram:2048M node 5";
        let topology: Topology = text.parse().unwrap();
        assert_eq!(topology.nodes(), [node(0), node(2), node(5)]);
        assert_eq!(topology.nr_numbers(), 6);
        let nodes = [0, 1, 2, 3, 4, 6, 100].map(|cpu| topology.node_of(CpuId::new(cpu)).get());
        assert_eq!(nodes, [0, 0, 2, 2, 0, 2, 0]);
        assert_eq!(topology.node_of_device("/a b/swap", None), Some(node(2)));
        assert_eq!(topology.node_of_device("ram:2G", Some(0)), Some(node(5)));
        assert_eq!(topology.node_of_device("/c", Some(0)), None, "all is stated");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "no node"),
            ("node x", "line 1: `x`"),
            ("node 0 cpus 3-1", "0-3,8"),
            ("node 0\n\nnode 0", "line 3: node 0 is named twice"),
            ("node 0 cpus 1\nnode 1 cpus 0-1", "CPU 1"),
            ("node 1024", "below 1024"),
            ("node 0\ndevice a", "line 2"),
            ("node 0\ndevice a node 1", "no NUMA node 1"),
            ("node 0\ndevice ram:x node 0", "line 2"),
            ("nodes 0", "begins with"),
        ] {
            let error = text.parse::<Topology>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let error = Topology::from_file(Path::new("/no/such/file")).unwrap_err();
        assert!(error.to_string().contains("topology /no/such/file"), "{error}");
    }

    #[test]
    fn this_machine_has_its_cpus_somewhere() {
        let topology = Topology::of_machine();
        let cpu = crate::process::cpu::current_cpu();
        assert!(topology.has(topology.node_of(cpu)));
        assert_eq!(topology.node_of_device("/a", Some(2000)), None);
    }
}
