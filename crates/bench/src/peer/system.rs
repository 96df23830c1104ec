//! Commands of the system, by which swap devices are made.

use std::process::{Command, Stdio};

/// Runs a system command. Returns its output, or one line that says why it failed.
pub fn command(name: &str, arguments: &[&std::ffi::OsStr]) -> Result<String, String> {
    let output =
        Command::new(name).args(arguments).stdin(Stdio::null()).output().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("the command {name} is missing; it comes with util-linux, mount or kmod")
            }
            _ => format!("{name}: {error}"),
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} failed: {}", said.split_whitespace().collect::<Vec<_>>().join(" ")))
}
