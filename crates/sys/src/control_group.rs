//! The memory control groups around this process, of version 1 and 2: their limits, and what is left of them.
//!
//! A limit holds for all groups below its own, so each is looked for from the process's group up to the base of the
//! hierarchy. The files are read anew at each call: administrators change limits while a process runs.

use std::path::{Path, PathBuf};

use crate::said;

/// Where distributions and containers mount the hierarchies.
const ROOT: &str = "/sys/fs/cgroup";

/// The lowest limit of RAM in bytes that the kernel holds this process to; `u64::MAX` without one.
pub fn memory_limit() -> u64 {
    least(Path::new(ROOT), &membership(), |group| group.number(group.names.limit))
}

/// The least RAM in bytes that is left in a group of this process; `u64::MAX` without a limit. Page cache counts as
/// left, since it gives way.
pub fn memory_left() -> u64 {
    least(Path::new(ROOT), &membership(), Group::left)
}

fn membership() -> String {
    said::read("/proc/self/cgroup").unwrap_or_default()
}

/// File names of a memory control group: limit, usage, and the statistics of page cache, which can be reclaimed.
struct Names {
    limit: &'static str,
    used: &'static str,
    files: [&'static str; 2],
}

const FIRST_VERSION: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_active_file", "total_inactive_file"],
};
const SECOND_VERSION: Names =
    Names { limit: "memory.max", used: "memory.current", files: ["active_file", "inactive_file"] };

/// The least that `bytes_of` says of any group of a process, including those above.
fn least(root: &Path, membership: &str, bytes_of: impl Fn(&Group) -> Option<u64>) -> u64 {
    let mut least = u64::MAX;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (base, names) = match controllers {
            "" => (root.to_owned(), &SECOND_VERSION),
            named if named.split(',').any(|name| name == "memory") => (root.join("memory"), &FIRST_VERSION),
            _ => continue,
        };
        // In a container the path may belong to another cgroup namespace; the process's own group is then at the base.
        let mut group = Group { directory: base.join(path.trim_start_matches('/')), names };
        loop {
            least = least.min(bytes_of(&group).unwrap_or(u64::MAX));
            if group.directory == base || !group.directory.pop() {
                break;
            }
        }
    }
    least
}

struct Group {
    directory: PathBuf,
    names: &'static Names,
}

impl Group {
    /// What a file of the group says; `None` also for `max`.
    fn number(&self, name: &str) -> Option<u64> {
        said::read(self.directory.join(name)).ok()?.trim().parse().ok()
    }

    /// What is left; `None` without a limit.
    fn left(&self) -> Option<u64> {
        let (limit, used) = (self.number(self.names.limit)?, self.number(self.names.used)?);
        let stat = said::read(self.directory.join("memory.stat")).unwrap_or_default();
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let cached: u64 = fields
            .filter(|(name, _)| self.names.files.contains(name))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum();
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn groups_above_count_too_and_cached_files_give_way() {
        let root = std::env::temp_dir().join(format!("folioswap-groups-{}", std::process::id()));
        for (name, text) in [
            ("memory.max", "max\n"),
            ("memory.current", "1\n"),
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "700\n"),
            ("a/memory.stat", "anon 400\nactive_file 100\ninactive_file 200\nfile 300\n"),
            ("a/b/memory.max", "5000\n"),
            ("a/b/memory.current", "100\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/memory.usage_in_bytes", "100\n"),
            ("memory/c/memory.limit_in_bytes", "300\n"),
            ("memory/c/memory.usage_in_bytes", "100\n"),
            ("memory/c/memory.stat", "inactive_file 5\ntotal_inactive_file 50\n"),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let left = |membership| least(&root, membership, Group::left);
        let limit = |membership| least(&root, membership, |group| group.number(group.names.limit));
        for (membership, limit_bytes, left_bytes) in [
            ("0::/\n", u64::MAX, u64::MAX),
            ("0::/a\n", 1000, 600),
            ("0::/a/b/gone\n", 1000, 600),
            ("0::/../elsewhere\n", u64::MAX, u64::MAX),
            ("5:cpu:/\n4:cpuset,memory:/c\n0::/a\n", 300, 250),
            ("4:cpuset,memory:/c/d\n0::/\n", 300, 250),
            ("nonsense", u64::MAX, u64::MAX),
        ] {
            assert_eq!((limit(membership), left(membership)), (limit_bytes, left_bytes), "{membership}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
