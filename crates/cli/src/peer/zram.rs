//! The kernel's compressed RAM as its swap device: a zram of our own, made, named and removed through sysfs.

use super::swap::{Undo, command};
use crate::exit::{Failure, Status};
use folioswap::Codec;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where zrams are made and removed.
const CONTROL: &str = "/sys/class/zram-control";

/// How long another program (udev looks at each new device) may keep a device from being removed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A zram by its name.
#[derive(Clone, Debug)]
pub struct Zram(String);

impl Zram {
    /// That of the device with this path.
    pub fn of_device(device: &Path) -> Option<Zram> {
        device.file_name()?.to_str().map(|name| Zram(name.to_owned()))
    }

    /// What the kernel says of what it holds: bytes that were swapped out, the same compressed, memory taken, and more.
    pub fn mm_stat(&self) -> Option<String> {
        fs::read_to_string(attribute(&self.0, "mm_stat")).ok()
    }
}

/// Makes a zram that can hold `bytes`; pushes each step done on `undo`, also on an error.
pub fn create(codec: Codec, bytes: u64, undo: &mut Vec<Undo>) -> Result<PathBuf, Failure> {
    let failed = |message: String| Failure::new(Status::NoKernelPeer, message);
    if !Path::new(CONTROL).exists() {
        command("modprobe", &["zram".as_ref()])
            .map_err(|message| failed(format!("this kernel has no zram to compare with: {message}")))?;
    }
    let number = fs::read_to_string(Path::new(CONTROL).join("hot_add"))
        .map_err(|error| failed(format!("the kernel made no zram ({CONTROL}/hot_add): {error}")))?;
    let name = format!("zram{}", number.trim());
    undo.push(Undo::Zram(name.clone()));
    fs::write(attribute(&name, "comp_algorithm"), codec.name()).map_err(|error| {
        let known = fs::read_to_string(attribute(&name, "comp_algorithm")).unwrap_or_default();
        let known = known.replace(['[', ']', '\n'], "");
        failed(format!("the kernel's zram does not take {}, only {}: {error}", codec.name(), known.trim()))
    })?;
    fs::write(attribute(&name, "disksize"), bytes.to_string())
        .map_err(|error| failed(format!("the kernel's zram does not take {bytes} bytes: {error}")))?;
    Ok(Path::new("/dev").join(name))
}

/// Gives its memory back and removes it.
pub fn remove(name: &str) -> Result<(), String> {
    let number = name.trim_start_matches("zram");
    patiently(&attribute(name, "reset"), "1").and_then(|()| patiently(&Path::new(CONTROL).join("hot_remove"), number))
}

fn attribute(name: &str, attribute: &str) -> PathBuf {
    ["/sys/block", name, attribute].iter().collect()
}

/// Writes, again and again while the device is busy.
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
