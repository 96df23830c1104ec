//! Whether a library can be preloaded into a program, by the file that is executed, and which libraries the program
//! needs. The first question allocates nothing, so a child of vfork may ask it too.

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::{direct_io, taken};

/// Why a library for the GNU C library cannot be preloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// It is a 32-bit program.
    NarrowAddresses,
    /// It has no loader.
    Static,
    /// Its loader is another C library's. That of musl ends a program for which it cannot load a library.
    OtherLibrary,
}

/// How many scripts may be the interpreters of each other, as for the kernel.
const MOST_SCRIPTS: usize = 5;

/// Parts of the names of loaders of other C libraries: musl, uClibc, and Android's. All others may be the GNU one's.
const OTHER_LOADERS: [&[u8]; 3] = [b"ld-musl", b"uClibc", b"/linker64"];

const ELF_HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 56;
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// How the GNU C library's own loader is called, which is a program, too: it runs the one that it is told.
const GNU_LOADER: &[u8] = b"ld-linux";

/// What is in the way for a program at a path. Of a script the interpreter decides. `None`: nothing, or the file cannot
/// be read.
pub fn obstacle(path: &CStr) -> Option<Obstacle> {
    // SAFETY: a C string.
    unsafe { obstacle_at(libc::AT_FDCWD, path.as_ptr()) }
}

/// The same for a path in a folder, which the kernel reads.
///
/// # Safety
/// If the memory may be read, it holds a C string.
pub unsafe fn obstacle_at(folder: RawFd, path: *const c_char) -> Option<Obstacle> {
    let mut line = [0; 256];
    let mut file = open(folder, path).ok()?;
    for _ in 0..MOST_SCRIPTS {
        let len = read_at(&file, &mut line[..255], 0);
        let Some(named) = line[..len].strip_prefix(b"#!") else { return obstacle_in(&file) };
        let blanks = named.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let is_end = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | 0);
        let len = named[blanks..].iter().position(is_end).unwrap_or(named.len() - blanks);
        line[2 + blanks + len] = 0;
        file = open(libc::AT_FDCWD, line[2 + blanks..].as_ptr().cast()).ok()?;
    }
    None
}

/// Does not wait for the other end of a pipe. The path ends with a NUL.
fn open(folder: RawFd, path: *const c_char) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: the kernel reads the path.
    taken(unsafe { libc::syscall(libc::SYS_openat, folder, path, flags) })
}

/// Returns how many bytes there are.
fn read_at(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> usize {
    // SAFETY: the kernel writes at most the length of `bytes`.
    let read = unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), bytes.as_mut_ptr(), bytes.len(), offset) };
    usize::try_from(read).unwrap_or(0)
}

/// Looks at an ELF file.
fn obstacle_in(file: &OwnedFd) -> Option<Obstacle> {
    let mut head = [0; ELF_HEAD_BYTES];
    direct_io::pread_exact(file.as_raw_fd(), &mut head, 0).ok()?;
    if &head[..4] != b"\x7fELF" {
        return None;
    }
    if head[4] != 2 {
        return Some(Obstacle::NarrowAddresses);
    }
    let mut is_loader = false;
    for segment in segments(file, &head) {
        let [kind, offset, _, len] = segment?;
        if kind == PT_INTERP {
            let mut loader = [0; 256];
            let len = read_at(file, &mut loader, offset).min(len as usize);
            let has_name = |name: &&[u8]| loader[..len].windows(name.len()).any(|part| part == *name);
            return OTHER_LOADERS.iter().any(has_name).then_some(Obstacle::OtherLibrary);
        }
        is_loader |= kind == PT_DYNAMIC && is_gnu_loader(file, offset, len);
    }
    (!is_loader).then_some(Obstacle::Static)
}

/// The segments of a 64-bit ELF file: kind, place in the file, address and length. `None`: it cannot be read.
fn segments(file: &OwnedFd, head: &[u8]) -> impl Iterator<Item = Option<[u64; 4]>> {
    let half = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (table, entry_len, count) = (word(head, 32), half(54), half(56));
    (0..count).map(move |index| {
        let mut entry = [0; ENTRY_BYTES];
        direct_io::pread_exact(file.as_raw_fd(), &mut entry, table.checked_add(index * entry_len)?).ok()?;
        Some([word(&entry, 0) & u64::from(u32::MAX), word(&entry, 8), word(&entry, 16), word(&entry, 32)])
    })
}

/// The tags and values of a dynamic section.
fn dynamic(file: &OwnedFd, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    (offset..offset.saturating_add(len)).step_by(16).map_while(move |at| {
        let mut entry = [0; 16];
        direct_io::pread_exact(file.as_raw_fd(), &mut entry, at).ok()?;
        Some((word(&entry, 0), word(&entry, 8))).filter(|(tag, _)| *tag != 0)
    })
}

/// Whether a file has the loader's name in its dynamic section. There its addresses are offsets.
fn is_gnu_loader(file: &OwnedFd, offset: u64, len: u64) -> bool {
    let value = |wanted| dynamic(file, offset, len).find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
    let mut begin = [0; GNU_LOADER.len()];
    let at = value(DT_STRTAB).zip(value(DT_SONAME)).and_then(|(names, name)| names.checked_add(name));
    at.is_some_and(|at| read_at(file, &mut begin, at) == begin.len() && begin == *GNU_LOADER)
}

/// The names of the libraries that a 64-bit program needs. `None`: it is no such program, or cannot be read. Allocates.
pub fn needed(path: &CStr) -> Option<Vec<String>> {
    let file = open(libc::AT_FDCWD, path.as_ptr()).ok()?;
    let mut head = [0; ELF_HEAD_BYTES];
    direct_io::pread_exact(file.as_raw_fd(), &mut head, 0).ok()?;
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let segments = segments(&file, &head).collect::<Option<Vec<_>>>()?;
    let [_, start, _, len] = *segments.iter().find(|segment| segment[0] == PT_DYNAMIC)?;
    let names = dynamic(&file, start, len).find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let has_names = |[kind, _, addr, len]: &&[u64; 4]| *kind == PT_LOAD && names.wrapping_sub(*addr) < *len;
    let [_, offset, addr, _] = *segments.iter().find(has_names)?;
    let name = |(_, at): (u64, u64)| {
        let mut bytes = [0; 256];
        let len = read_at(&file, &mut bytes, (names - addr).checked_add(offset)?.checked_add(at)?);
        Some(CStr::from_bytes_until_nul(&bytes[..len]).ok()?.to_str().ok()?.to_owned())
    };
    Some(dynamic(&file, start, len).filter(|(tag, _)| *tag == DT_NEEDED).filter_map(name).collect())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::io::Write;

    /// What is in the way of a file with this content.
    fn of(content: &[u8]) -> Option<Obstacle> {
        let path = std::env::temp_dir().join(format!("folioswap-executable-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().write_all(content).unwrap();
        let found = obstacle(&CString::new(path.to_str().unwrap()).unwrap());
        std::fs::remove_file(path).unwrap();
        found
    }

    /// The head of a program with this loader.
    fn program(loader: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; ELF_HEAD_BYTES + ENTRY_BYTES];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        (bytes[32], bytes[54], bytes[56]) = (ELF_HEAD_BYTES as u8, ENTRY_BYTES as u8, u8::from(!loader.is_empty()));
        bytes[ELF_HEAD_BYTES] = PT_INTERP as u8;
        (bytes[ELF_HEAD_BYTES + 8], bytes[ELF_HEAD_BYTES + 32]) = (bytes.len() as u8, loader.len() as u8);
        bytes.extend(loader);
        bytes
    }

    #[test]
    fn the_loader_decides() {
        assert_eq!(obstacle(c"/bin/sh"), None);
        assert_eq!(obstacle(c"/lib64/ld-linux-x86-64.so.2"), None);
        assert_eq!(obstacle(c"/nowhere"), None);
        assert_eq!(of(b""), None);
        assert_eq!(of(b"echo\n"), None);
        assert_eq!(of(&program(b"/lib64/ld-linux-x86-64.so.2\0")), None);
        assert_eq!(of(&program(b"/lib/ld-musl-x86_64.so.1\0")), Some(Obstacle::OtherLibrary));
        assert_eq!(of(&program(b"")), Some(Obstacle::Static));
        assert_eq!(of(b"#! /bin/sh -e\n"), None);
        assert_eq!(of(b"#!"), None);
        let mut narrow = program(b"");
        narrow[4] = 1;
        assert_eq!(of(&narrow), Some(Obstacle::NarrowAddresses));
    }

    #[test]
    fn what_a_program_needs_is_read() {
        let own = needed(c"/proc/self/exe").unwrap();
        assert!(own.iter().any(|name| name.starts_with("libc.so")), "{own:?}");
        assert_eq!(needed(c"/etc/passwd"), None);
        assert_eq!(needed(c"/nowhere"), None);
    }
}
