//! What the kernel says in its files, as text.

use std::io;
use std::path::Path;

/// Reads a file of `/proc` or `/sys`. What is not UTF-8 in it is replaced: names of files, and of programs, which the
/// kernel cuts within a letter.
///
/// # Errors
/// The kernel's.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
