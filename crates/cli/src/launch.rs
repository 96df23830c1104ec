//! The command that becomes the program.

use crate::sanitizer;
use folioswap::RunSettings;
use folioswap::device::DIRECTORY_VARIABLE;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a program is started with.
pub struct Launch<'a> {
    pub file: PathBuf,
    /// argv, with argument zero.
    pub argv: &'a [OsString],
    /// The library to put first in LD_PRELOAD. `None`: the program would not start with it.
    pub library: Option<PathBuf>,
    /// The settings that the library reads.
    pub settings: OsString,
}

impl Launch<'_> {
    /// The command that starts it as a child, which is killed when the calling thread ends. It gets the environment of
    /// this process as it is, with variables that are there twice and lines that are none: so what is new is set here.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.arg0(&self.argv[0]).args(&self.argv[1..]);
        folioswap_child::set_variable(RunSettings::VARIABLE, &self.settings);
        if let Some(library) = &self.library {
            let mut list = preload_list(library, std::env::var_os("LD_PRELOAD").as_deref());
            if let Some(sanitizer) = sanitizer::needed_by(&self.file) {
                // The library takes it away again, for what the program starts.
                folioswap_child::set_variable(IN_FRONT, sanitizer.as_ref());
                list = preload_list(Path::new(&sanitizer), Some(&list));
            }
            folioswap_child::set_variable("LD_PRELOAD", &list);
        }
        // The program may change its current directory.
        if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE)
            && let Ok(directory) = std::path::absolute(directory)
        {
            folioswap_child::set_variable(DIRECTORY_VARIABLE, directory.as_os_str());
        }
        folioswap_child::bind(&mut command, None);
        folioswap_child::close_streams(&mut command);
        command
    }
}

/// Tells the library what precedes it in LD_PRELOAD.
const IN_FRONT: &str = "FOLIOSWAP_IN_FRONT";

/// Puts a library before those that are preloaded.
fn preload_list(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        list.push(":");
        list.push(existing);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_keeps_what_was_there() {
        assert_eq!(preload_list(Path::new("/a.so"), None), "/a.so");
        assert_eq!(preload_list(Path::new("/a.so"), Some(OsStr::new(""))), "/a.so");
        assert_eq!(preload_list(Path::new("/a.so"), Some(OsStr::new("/b.so"))), "/a.so:/b.so");
    }
}
