//! The sanitizer's library of a program that was linked with one. It must be loaded before all others that are
//! preloaded: it refuses to start otherwise, or misses what the others call.

use folioswap_sys::executable;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Parts of the names of libraries that must come first.
const NAMES: [&str; 6] =
    ["libasan.so", "libtsan.so", "liblsan.so", "libhwasan.so", "libclang_rt.asan", "libclang_rt.tsan"];

/// The name of the sanitizer's library among those that the program needs.
pub fn needed_by(program: &Path) -> Option<String> {
    let program = CString::new(program.as_os_str().as_bytes()).ok()?;
    executable::needed(&program)?.into_iter().find(|name| NAMES.iter().any(|part| name.starts_with(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_one_needs_none() {
        assert_eq!(needed_by(&std::env::current_exe().unwrap()), None);
        assert_eq!(needed_by(Path::new("/etc/passwd")), None);
    }
}
