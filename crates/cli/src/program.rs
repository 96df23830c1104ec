//! Finds the program to run, as a shell would. Distinguishes a program that does not exist, one that is not
//! executable, and one whose memory cannot be paged.
//!
//! The search runs before anything is set up, so that a mistyped name costs one sentence and no swap file.

use folioswap::ExitStatus;
use folioswap_command::exit::Failure;
use folioswap_sys::executable::{self, Obstacle};
use rustix::fs::{Access, StatVfsMountFlags, access, getxattr, statvfs};
use rustix::process::{getegid, geteuid, getuid};
use rustix::thread::no_new_privs;
use std::ffi::{CString, OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Resolves `name`: a name with a slash is a path, any other is the first executable of that name in PATH.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    find_in(name, &std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin")))
}

fn find_in(name: &OsStr, path_list: &OsStr) -> Result<PathBuf, Failure> {
    if name.is_empty() {
        return Err(Failure::of(ExitStatus::NotFound, "the program's name is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| PathBuf::from(name));
    }
    let mut denied = None;
    for directory in std::env::split_paths(path_list) {
        let candidate = directory.join(name);
        if !candidate.exists() {
            continue; // nor does a shell speak of parts of PATH that are not folders, or are closed to it
        }
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(failure) if failure.status == ExitStatus::NotExecutable => denied = denied.or(Some(failure)),
            Err(_) => {}
        }
    }
    Err(denied.unwrap_or_else(|| {
        Failure::of(
            ExitStatus::NotFound,
            format!("program '{}' was not found in PATH; give its path, as in ./{0}", name.to_string_lossy()),
        )
    }))
}

fn check(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::of(ExitStatus::NotFound, format!("program '{shown}' was not found: {error}")),
        _ => Failure::of(ExitStatus::NotExecutable, format!("program '{shown}' cannot be reached: {error}")),
    })?;
    if metadata.is_dir() {
        return Err(Failure::of(ExitStatus::NotExecutable, format!("program '{shown}' is a directory")));
    }
    access(path, Access::EXEC_OK).map_err(|_| {
        Failure::of(
            ExitStatus::NotExecutable,
            format!("program '{shown}' is not executable; chmod +x would make it so"),
        )
    })
}

/// The obstacle of a program into whose process the library must not even be told to be loaded.
pub const OTHER_LIBRARY: &str = "it is linked with another C library than glibc";

/// The attribute of a file that holds the capabilities of its program.
const CAPABILITIES: &str = "security.capability";

/// Whether a program of this file system, started by this process, can get more rights than its user has.
fn may_gain_rights(path: &Path) -> bool {
    !no_new_privs().unwrap_or(false)
        && !statvfs(path).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOSUID))
}

/// Why a program would run but its memory would not be paged: the loader cannot load the preload library into it.
pub fn obstacle(path: &Path) -> Option<&'static str> {
    if may_gain_rights(path) {
        let runs_as_other = std::fs::metadata(path).is_ok_and(|about| {
            let [user, group] = [geteuid().as_raw(), getegid().as_raw()];
            (about.mode() & 0o4000 != 0 && about.uid() != user) || (about.mode() & 0o2000 != 0 && about.gid() != group)
        });
        if runs_as_other {
            return Some("it runs with its owner's rights (set-user-ID or set-group-ID)");
        }
        if !getuid().is_root() && getxattr(path, CAPABILITIES, &mut [0; 64]).is_ok() {
            return Some("it runs with capabilities that its file has (setcap)");
        }
    }
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    executable::obstacle(&path).map(|obstacle| match obstacle {
        Obstacle::NarrowAddresses => "it is a 32-bit program",
        Obstacle::Static => "it is linked statically",
        Obstacle::OtherLibrary => OTHER_LIBRARY,
    })
}

/// Why a file is not a library that a 64-bit program can load.
pub fn library_obstacle(path: &Path) -> Option<&'static str> {
    let mut head = [0; 5];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    match read {
        Ok(()) if head == *b"\x7fELF\x02" => None,
        Ok(()) => Some("is not a 64-bit library"),
        Err(_) => Some("cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_shell_in_path() {
        let found = find_in(OsStr::new("sh"), OsStr::new("/nonexistent:/bin")).expect("sh is there");
        assert_eq!(found, Path::new("/bin/sh"));
    }

    #[test]
    fn tells_missing_from_forbidden() {
        let missing = find_in(OsStr::new("no-such-program"), OsStr::new("/bin")).expect_err("not there");
        assert_eq!(missing.status, ExitStatus::NotFound);
        let missing = find_in(OsStr::new("/no/such/program"), OsStr::new("")).expect_err("not there");
        assert_eq!(missing.status, ExitStatus::NotFound);
        let below_a_file = find_in(OsStr::new("/etc/passwd/sh"), OsStr::new("")).expect_err("no directory");
        assert_eq!(below_a_file.status, ExitStatus::NotExecutable);
        let missing = find_in(OsStr::new("no-such-program"), OsStr::new("/etc/passwd:/bin")).expect_err("not there");
        assert_eq!(missing.status, ExitStatus::NotFound, "a part of PATH that is no directory is passed over");
        let forbidden = find_in(OsStr::new("/etc/passwd"), OsStr::new("")).expect_err("not executable");
        assert_eq!(forbidden.status, ExitStatus::NotExecutable);
        let directory = find_in(OsStr::new("/etc"), OsStr::new("")).expect_err("a directory");
        assert_eq!(directory.status, ExitStatus::NotExecutable);
    }

    #[test]
    fn a_dynamic_program_has_no_obstacle() {
        assert_eq!(obstacle(Path::new("/bin/sh")), None);
    }
}
