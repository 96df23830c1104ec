//! Texts that the C library allocates for the program, as blocks of the program's: by its own calls of `malloc` they
//! would be taken for buffers of its own ([`malloc`]).

use std::ffi::c_char;

use libc::wchar_t;

use crate::alloc::malloc;
use crate::ground::c_library;
use crate::ground::export::{aliases, export, real};
use crate::ground::heap::ORDINARY;

real!(STRDUP = c"strdup": fn(*const c_char) -> *mut c_char);
real!(STRNDUP = c"strndup": fn(*const c_char, usize) -> *mut c_char);
real!(WCSDUP = c"wcsdup": fn(*const wchar_t) -> *mut wchar_t);

export! {
    fn strdup(text: *const c_char) -> *mut c_char {
        // SAFETY: the caller's text.
        unsafe {
            match c_library::has_other_malloc() {
                true => STRDUP.get()(text),
                false => malloc::copy(text.cast(), libc::strlen(text), 1).cast(),
            }
        }
    }

    fn strndup(text: *const c_char, most: usize) -> *mut c_char {
        // SAFETY: the caller's text.
        unsafe {
            match c_library::has_other_malloc() {
                true => STRNDUP.get()(text, most),
                false => malloc::copy(text.cast(), libc::strnlen(text, most), 1).cast(),
            }
        }
    }

    fn wcsdup(text: *const wchar_t) -> *mut wchar_t {
        const CHARACTER: usize = size_of::<wchar_t>();
        // SAFETY: the caller's text.
        unsafe {
            match c_library::has_other_malloc() {
                true => WCSDUP.get()(text),
                false => malloc::copy(text.cast(), libc::wcslen(text) * CHARACTER, CHARACTER).cast(),
            }
        }
    }
}

/// The program's own block in place of a text that the C library has allocated and written; the same text if there is
/// no memory.
///
/// # Safety
/// The text is a block with a zero behind its last of `len` bytes.
pub unsafe fn moved(text: *mut c_char, len: usize) -> *mut c_char {
    if !ORDINARY.owns(text.cast()) {
        return text; // where it belongs, or another allocator's
    }
    // SAFETY: the caller gives the text up for its copy.
    unsafe {
        let copy = malloc::copy(text.cast(), len, 1);
        if copy.is_null() {
            return text;
        }
        malloc::free(text.cast());
        copy.cast()
    }
}

aliases! {
    fn __strdup = strdup(text: *const c_char) -> *mut c_char;
    fn __strndup = strndup(text: *const c_char, most: usize) -> *mut c_char;
}
