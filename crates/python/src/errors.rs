//! Errors as Python has them, with the sentence that the command line would print.

use folioswap::Error;
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};

/// A value that cannot be meant.
pub(crate) fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The exception for an error of the engine: `ValueError` for what was asked for, `MemoryError` for addresses and RAM
/// that are not available, `OSError` for the system and its devices.
pub(crate) fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match &error {
        Error::NoAddresses { .. } | Error::BadLength(_) | Error::NoMemoryToLock { .. } | Error::LockLimit { .. } => {
            PyMemoryError::new_err(text)
        }
        Error::System { error, .. } => match error.raw_os_error() {
            Some(libc::ENOMEM) => PyMemoryError::new_err(text),
            number => numbered(number, &text),
        },
        Error::SwapUnusable { number, .. } | Error::SwapTooSmall { number, .. } => numbered(*number, &text),
        Error::SwapTooLarge { .. } | Error::SwapInUse { .. } | Error::NoUserfaultfd { .. } | Error::NoMove(_) => {
            PyOSError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}

/// An `OSError`, or the class of it that Python has for this number. Python prints the number, so the text omits it.
pub(crate) fn numbered(number: Option<i32>, text: &str) -> PyErr {
    match number {
        Some(number) => PyOSError::new_err((number, text.replace(&format!(" (os error {number})"), ""))),
        None => PyOSError::new_err(text.to_owned()),
    }
}
