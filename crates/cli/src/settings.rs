//! The environment variable that passes the options of `run` to the preload library.
//!
//! Format: `key=value` pairs separated by `;`. There is one `swap` for each device. `prio`, `node`, `force`, `algo`
//! and `shared` follow the `swap` that they belong to; other pairs may come in any order. In values, `%`, `;` and `=`
//! are written as `%25`, `%3B` and `%3D`. All other bytes are literal, so that a path need not be UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use folioswap::{DeviceSpec, SwapDevice};

/// Name of the variable.
pub const VARIABLE: &str = "FOLIOSWAP_RUN";

fn encode(spec: &DeviceSpec) -> Vec<u8> {
    match spec {
        DeviceSpec::Ram { size } => format!("ram:{size}").into_bytes(),
        DeviceSpec::Zram { size, .. } => format!("zram:{size}").into_bytes(),
        DeviceSpec::File { path, size } => {
            let mut bytes = path.as_os_str().as_bytes().to_vec();
            if let Some(size) = size {
                bytes.extend_from_slice(format!(":{size}").as_bytes());
            }
            bytes
        }
    }
}

/// What the preload library is told.
#[derive(Debug)]
pub struct Settings<'a> {
    /// Memory budget in bytes.
    pub memory_bytes: u64,
    /// `auto`, `direct` or `monitor`.
    pub faults: &'a str,
    /// `auto`, `move` or `copy`.
    pub mapper: &'a str,
    /// `auto` or a size.
    pub folio: &'a str,
    /// `always`, `madvise` or `never`.
    pub swap_in: &'a str,
    /// Whether the budget is locked in RAM.
    pub lock: bool,
    /// Path of the shared memory with the counters; other processes can open it.
    pub stats: Option<&'a Path>,
    /// Absolute path of the file that states the NUMA nodes.
    pub topology: Option<&'a Path>,
    /// Swap devices, with absolute paths because the program may change its directory. Empty: the default file.
    pub swap: &'a [SwapDevice],
}

impl Settings<'_> {
    /// The value of the variable.
    pub fn encode(&self) -> OsString {
        let mut text = Vec::new();
        put(&mut text, "memory", self.memory_bytes.to_string().as_bytes());
        put(&mut text, "faults", self.faults.as_bytes());
        put(&mut text, "mapper", self.mapper.as_bytes());
        put(&mut text, "folio", self.folio.as_bytes());
        put(&mut text, "swap-in", self.swap_in.as_bytes());
        if self.lock {
            put(&mut text, "lock", b"yes");
        }
        if let Some(stats) = self.stats {
            put(&mut text, "stats", stats.as_os_str().as_bytes());
        }
        if let Some(topology) = self.topology {
            put(&mut text, "topology", topology.as_os_str().as_bytes());
        }
        for swap in self.swap {
            put(&mut text, "swap", &encode(&swap.spec));
            if let DeviceSpec::Zram { codec, .. } = &swap.spec {
                put(&mut text, "algo", codec.name().as_bytes());
            }
            if let Some(priority) = swap.priority {
                put(&mut text, "prio", priority.to_string().as_bytes());
            }
            if let Some(node) = swap.node {
                put(&mut text, "node", node.get().to_string().as_bytes());
            }
            if swap.force {
                put(&mut text, "force", b"yes");
            }
            if let Some(shared) = &swap.shared {
                put(&mut text, "shared", shared.to_string().as_bytes());
            }
        }
        OsString::from_vec(text)
    }
}

fn put(text: &mut Vec<u8>, key: &str, value: &[u8]) {
    if !text.is_empty() {
        text.push(b';');
    }
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    for byte in value {
        match byte {
            b'%' => text.extend_from_slice(b"%25"),
            b';' => text.extend_from_slice(b"%3B"),
            b'=' => text.extend_from_slice(b"%3D"),
            other => text.push(*other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn plain_settings_read_as_written() {
        let settings = Settings {
            memory_bytes: 1 << 29,
            faults: "auto",
            mapper: "move",
            folio: "64K",
            swap_in: "always",
            lock: true,
            stats: Some(Path::new("/proc/7/fd/3")),
            topology: Some(Path::new("/t")),
            swap: &["ram:4K,node=1,prio=7", "/a/b,force=yes", "zram:8M,algo=zstd,prio=3"]
                .map(|text| text.parse().expect("a device")),
        };
        assert_eq!(
            settings.encode(),
            "memory=536870912;faults=auto;mapper=move;folio=64K;swap-in=always;lock=yes;stats=/proc/7/fd/3;\
             topology=/t;swap=ram:4096;prio=7;node=1;swap=/a/b;force=yes;\
             swap=zram:8388608;algo=zstd;prio=3"
        );
    }

    #[test]
    fn paths_with_separators_are_escaped() {
        let path = PathBuf::from(OsString::from_vec(b"/x;y=1%\xff".to_vec()));
        let swap = [DeviceSpec::File { path, size: Some(9) }.into()];
        let (faults, mapper, folio, swap_in) = ("direct", "copy", "auto", "never");
        let (lock, stats, topology) = (false, None, None);
        let settings = Settings { memory_bytes: 1, faults, mapper, folio, swap_in, lock, stats, topology, swap: &swap };
        let expected = b"memory=1;faults=direct;mapper=copy;folio=auto;swap-in=never;swap=/x%3By%3D1%25\xff:9";
        assert_eq!(settings.encode().as_bytes(), expected);
    }
}
