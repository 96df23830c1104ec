//! The engine's descriptors, of which the program is to know nothing.

use std::ffi::c_long;

/// What a system call on one of the engine's descriptors gives: as on a number that is not open. `None`: it is none.
pub fn by_number(_number: c_long, _arguments: &[usize; 6]) -> Option<isize> {
    None
}
