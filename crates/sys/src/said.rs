//! What the kernel says, as text.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

/// Reads a file of `/proc` or `/sys`. What is not UTF-8 in it is replaced: names of files, and of programs, which the
/// kernel cuts within a letter.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The release of the kernel, as in 6.17.0-1-amd64.
pub fn kernel_release() -> String {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the kernel fills in a local of this frame, for which zeros are valid.
    let names = unsafe {
        libc::uname(names.as_mut_ptr());
        names.assume_init()
    };
    // SAFETY: the kernel ends each name with a NUL.
    unsafe { CStr::from_ptr(names.release.as_ptr()) }.to_string_lossy().into_owned()
}
