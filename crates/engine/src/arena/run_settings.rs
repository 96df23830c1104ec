//! What `folioswap run` tells the library that it injects, in an environment variable.
//!
//! Format: `key=value` pairs separated by `;`. There is one `swap` for each device. `algo`, `prio`, `node`, `force` and
//! `shared` follow the `swap` that they belong to; other pairs may come in any order. In values, `%`, `;` and `=` are
//! written as `%25`, `%3B` and `%3D`. All other bytes are literal. JSON could not carry a path that is not UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::config::fault_mode::FaultMode;
use crate::config::folio_size::FolioSize;
use crate::config::mapping::Mapping;
use crate::config::size::parse_size;
use crate::config::swap_in_policy::SwapIn;
use crate::device::{DeviceSpec, SwapDevice};
use crate::process::shared_stats::StatsPlace;

/// The options of `folioswap run`.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSettings {
    /// The budget in bytes.
    pub memory_bytes: u64,
    /// Where faults are resolved.
    pub faults: FaultMode,
    /// How folios are mapped.
    pub mapping: Mapping,
    /// The size of folios.
    pub folio: FolioSize,
    /// When a folio is read back in one piece.
    pub swap_in: SwapIn,
    /// Whether the budget is locked in RAM.
    pub lock: bool,
    /// Whether memory is managed from the start, also while it fits.
    pub eager: bool,
    /// Where the page of `folioswap_sys::own_calls` is, in all processes of the run; 0: nowhere.
    pub own_calls: usize,
    /// The shared memory with the counters.
    pub stats: Option<StatsPlace>,
    /// The file that states the NUMA nodes.
    pub topology: Option<PathBuf>,
    /// Swap devices, with absolute paths because the program may change its directory. Empty: the default file.
    pub swap: Vec<SwapDevice>,
}

impl RunSettings {
    /// Name of the variable.
    pub const VARIABLE: &str = "FOLIOSWAP_RUN";

    /// The value of the variable.
    pub fn encode(&self) -> OsString {
        let mut text = Vec::new();
        put(&mut text, "memory", self.memory_bytes);
        put(&mut text, "faults", self.faults);
        put(&mut text, "mapper", self.mapping);
        put(&mut text, "folio", self.folio);
        put(&mut text, "swap-in", self.swap_in);
        if self.lock {
            put(&mut text, "lock", "yes");
        }
        if self.eager {
            put(&mut text, "eager", "yes");
        }
        if self.own_calls != 0 {
            put(&mut text, "own-calls", self.own_calls);
        }
        if let Some(place) = &self.stats {
            put(&mut text, "stats", place);
        }
        if let Some(path) = &self.topology {
            put_bytes(&mut text, "topology", path.as_os_str().as_bytes());
        }
        for device in &self.swap {
            put_bytes(&mut text, "swap", &device_bytes(&device.spec));
            if let DeviceSpec::Zram { codec, .. } = &device.spec {
                put(&mut text, "algo", codec.name());
            }
            if let Some(priority) = device.priority {
                put(&mut text, "prio", priority);
            }
            if let Some(node) = device.node {
                put(&mut text, "node", node.get());
            }
            if device.force {
                put(&mut text, "force", "yes");
            }
            if let Some(shared) = &device.shared {
                put(&mut text, "shared", shared);
            }
        }
        OsString::from_vec(text)
    }

    /// Parses the variable's value. Keys of a newer command are ignored.
    ///
    /// # Errors
    /// A sentence that names the part that is wrong.
    pub fn parse(text: &[u8]) -> Result<RunSettings, String> {
        let mut settings = RunSettings {
            memory_bytes: 0,
            faults: FaultMode::default(),
            mapping: Mapping::default(),
            folio: FolioSize::Auto,
            swap_in: SwapIn::default(),
            lock: false,
            eager: false,
            own_calls: 0,
            stats: None,
            topology: None,
            swap: Vec::new(),
        };
        for pair in text.split(|&byte| byte == b';').filter(|pair| !pair.is_empty()) {
            let wrong = |why: &str| format!("{}: `{}`: {why}", Self::VARIABLE, String::from_utf8_lossy(pair));
            let at = pair.iter().position(|&byte| byte == b'=').ok_or_else(|| wrong("a pair without `=`"))?;
            let value = unescape(&pair[at + 1..]).ok_or_else(|| wrong("a `%` without two hex digits"))?;
            settings.set(&pair[..at], value).map_err(|why| wrong(&why))?;
        }
        match settings.memory_bytes {
            0 => Err(format!("{} names no memory budget", Self::VARIABLE)),
            _ => Ok(settings),
        }
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), String> {
        let text = || std::str::from_utf8(&value).map_err(|_| "not UTF-8");
        match key {
            b"memory" => self.memory_bytes = parse_size(text()?).map_err(|error| error.to_string())?,
            b"faults" => self.faults = parsed(text()?)?,
            b"mapper" => self.mapping = parsed(text()?)?,
            b"folio" => self.folio = parsed(text()?)?,
            b"swap-in" => self.swap_in = parsed(text()?)?,
            b"lock" => self.lock = text()? == "yes",
            b"eager" => self.eager = text()? == "yes",
            b"own-calls" => self.own_calls = text()?.parse().map_err(|_| "no address")?,
            b"stats" => self.stats = Some(text()?.parse().map_err(|()| "no place of counters")?),
            b"topology" => self.topology = Some(OsString::from_vec(value).into()),
            b"swap" => self.swap.push(device(value)?.into()),
            b"prio" | b"node" | b"algo" | b"force" | b"shared" => {
                let device = self.swap.last_mut().ok_or("no device before it")?;
                match key {
                    b"shared" => device.shared = Some(text()?.parse().map_err(|()| "no device that is shared")?),
                    _ => device.set(&String::from_utf8_lossy(key), text()?).map_err(|error| error.to_string())?,
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn parsed<T: std::str::FromStr<Err: std::error::Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn put(text: &mut Vec<u8>, key: &str, value: impl std::fmt::Display) {
    put_bytes(text, key, value.to_string().as_bytes());
}

fn put_bytes(text: &mut Vec<u8>, key: &str, value: &[u8]) {
    if !text.is_empty() {
        text.push(b';');
    }
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    for byte in value {
        match byte {
            b'%' | b';' | b'=' => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            other => text.push(*other),
        }
    }
}

fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

/// A device as [`device`] reads it. Sizes are exact, unlike those that are displayed.
fn device_bytes(spec: &DeviceSpec) -> Vec<u8> {
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

fn device(value: Vec<u8>) -> Result<DeviceSpec, String> {
    let mut bytes = match String::from_utf8(value) {
        Ok(text) => return parsed(&text),
        Err(error) => error.into_bytes(),
    };
    // A path that is not UTF-8.
    let mut size = None;
    if let Some(colon) = bytes.iter().rposition(|&byte| byte == b':')
        && let Some(given) = std::str::from_utf8(&bytes[colon + 1..]).ok().and_then(|text| parse_size(text).ok())
    {
        size = Some(given);
        bytes.truncate(colon);
    }
    Ok(DeviceSpec::File { path: OsString::from_vec(bytes).into(), size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_written() {
        let path = PathBuf::from(OsString::from_vec(b"/x;y=1%\xff".to_vec()));
        let settings = RunSettings {
            memory_bytes: 512 << 20,
            faults: FaultMode::Direct,
            mapping: Mapping::Copy,
            folio: "64K".parse().unwrap(),
            swap_in: SwapIn::Madvise,
            lock: true,
            eager: true,
            own_calls: 0x7d00_0000_1000,
            stats: Some("1f:/proc/7/fd/3".parse().unwrap()),
            topology: Some("/t".into()),
            swap: vec![
                "ram:4097,prio=7,node=1".parse().unwrap(),
                SwapDevice {
                    shared: Some("7:8:/proc/9/fd/3".parse().unwrap()),
                    ..SwapDevice::from(DeviceSpec::File { path, size: Some(9) }).forced()
                },
                "zram:8M,algo=zstd".parse().unwrap(),
            ],
        };
        let text = b"memory=536870912;faults=direct;mapper=copy;folio=64K;swap-in=madvise;lock=yes;eager=yes;own-calls=137438953476096;\
            stats=0000000000000000000000000000001f:/proc/7/fd/3;topology=/t;swap=ram:4097;prio=7;node=1;swap=/x%3By%3D1%25\xff:9;force=yes;shared=7:8:/proc/9/fd/3;\
            swap=zram:8388608;algo=zstd";
        assert_eq!(settings.encode().as_bytes(), text);
        assert_eq!(RunSettings::parse(text), Ok(settings));
        assert!(RunSettings::parse(b"memory=1G;colour=blue").is_ok(), "a key of a newer command");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            (&b""[..], "no memory"),
            (b"memory", "without `=`"),
            (b"memory=5X", "5X"),
            (b"memory=1G;faults=none", "none"),
            (b"memory=1G;faults=\xff", "not UTF-8"),
            (b"memory=1G;lock=\xff", "not UTF-8"),
            (b"memory=1G;stats=/proc/7", "counters"),
            (b"memory=1G;swap=/a;shared=1:2:/a\xff", "not UTF-8"),
            (b"memory=1G;folio=3M", "3M"),
            (b"memory=1G;swap-in=soon", "soon"),
            (b"memory=1G;swap=/a%3", "hex"),
            (b"memory=1G;prio=3", "no device"),
            (b"memory=1G;swap=/a;prio=-3", "no priority"),
        ] {
            let error = RunSettings::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
