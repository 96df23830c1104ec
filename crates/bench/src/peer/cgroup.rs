//! A memory cgroup, version 1 or 2, whichever hierarchy has the memory controller.

use folioswap_sys::said;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long processes may take to end, and the kernel to release the directory.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Version {
    V1,
    V2,
}

/// Creates a cgroup below the root of the hierarchy and limits its memory. Swap stays unlimited.
pub fn create(memory_bytes: u64) -> Result<PathBuf, String> {
    let mounts = said::read("/proc/self/mounts").map_err(|error| format!("/proc/self/mounts: {error}"))?;
    let (version, root) =
        hierarchy(&mounts, |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default())
            .ok_or("no memory cgroup controller is mounted; `mount -t cgroup2 none /sys/fs/cgroup` would do")?;
    let directory = root.join(format!("folioswap-{}", std::process::id()));
    if version == Version::V2 {
        // This write fails if the controller is on already and the file is not writable. Then the limit below works
        // without it.
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
    }
    fs::create_dir(&directory).map_err(|error| format!("cgroup {} was not made: {error}", directory.display()))?;
    let limit = match version {
        Version::V1 => directory.join("memory.limit_in_bytes"),
        Version::V2 => directory.join("memory.max"),
    };
    fs::write(&limit, memory_bytes.to_string()).map_err(|error| {
        // An empty cgroup can be removed at once.
        let _ = fs::remove_dir(&directory);
        format!("{} was not set: {error}", limit.display())
    })?;
    Ok(directory)
}

/// The mounted hierarchy that has the memory controller.
fn hierarchy(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<(Version, PathBuf)> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let root = PathBuf::from(fields.next()?);
        match (fields.next()?, fields.next()?) {
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => Some((Version::V1, root)),
            ("cgroup2", _) if controllers(&root).split_whitespace().any(|name| name == "memory") => {
                Some((Version::V2, root))
            }
            _ => None,
        }
    })
}

/// The file to which processes write that enter the cgroup.
pub fn open(directory: &Path) -> Result<File, String> {
    let file = directory.join("cgroup.procs");
    File::options().write(true).open(&file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Kills every process in the cgroup, waits until they are gone, and lifts the limit: files in memory that they leave
/// behind come back from swap when that is switched off. [`remove`] removes the directory.
pub fn end(directory: &Path) -> Result<(), String> {
    let file = directory.join("cgroup.procs");
    let begin = Instant::now();
    loop {
        let processes = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let processes: Vec<Pid> =
            processes.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw).collect();
        if processes.is_empty() {
            // The file of the other version does not exist.
            let _ = fs::write(directory.join("memory.limit_in_bytes"), "-1");
            let _ = fs::write(directory.join("memory.max"), "max");
            return Ok(());
        }
        for process in processes {
            // The process may have ended since the list was read.
            let _ = kill_process(process, Signal::KILL);
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("processes in {} do not end", directory.display()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Removes the empty cgroup. The kernel may keep it busy a little longer than its last process lives.
pub fn remove(directory: &Path) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if begin.elapsed() > PATIENCE => return Err(format!("{}: {error}", directory.display())),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_found_by_its_options() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n\
                      cgroup2 /c/unified cgroup2 rw 0 0\n";
        assert_eq!(hierarchy(mounts, |_| String::new()), Some((Version::V1, "/c/memory".into())));
    }

    #[test]
    fn version_2_is_found_by_its_controllers() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = hierarchy(mounts, |_| "cpuset cpu io memory pids\n".into());
        assert_eq!(found, Some((Version::V2, "/sys/fs/cgroup".into())));
        assert_eq!(hierarchy(mounts, |_| "cpu\n".into()), None);
    }
}
