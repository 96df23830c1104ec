//! Programs that are built with a sanitizer, or that valgrind runs.
//!
//! A sanitizer has an allocator and shadow memory of its own, whose mappings no library sees, and reads all memory when
//! it looks for leaks. So such a program's memory is not paged. The sanitizer's library comes before this one: the
//! command has put it in front. valgrind knows no userfaultfd, and is ended by what catches system calls.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::ground::symbols::Objects;

/// The functions that sanitizers with an allocator of their own export.
const STARTS: [&CStr; 5] = [c"__asan_init", c"__tsan_init", c"__msan_init", c"__hwasan_init", c"__lsan_init"];

/// What the command has put in front of LD_PRELOAD, for this program alone.
const IN_FRONT: &str = "FOLIOSWAP_IN_FRONT";
const PRELOAD: &str = "LD_PRELOAD";

/// Why the program is not to be managed, if it is so.
pub fn found() -> Option<&'static str> {
    if is_valgrind() {
        return Some("valgrind runs it");
    }
    is_there().then_some("it is built with a sanitizer")
}

fn is_there() -> bool {
    if let Some(put) = std::env::var_os(IN_FRONT) {
        let list = std::env::var_os(PRELOAD).unwrap_or_default();
        let rest = list.as_bytes().strip_prefix(put.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
        // SAFETY: the constructors run on the process's only thread.
        unsafe {
            rest.into_iter().for_each(|rest| std::env::set_var(PRELOAD, OsString::from_vec(rest.to_vec())));
            std::env::remove_var(IN_FRONT);
        }
    }
    let objects = Objects::loaded();
    STARTS.iter().any(|name| objects.define_elsewhere(name, false))
}

/// Whether valgrind runs the program.
fn is_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut found = 0u64;
    // SAFETY: these instructions change nothing but flags. valgrind, where it runs them, sees a request and puts the
    // answer in rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") found,
            options(nostack, readonly),
        );
    }
    found != 0
}
