//! The sanitizer's library of a program that was linked with one. It must be loaded before all others that are
//! preloaded: it refuses to start otherwise, or misses what the others call.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Parts of the names of libraries that must come first.
const NAMES: [&str; 6] =
    ["libasan.so", "libtsan.so", "liblsan.so", "libhwasan.so", "libclang_rt.asan", "libclang_rt.tsan"];

/// The most bytes of a table that are looked at.
const MOST: usize = 1 << 20;

/// The name of the sanitizer's library among those that the program needs.
pub fn needed_by(program: &Path) -> Option<String> {
    Elf::open(program)?.needed().into_iter().find(|name| NAMES.iter().any(|part| name.starts_with(part)))
}

/// A 64-bit little-endian ELF file.
struct Elf {
    file: File,
    /// Type, offset, address and length of each segment.
    segments: Vec<[u64; 4]>,
}

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

impl Elf {
    fn open(path: &Path) -> Option<Elf> {
        let file = File::open(path).ok()?;
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).ok()?;
        if head[..6] != *b"\x7fELF\x02\x01" {
            return None;
        }
        let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (entry_len, count) = (half(54), half(56));
        if entry_len < 56 {
            return None;
        }
        let mut table = vec![0; entry_len * count];
        file.read_exact_at(&mut table, word(&head, 32)?).ok()?;
        let segment = |entry: &[u8]| {
            Some([word(entry, 0)? & u64::from(u32::MAX), word(entry, 8)?, word(entry, 16)?, word(entry, 32)?])
        };
        let segments = table.chunks_exact(entry_len).filter_map(segment).collect();
        Some(Elf { file, segments })
    }

    /// The names of the libraries that it needs.
    fn needed(&self) -> Vec<String> {
        self.names().unwrap_or_default()
    }

    fn names(&self) -> Option<Vec<String>> {
        let [_, offset, _, len] = *self.segments.iter().find(|segment| segment[0] == PT_DYNAMIC)?;
        let mut dynamic = vec![0; usize::try_from(len).ok()?.min(MOST)];
        self.file.read_exact_at(&mut dynamic, offset).ok()?;
        let entries: Vec<(u64, u64)> =
            dynamic.chunks_exact(16).filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?))).collect();
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
        let [_, offset, addr, _] = *self
            .segments
            .iter()
            .find(|[kind, _, addr, len]| *kind == PT_LOAD && strings >= *addr && strings - addr < *len)?;
        let name = |(_, at): &(u64, u64)| {
            let mut bytes = [0; 256];
            let read = self.file.read_at(&mut bytes, offset + (strings - addr) + at).ok()?;
            let end = bytes[..read].iter().position(|&byte| byte == 0)?;
            String::from_utf8(bytes[..end].to_vec()).ok()
        };
        Some(entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(name).collect())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_is_read() {
        let own = std::env::current_exe().unwrap();
        let needed = Elf::open(&own).unwrap().needed();
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
        assert_eq!(needed_by(&own), None);
        assert_eq!(needed_by(Path::new("/etc/passwd")), None);
        assert_eq!(needed_by(Path::new("/nowhere")), None);
    }
}
