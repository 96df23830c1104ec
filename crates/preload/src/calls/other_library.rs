//! Programs of another C library than the GNU one are executed without this library: musl's loader ends a program for
//! which it cannot load a library that is to be preloaded. Calls of exec by number are not looked at.
//!
//! A child of vfork comes here too, so nothing is allocated.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::ptr::null;

use folioswap_sys::executable::{self, Obstacle};
use folioswap_sys::own_calls;
use libc::PATH_MAX;

use crate::ground::guard;
use crate::ground::real::kernel;
use crate::ground::state;
use crate::memory::access::{self, Access};

pub type List = *const *const c_char;

/// Part of this library's name.
const LIBRARY: &[u8] = b"libfolioswap_preload";

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// Where the C library looks without PATH.
const USUAL_PATH: &[u8] = b"/bin:/usr/bin";

/// Longer lists are left as they are.
const MOST_ENTRIES: usize = 1024;
const MOST_TEXT: usize = 1024;

/// Makes a call that executes a program, with the environment that it is to have. The path has to be in RAM.
pub fn at<R>(folder: c_int, path: *const c_char, environment: List, call: impl FnOnce(List) -> R) -> R {
    if guard::inside() || own_calls::is_used() {
        return call(environment); // the program's filter may refuse to open a file
    }
    // SAFETY: the caller's string, of which the first byte may be read.
    let is_empty = !path.is_null() && access::is_open(path as usize, 1, Access::Read) && unsafe { *path == 0 };
    let found = {
        let _guard = guard::enter();
        let mut place = [0; 32];
        let path = if is_empty { of_descriptor(folder, &mut place) } else { path };
        // SAFETY: the kernel reads the caller's path, or this one.
        state::keeping_errno(|| unsafe { executable::obstacle_at(folder, path) })
    };
    if found == Some(Obstacle::OtherLibrary) { without_library(environment, call) } else { call(environment) }
}

/// The path of an open file, in `place`.
fn of_descriptor(descriptor: c_int, mut place: &mut [u8]) -> *const c_char {
    let path = place.as_ptr().cast();
    let _ = write!(place, "/proc/self/fd/{descriptor}\0"); // it has room
    path
}

/// The same for a name that is looked for in PATH, unless it has a slash.
pub fn in_path<R>(name: *const c_char, environment: List, call: impl FnOnce(List) -> R) -> R {
    if name.is_null() || !access::is_open(name as usize, 1, Access::Read) {
        return call(environment);
    }
    // SAFETY: the caller's string.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    let mut place = [0; PATH_MAX as usize];
    let path = if text.contains(&b'/') { name } else { find(text, &mut place) };
    at(libc::AT_FDCWD, path, environment, call)
}

/// The first executable file of a name in PATH, as a path in `place`. Null: there is none.
fn find(name: &[u8], place: &mut [u8]) -> *const c_char {
    // SAFETY: a C string, and what the C library returns for it. No other thread may change the environment now.
    let list = unsafe {
        let list = libc::getenv(c"PATH".as_ptr());
        if list.is_null() { USUAL_PATH } else { CStr::from_ptr(list).to_bytes() }
    };
    for folder in list.split(|&byte| byte == b':') {
        let len = folder.len() + 1 + name.len();
        if len >= place.len() {
            continue;
        }
        let folder = if folder.is_empty() { b"." } else { folder };
        place[..folder.len()].copy_from_slice(folder);
        place[folder.len()] = b'/';
        place[folder.len() + 1..][..name.len()].copy_from_slice(name);
        place[folder.len() + 1 + name.len()] = 0;
        // SAFETY: a C string.
        let is_there = state::keeping_errno(|| unsafe {
            kernel!(libc::SYS_faccessat, libc::AT_FDCWD, place.as_ptr(), libc::X_OK) == 0
        });
        if is_there {
            return place.as_ptr().cast();
        }
    }
    null()
}

/// The text of an entry; `None` if the kernel could not read it.
fn text<'a>(entry: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: a string of the caller's, which may be read.
    unsafe { access::text_len(entry as usize).map(|len| std::slice::from_raw_parts(entry.cast(), len)) }
}

/// Makes the call with an environment whose LD_PRELOAD does not name this library.
#[inline(never)]
fn without_library<R>(environment: List, call: impl FnOnce(List) -> R) -> R {
    let (mut list, mut preload) = ([null(); MOST_ENTRIES], [0u8; MOST_TEXT]);
    for (index, place) in list.iter_mut().enumerate() {
        // SAFETY: the list ends with a null, which has not been passed.
        let Some(entry) = (unsafe { access::read(environment.wrapping_add(index)) }) else { break };
        if entry.is_null() {
            return call(list.as_ptr());
        }
        *place = entry;
        let Some(entry) = text(entry) else { break };
        if let Some(libraries) = entry.strip_prefix(PRELOAD) {
            if !write_others(libraries, &mut preload) {
                break;
            }
            *place = preload.as_ptr().cast();
        }
    }
    call(environment) // the kernel refuses the list, or it is too long
}

/// Writes LD_PRELOAD with the other libraries of a list. `false`: there is no room.
fn write_others(libraries: &[u8], text: &mut [u8]) -> bool {
    text[..PRELOAD.len()].copy_from_slice(PRELOAD);
    let mut len = PRELOAD.len();
    let is_ours = |library: &&[u8]| library.windows(LIBRARY.len()).any(|part| part == LIBRARY);
    for library in libraries.split(|byte| b": ".contains(byte)).filter(|library| !is_ours(library)) {
        if len + library.len() + 2 > text.len() {
            return false;
        }
        text[len..][..library.len()].copy_from_slice(library);
        text[len + library.len()] = b':';
        len += library.len() + 1;
    }
    text[len.saturating_sub(usize::from(len > PRELOAD.len()))] = 0;
    true
}
