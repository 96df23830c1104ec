//! A zram of our own as kernel swap: created, named and removed through sysfs.

use super::system::command;
use folioswap::Codec;
use folioswap_command::exit::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where zrams are created and removed.
const CONTROL: &str = "/sys/class/zram-control";

/// How long another program may keep a device busy and prevent its removal. udev opens each new device.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Zram(String);

impl Zram {
    /// The zram with this device path.
    pub fn of_device(device: &Path) -> Option<Zram> {
        device.file_name()?.to_str().map(|name| Zram(name.to_owned()))
    }

    /// The kernel's `mm_stat` line: bytes stored, compressed size, memory used, and further fields.
    pub fn mm_stat(&self) -> Option<String> {
        fs::read_to_string(attribute(&self.0, "mm_stat")).ok()
    }
}

/// Creates a zram that can hold `bytes`. Calls `made` with its name, also if a later step fails.
pub fn create(codec: Codec, bytes: u64, made: impl FnOnce(&str)) -> Result<PathBuf, Failure> {
    if !Path::new(CONTROL).exists() {
        command("modprobe", &["zram".as_ref()])
            .map_err(|message| Failure::new(format!("this kernel has no zram to compare with: {message}")))?;
    }
    let number = fs::read_to_string(Path::new(CONTROL).join("hot_add"))
        .map_err(|error| Failure::new(format!("the kernel made no zram ({CONTROL}/hot_add): {error}")))?;
    let name = format!("zram{}", number.trim());
    made(&name);
    fs::write(attribute(&name, "comp_algorithm"), codec.name()).map_err(|error| {
        let known = fs::read_to_string(attribute(&name, "comp_algorithm")).unwrap_or_default();
        let known = known.replace(['[', ']', '\n'], "");
        Failure::new(format!("the kernel's zram does not take {}, only {}: {error}", codec.name(), known.trim()))
    })?;
    fs::write(attribute(&name, "disksize"), bytes.to_string())
        .map_err(|error| Failure::new(format!("the kernel's zram does not take {bytes} bytes: {error}")))?;
    Ok(Path::new("/dev").join(name))
}

/// Frees the zram's memory and removes it.
pub fn remove(name: &str) -> Result<(), String> {
    let number = name.trim_start_matches("zram");
    patiently(&attribute(name, "reset"), "1").and_then(|()| patiently(&Path::new(CONTROL).join("hot_remove"), number))
}

fn attribute(name: &str, attribute: &str) -> PathBuf {
    ["/sys/block", name, attribute].iter().collect()
}

/// Writes to a sysfs file, and retries while the device is busy.
fn patiently(file: &Path, text: &str) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match fs::write(file, text) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(format!("{}: {error}", file.display())),
        }
    }
}
