//! Error codes, and for each thread the sentence of its last error.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};

use ::folioswap::Error;

/// What functions return that can fail. `folioswap_message` has the sentence.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum folioswap_error {
    /// No error.
    FOLIOSWAP_OK = 0,
    /// An argument is not valid: a size, a name, an address that is not the pool's.
    FOLIOSWAP_INVALID = 1,
    /// Addresses or RAM are not available.
    FOLIOSWAP_NO_MEMORY = 2,
    /// A swap device cannot be used.
    FOLIOSWAP_SWAP = 3,
    /// The kernel does not permit userfaultfd.
    FOLIOSWAP_NOT_PERMITTED = 4,
    /// A system call failed.
    FOLIOSWAP_SYSTEM = 5,
    /// A swap device has lost content.
    FOLIOSWAP_LOST = 6,
}

use folioswap_error::*;

/// The longest sentence, with its end.
const MOST_BYTES: usize = 1024;

thread_local! {
    /// Without a destructor, for which the C library would take memory from the program's allocator.
    static MESSAGE: UnsafeCell<[u8; MOST_BYTES]> = const { UnsafeCell::new([0; MOST_BYTES]) };
}

/// Leaves a sentence for the thread.
pub(crate) fn fail(error: folioswap_error, message: impl std::fmt::Display) -> folioswap_error {
    let message = message.to_string().replace('\0', " ");
    let len = (0..MOST_BYTES.min(message.len() + 1)).rfind(|&end| message.is_char_boundary(end)).unwrap_or(0);
    MESSAGE.with(|kept| {
        // SAFETY: the thread's own bytes, of which nothing is borrowed here. C reads them between two errors.
        let kept = unsafe { &mut *kept.get() };
        kept[..len].copy_from_slice(&message.as_bytes()[..len]);
        kept[len] = 0;
    });
    error
}

/// The code for an error of the engine, whose sentence is left for the thread.
pub(crate) fn failed(error: Error) -> folioswap_error {
    let code = match &error {
        Error::BadLength(0) => FOLIOSWAP_INVALID,
        // Of other lengths: longer than all addresses.
        Error::NoAddresses { .. } | Error::BadLength(_) | Error::NoMemoryToLock { .. } | Error::LockLimit { .. } => {
            FOLIOSWAP_NO_MEMORY
        }
        Error::System { error, .. } if error.raw_os_error() == Some(libc::ENOMEM) => FOLIOSWAP_NO_MEMORY,
        Error::System { .. } => FOLIOSWAP_SYSTEM,
        Error::SwapUnusable { .. }
        | Error::SwapTooSmall { .. }
        | Error::SwapTooLarge { .. }
        | Error::SwapInUse { .. } => FOLIOSWAP_SWAP,
        Error::NoUserfaultfd { .. } | Error::NoMove(_) => FOLIOSWAP_NOT_PERMITTED,
        _ => FOLIOSWAP_INVALID,
    };
    fail(code, error)
}

/// The sentence of the calling thread's last error: what is wrong, and what would help. Valid until the thread's next
/// error. Empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn folioswap_message() -> *const c_char {
    MESSAGE.with(|message| message.get().cast())
}

/// What a code means in general. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn folioswap_error_text(error: c_int) -> *const c_char {
    let texts = [
        (FOLIOSWAP_OK, c"no error"),
        (FOLIOSWAP_INVALID, c"an argument is not valid"),
        (FOLIOSWAP_NO_MEMORY, c"addresses or RAM are not available"),
        (FOLIOSWAP_SWAP, c"a swap device cannot be used"),
        (FOLIOSWAP_NOT_PERMITTED, c"the kernel does not permit userfaultfd"),
        (FOLIOSWAP_SYSTEM, c"a system call failed"),
        (FOLIOSWAP_LOST, c"a swap device has lost content"),
    ];
    let found = texts.into_iter().find(|(code, _)| *code as c_int == error);
    found.map_or(c"unknown error", |(_, text)| text).as_ptr()
}
