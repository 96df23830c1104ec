//! The text form of a swap device: `PATH[:SIZE]`, `ram:SIZE` or `zram:SIZE[,algo=lz4|zstd]`, then options: `,prio=N`
//! and `,node=N` say when it is used; `,force=yes` allows overwriting what a block device holds.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use folioswap_core::{NodeId, Priority};

use super::shared::SharedDevice;
use crate::config::size::{Bytes, SizeError, parse_size};

/// A swap device to be opened.
///
/// A rotational disk is recognised by what the kernel reports (`/sys/dev/block/*/queue/rotational`), through
/// partitions, device mapper and md. On it each folio is written page by page, each page to the next free slot. Devices
/// known to be virtual (virtio, Xen, NVMe, disks of known hypervisor vendors) are never treated as rotational: they
/// report rotational whatever the storage below them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A file (made by the arena and gone with it) or a block device.
    File {
        /// Its path.
        path: PathBuf,
        /// The most bytes of it that are used. `None`: a file grows while the file system has room; a block device is
        /// used whole.
        size: Option<u64>,
    },
    /// Memory outside the budget.
    Ram {
        /// Its size in bytes.
        size: u64,
    },
    /// Memory outside the budget that holds folios compressed.
    Zram {
        /// The most bytes of memory that it takes, whatever they hold.
        size: u64,
        /// Its compression algorithm.
        codec: Codec,
    },
}

/// Compression algorithm of a device in compressed RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// Fast.
    #[default]
    Lz4,
    /// Compresses better, at several times the CPU cost.
    Zstd,
}

impl Codec {
    /// Its name in text: `lz4` or `zstd`.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

impl FromStr for Codec {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Codec::Lz4, Codec::Zstd].into_iter().find(|codec| codec.name() == text).ok_or(())
    }
}

impl FromStr for DeviceSpec {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (kind, size) = text.split_once(':').map_or((text, None), |(kind, size)| (kind, Some(size)));
        let is_compressed = kind.eq_ignore_ascii_case("zram");
        if is_compressed || kind.eq_ignore_ascii_case("ram") {
            let size = parse_size(size.ok_or_else(|| SizeError::NoSize(text.into()))?)?;
            return Ok(match is_compressed {
                true => DeviceSpec::Zram { size, codec: Codec::default() },
                false => DeviceSpec::Ram { size },
            });
        }
        // A path may contain colons; only text after the last one that begins with a digit is a size.
        if let Some((path, size)) = text.rsplit_once(':')
            && size.starts_with(|c: char| c.is_ascii_digit())
            && !size.contains('/')
        {
            return Ok(DeviceSpec::File { path: path.into(), size: Some(parse_size(size)?) });
        }
        Ok(DeviceSpec::File { path: text.into(), size: None })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::File { path, size: None } => write!(f, "{}", path.display()),
            DeviceSpec::File { path, size: Some(size) } => write!(f, "{}:{}", path.display(), Bytes(*size)),
            DeviceSpec::Ram { size } => write!(f, "ram:{}", Bytes(*size)),
            DeviceSpec::Zram { size, codec: Codec::Lz4 } => write!(f, "zram:{}", Bytes(*size)),
            DeviceSpec::Zram { size, codec } => write!(f, "zram:{},algo={}", Bytes(*size), codec.name()),
        }
    }
}

/// A swap device, with options that decide when it is used.
///
/// Devices of higher priority are used first; devices of equal priority in turn. A device without a priority comes
/// after all that have one and after those added before it, except that on its own NUMA node it comes first among those
/// without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapDevice {
    /// What it is.
    pub spec: DeviceSpec,
    /// Priority, the same on every node. `None`: chosen by the system.
    pub priority: Option<Priority>,
    /// Its NUMA node. `None`: what the kernel knows of a disk. Devices in memory take it from this node, if the machine
    /// has it.
    pub node: Option<NodeId>,
    /// Whether a block device is used although it holds something (a file system, partitions), which is then lost. A
    /// device that is mounted or otherwise in use is refused in any case.
    pub force: bool,
    /// Where another process keeps it open for this and other processes.
    pub shared: Option<SharedDevice>,
}

/// Why a text is not a valid swap device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwapDeviceError {
    /// Bad size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// No path.
    #[error("a swap device is a path, ram:SIZE or zram:SIZE, and this one is empty")]
    Empty,
    /// Bad priority.
    #[error("`{0}` is no priority: give 0 to {max}, higher is used first", max = Priority::MAX)]
    Priority(String),
    /// Bad node.
    #[error("`{0}` is no number of a NUMA node")]
    Node(String),
    /// Bad compression algorithm.
    #[error("`{0}` is no way to compress: there are lz4 and zstd")]
    Codec(String),
    /// Neither yes nor no.
    #[error("`{0}` is neither yes nor no, which is what `force` takes")]
    Force(String),
    /// An option of block devices on a device in memory.
    #[error("only a block device takes `force`")]
    NotBlockDevice,
    /// An option of devices in compressed RAM on another device.
    #[error("only zram: compresses, and takes `algo`")]
    NotCompressed,
    /// Unknown option.
    #[error(
        "a swap device has no option `{0}`: there are prio=N, node=N and force=yes, and algo=lz4 or zstd for zram:"
    )]
    Unknown(String),
}

impl SwapDevice {
    /// The same with a priority.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The same on a NUMA node.
    #[must_use]
    pub fn on_node(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }

    /// The same, allowing it to overwrite what a block device holds.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.force = true;
        self
    }

    /// Reads a device whose path need not be UTF-8.
    ///
    /// # Errors
    /// As for a text.
    pub fn parse_bytes(text: &OsStr) -> Result<SwapDevice, SwapDeviceError> {
        if let Some(text) = text.to_str() {
            return text.parse();
        }
        // Each byte is a character meanwhile.
        let mut device: SwapDevice = text.as_bytes().iter().copied().map(char::from).collect::<String>().parse()?;
        if let DeviceSpec::File { path, .. } = &mut device.spec {
            let bytes = path.to_string_lossy().chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
            *path = OsString::from_vec(bytes).into();
        }
        Ok(device)
    }

    /// Sets the option `prio`, `node`, `force` or `algo`.
    ///
    /// # Errors
    /// If there is no such option, or `value` is not valid for it.
    pub fn set(&mut self, option: &str, value: &str) -> Result<(), SwapDeviceError> {
        let number = value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse::<u32>().ok()).flatten();
        match option {
            "prio" => {
                let priority = number.and_then(Priority::given);
                self.priority = Some(priority.ok_or_else(|| SwapDeviceError::Priority(value.into()))?);
            }
            "node" => self.node = Some(NodeId::new(number.ok_or_else(|| SwapDeviceError::Node(value.into()))?)),
            "force" => {
                let DeviceSpec::File { .. } = &self.spec else { return Err(SwapDeviceError::NotBlockDevice) };
                self.force = match value {
                    "yes" => true,
                    "no" => false,
                    other => return Err(SwapDeviceError::Force(other.into())),
                };
            }
            "algo" => {
                let DeviceSpec::Zram { codec, .. } = &mut self.spec else { return Err(SwapDeviceError::NotCompressed) };
                *codec = value.parse().map_err(|()| SwapDeviceError::Codec(value.into()))?;
            }
            other => return Err(SwapDeviceError::Unknown(other.into())),
        }
        Ok(())
    }
}

impl From<DeviceSpec> for SwapDevice {
    fn from(spec: DeviceSpec) -> Self {
        SwapDevice { spec, priority: None, node: None, force: false, shared: None }
    }
}

/// The last `,word=value` of a text, unless it is part of a path.
fn last_option(text: &str) -> Option<(&str, &str, &str)> {
    let (before, option) = text.rsplit_once(',')?;
    let (word, value) = option.split_once('=')?;
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    (is_word && !value.contains('/')).then_some((before, word, value))
}

impl FromStr for SwapDevice {
    type Err = SwapDeviceError;

    fn from_str(text: &str) -> Result<Self, SwapDeviceError> {
        let (mut rest, mut options) = (text, Vec::new());
        while let Some((before, word, value)) = last_option(rest) {
            rest = before;
            options.push((word, value));
        }
        let mut device: SwapDevice = rest.parse::<DeviceSpec>()?.into();
        if matches!(&device.spec, DeviceSpec::File { path, .. } if path.as_os_str().is_empty()) {
            return Err(SwapDeviceError::Empty);
        }
        // The last option of a kind counts.
        options.into_iter().rev().try_for_each(|(word, value)| device.set(word, value))?;
        Ok(device)
    }
}

impl fmt::Display for SwapDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)?;
        self.priority.map_or(Ok(()), |priority| write!(f, ",prio={priority}"))?;
        self.node.map_or(Ok(()), |node| write!(f, ",node={}", node.get()))?;
        if self.force { write!(f, ",force=yes") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_device() {
        for (text, spec, priority, node) in [
            ("ram:2G", "ram:2G", None, None),
            ("ram:2G,prio=0", "ram:2G", Some(0), None),
            ("/swap/a:1G,node=3,prio=32767", "/swap/a:1G", Some(32767), Some(3)),
            ("/swap/a,node=1", "/swap/a", None, Some(1)),
            ("/swap/a,b", "/swap/a,b", None, None),
            ("/swap/x,y=1/a", "/swap/x,y=1/a", None, None),
            ("zram:1G,prio=3", "zram:1G", Some(3), None),
        ] {
            let device: SwapDevice = text.parse().unwrap();
            let (priority, node) = (priority.and_then(Priority::given), node.map(NodeId::new));
            assert_eq!(
                device,
                SwapDevice { spec: spec.parse().unwrap(), priority, node, force: false, shared: None },
                "{text}"
            );
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for (text, part) in [
            ("ram:2G,prio=32768", "32768"),
            ("ram:2G,prio=-1", "`-1` is no priority"),
            ("ram:2G,prio=+1", "`+1`"),
            ("ram:2G,prio=", "``"),
            ("/a,node=x", "NUMA"),
            ("/a,force=1", "`1` is neither yes nor no"),
            ("ram:1G,force=yes", "only a block device"),
            ("/a,size=4", "no option `size`"),
            ("zram:1G,algo=gzip", "`gzip` is no way to compress"),
            ("ram:1G,algo=lz4", "only zram:"),
            ("ram:x,prio=1", "x"),
            ("ram", "`ram` needs a size, as in ram:2G; a file of this name is ./ram"),
            ("ZRAM,prio=1", "`ZRAM` needs a size, as in zram:2G"),
            ("", "is empty"),
            (":1G,prio=1", "is empty"),
        ] {
            let error = text.parse::<SwapDevice>().unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_path_need_not_be_utf_8() {
        let device = SwapDevice::parse_bytes(OsStr::from_bytes(b"/s\xff\xc3/a:1G,prio=3")).unwrap();
        let spec = DeviceSpec::File { path: OsString::from_vec(b"/s\xff\xc3/a".to_vec()).into(), size: Some(1 << 30) };
        assert_eq!(device, SwapDevice { priority: Priority::given(3), ..spec.into() });
        assert_eq!(SwapDevice::parse_bytes(OsStr::new("/\u{e4}:1G")), "/\u{e4}:1G".parse());
        assert!(SwapDevice::parse_bytes(OsStr::from_bytes(b"/\xff,prio=x")).is_err());
    }

    #[test]
    fn force_is_of_this_device() {
        for (text, force) in
            [("/dev/x:1G,force=yes,prio=2", true), ("/dev/x,force=yes,force=no", false), ("/dev/x", false)]
        {
            let device: SwapDevice = text.parse().unwrap();
            assert_eq!(device.force, force, "{text}");
            assert_eq!(device.to_string().parse(), Ok(device));
        }
    }

    #[test]
    fn each_form_is_read() {
        let file = |path: &str, size| DeviceSpec::File { path: path.into(), size };
        for (text, spec) in [
            ("ram:2G", DeviceSpec::Ram { size: 2 << 30 }),
            ("RAM:64M", DeviceSpec::Ram { size: 64 << 20 }),
            ("./RAM:64M", file("./RAM", Some(64 << 20))),
            ("./ram", file("./ram", None)),
            ("ramdisk:64M", file("ramdisk", Some(64 << 20))),
            ("/swap/a", file("/swap/a", None)),
            ("/swap/a:512M", file("/swap/a", Some(512 << 20))),
            ("/swap/a:b", file("/swap/a:b", None)),
            ("/swap/12:30/c", file("/swap/12:30/c", None)),
        ] {
            assert_eq!(text.parse(), Ok(spec), "{text}");
        }
        for (text, codec) in [
            ("zram:64M", Codec::Lz4),
            ("ZRAM:64M", Codec::Lz4),
            ("zram:64M,algo=zstd", Codec::Zstd),
            ("zram:64M,algo=lz4", Codec::Lz4),
        ] {
            assert_eq!(text.parse(), Ok(SwapDevice::from(DeviceSpec::Zram { size: 64 << 20, codec })), "{text}");
        }
        assert!("ram:lots".parse::<DeviceSpec>().is_err());
        assert!("zram:lots".parse::<DeviceSpec>().is_err());
        assert!("/swap/a:5X".parse::<DeviceSpec>().is_err());
    }
}
