//! The settings of `folioswap run`, from the environment variable that it sets.
//!
//! Format: `key=value` pairs separated by `;`. `swap` appears once per device. `prio`, `node`, `force`, `algo` and
//! `shared` apply to the device before them. `%XX` in a value is a byte.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use folioswap::{DeviceSpec, FaultMode, FolioSize, Mapping, SwapDevice, SwapIn, parse_size};

/// Name of the variable.
pub const VARIABLE: &str = "FOLIOSWAP_RUN";

/// The settings.
#[derive(Debug, PartialEq)]
pub struct Settings {
    pub memory_bytes: u64,
    pub faults: FaultMode,
    pub mapping: Mapping,
    pub folio: FolioSize,
    pub swap_in: SwapIn,
    /// Whether the budget is locked in RAM.
    pub lock: bool,
    /// Path of the shared counters.
    pub stats: Option<PathBuf>,
    /// The file that describes the NUMA nodes.
    pub topology: Option<PathBuf>,
    pub devices: Vec<SwapDevice>,
}

impl Settings {
    /// Parses the variable's value. The error names the wrong part.
    pub fn parse(text: &[u8]) -> Result<Settings, String> {
        let mut settings = Settings {
            memory_bytes: 0,
            faults: FaultMode::Auto,
            mapping: Mapping::Auto,
            folio: FolioSize::Auto,
            swap_in: SwapIn::Always,
            lock: false,
            stats: None,
            topology: None,
            devices: Vec::new(),
        };
        for pair in text.split(|&byte| byte == b';').filter(|pair| !pair.is_empty()) {
            let at = pair.iter().position(|&byte| byte == b'=').ok_or_else(|| wrong(pair, "a pair without `=`"))?;
            let value = unescape(&pair[at + 1..]).ok_or_else(|| wrong(pair, "a `%` without two hex digits"))?;
            settings.set(&pair[..at], value).map_err(|reason| wrong(pair, &reason))?;
        }
        if settings.memory_bytes == 0 {
            return Err(format!("{VARIABLE} names no memory budget"));
        }
        Ok(settings)
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), String> {
        let text = || String::from_utf8(value.clone()).map_err(|_| "not UTF-8".to_string());
        match key {
            b"memory" => self.memory_bytes = parse_size(&text()?).map_err(|error| error.to_string())?,
            b"faults" => self.faults = text()?.parse().map_err(|error: folioswap::UnknownName| error.to_string())?,
            b"mapper" => self.mapping = text()?.parse().map_err(|error: folioswap::UnknownName| error.to_string())?,
            b"folio" => self.folio = text()?.parse().map_err(|error: folioswap::FolioSizeError| error.to_string())?,
            b"swap-in" => self.swap_in = text()?.parse().map_err(|error: folioswap::UnknownName| error.to_string())?,
            b"lock" => self.lock = text()? == "yes",
            b"stats" => self.stats = Some(PathBuf::from(OsString::from_vec(value))),
            b"topology" => self.topology = Some(PathBuf::from(OsString::from_vec(value))),
            b"swap" => self.devices.push(device(value)?.into()),
            b"prio" | b"node" | b"algo" | b"force" => {
                let device = self.devices.last_mut().ok_or("no device before it")?;
                device.set(&String::from_utf8_lossy(key), &text()?).map_err(|error| error.to_string())?;
            }
            b"shared" => {
                let device = self.devices.last_mut().ok_or("no device before it")?;
                device.shared = Some(text()?.parse().map_err(|()| "no device that is shared")?);
            }
            _ => {} // keys of a newer command are ignored
        }
        Ok(())
    }
}

/// Parses a device. If the path is not UTF-8, only the form of [`raw_path`] is possible.
fn device(value: Vec<u8>) -> Result<DeviceSpec, String> {
    match String::from_utf8(value) {
        Ok(text) => text.parse().map_err(|error: folioswap::SizeError| error.to_string()),
        Err(error) => Ok(raw_path(error.into_bytes())),
    }
}

/// `PATH[:BYTES]` with a path that is not UTF-8.
fn raw_path(mut bytes: Vec<u8>) -> DeviceSpec {
    let mut size = None;
    if let Some(colon) = bytes.iter().rposition(|&byte| byte == b':')
        && let Some(parsed) = std::str::from_utf8(&bytes[colon + 1..]).ok().and_then(|text| parse_size(text).ok())
    {
        size = Some(parsed);
        bytes.truncate(colon);
    }
    DeviceSpec::File { path: OsString::from_vec(bytes).into(), size }
}

fn wrong(pair: &[u8], reason: &str) -> String {
    format!("{VARIABLE}: `{}`: {reason}", String::from_utf8_lossy(pair))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_line_is_read() {
        let text = b"memory=536870912;faults=direct;mapper=copy;folio=64K;swap-in=madvise;lock=yes;stats=/proc/7/fd/3;\
            topology=/t;swap=ram:4096;prio=7;node=1;swap=/x%3By%3D1%25\xff:9;force=yes;shared=7:8:/proc/9/fd/3;\
            swap=zram:8388608;algo=zstd";
        let path = PathBuf::from(OsString::from_vec(b"/x;y=1%\xff".to_vec()));
        let expected = Settings {
            memory_bytes: 512 << 20,
            faults: FaultMode::Direct,
            mapping: Mapping::Copy,
            folio: "64K".parse().expect("a size"),
            swap_in: SwapIn::Madvise,
            lock: true,
            stats: Some("/proc/7/fd/3".into()),
            topology: Some("/t".into()),
            devices: vec![
                "ram:4K,prio=7,node=1".parse().expect("a device"),
                SwapDevice {
                    shared: Some("7:8:/proc/9/fd/3".parse().expect("a device")),
                    ..SwapDevice::from(DeviceSpec::File { path, size: Some(9) }).forced()
                },
                "zram:8M,algo=zstd".parse().expect("a device"),
            ],
        };
        assert_eq!(Settings::parse(text), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            (&b""[..], "no memory"),
            (b"memory", "without `=`"),
            (b"memory=5X", "5X"),
            (b"memory=1G;faults=none", "none"),
            (b"memory=1G;folio=3M", "3M"),
            (b"memory=1G;swap-in=soon", "soon"),
            (b"memory=1G;swap=/a%3", "hex"),
            (b"memory=1G;prio=3", "no device"),
            (b"memory=1G;swap=/a;prio=-3", "no priority"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
