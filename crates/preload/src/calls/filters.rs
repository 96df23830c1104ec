//! Seccomp filters that the program sets.
//!
//! A filter that is put on all threads is put on the engine's, too, and one thread's filter sees what the engine does
//! on that thread. So the engine's calls are exempt (`folioswap_sys::own_calls`), and what it needs besides is there
//! before the filter: threads, descriptors, buffers. Strict mode, which exempts nobody, is set as a filter that permits
//! the same.

use std::ffi::c_long;

use folioswap_sys::own_calls;

use crate::faults::{only_thread, ours};
use crate::ground::real::raw_result;
use crate::ground::{guard, state};
use crate::map::{adopt, footprint};
use crate::memory::access::{self, Access};

/// Operations of `seccomp`. `prctl` has them one higher.
const STRICT: usize = libc::SECCOMP_SET_MODE_STRICT as usize;
const FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;

/// Makes the call if it sets a filter. Returns the kernel's result.
///
/// # Safety
/// As the system call.
pub unsafe fn set(number: c_long, words: &[usize; 6]) -> Option<isize> {
    let &[a, b, c, ..] = words;
    let (operation, description) = match number {
        libc::SYS_seccomp => (a, c),
        libc::SYS_prctl if a == libc::PR_SET_SECCOMP as usize => (b.wrapping_sub(1), c),
        _ => return None,
    };
    adopt::now();
    if !own_calls::is_prepared() {
        return None;
    }
    // SAFETY: takes no pointers.
    let is_filtered = || unsafe { raw_result(libc::SYS_prctl, &[libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) > 0 };
    if operation == STRICT && own_calls::is_used() && (number == libc::SYS_seccomp || is_filtered()) {
        return Some(-(libc::EINVAL as isize)); // as the kernel says where the thread has a filter
    }
    let exempting = {
        let _guard = guard::enter();
        let mut filter = match operation {
            STRICT if number == libc::SYS_prctl || (b == 0 && c == 0) => own_calls::strict(),
            // SAFETY: the caller passes the description of a filter.
            FILTER => unsafe { read(description) }?,
            _ => return None,
        };
        if only_thread::has_one_thread() {
            own_calls::end_the_process(&mut filter);
        }
        let exempting = own_calls::exempting(&filter, ours::has_ours());
        let Some(exempting) = exempting.filter(|_| !filter.is_empty()) else {
            state::say("a seccomp filter is too long to exempt folioswap from it");
            return None;
        };
        if let Some(arena) = state::arena() {
            state::keeping_errno(|| arena.prepare_for_limits());
        }
        footprint::before_filter();
        own_calls::begin();
        exempting
    };
    let program = libc::sock_fprog { len: exempting.len() as u16, filter: exempting.as_ptr().cast_mut() };
    let at = &raw const program as usize;
    // SAFETY: the caller's call, with a filter that is as its own for all calls but the engine's. The kernel copies it.
    let result = unsafe {
        if operation == STRICT {
            let no_new_privileges = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0];
            raw_result(libc::SYS_prctl, &no_new_privileges); // such a thread executes nothing any more
            raw_result(libc::SYS_seccomp, &[FILTER, 0, at, 0, 0, 0])
        } else {
            let mut words = *words;
            words[2] = at;
            raw_result(number, &words)
        }
    };
    let _guard = guard::enter();
    drop(exempting);
    Some(result)
}

/// A copy of the program's filter. `None`: there is none where it says, and the kernel may say so.
///
/// # Safety
/// If the memory can be read, it is such a description.
unsafe fn read(description: usize) -> Option<Vec<libc::sock_filter>> {
    // SAFETY: the caller upholds this function's own contract.
    let program = unsafe { access::read(description as *const libc::sock_fprog) }?;
    let bytes = usize::from(program.len) * size_of::<libc::sock_filter>();
    if program.filter.is_null() || bytes == 0 || !access::is_open(program.filter as usize, bytes, Access::Read) {
        return None;
    }
    // SAFETY: so many steps lie there.
    Some(unsafe { std::slice::from_raw_parts(program.filter, program.len.into()) }.to_vec())
}
