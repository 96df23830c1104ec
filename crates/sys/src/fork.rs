//! Being told of forks.

use std::io;

/// Has `prepare` called before each fork of this process, in the thread that forks, and then `parent` and `child` in
/// the process that each names.
///
/// # Errors
/// ENOMEM.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: three functions that live as long as the program.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
