//! mmap and munmap under their names. What they do is in [`mapping`].

use std::ffi::{c_int, c_void};

use crate::calls::rings;
use crate::faults::signal_stack;
use crate::ground::export::{aliases, export};
use crate::ground::state;
use crate::map::mapping;
use crate::memory::pages::pages;

export! {
    fn mmap(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
        state::as_the_kernel(|| {
            let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
            let range = addr as usize..(addr as usize).saturating_add(pages(len));
            let _left = is_fixed.then(|| signal_stack::leave(&range));
            // SAFETY: passes the caller's arguments on unchanged.
            let mapped = unsafe { mapping::map(addr, len, access, flags, fd, offset) };
            let is_mapped = mapped != libc::MAP_FAILED && state::space().is_some();
            if is_mapped && flags & libc::MAP_FIXED != 0 {
                rings::note_unmapped(&(mapped as usize..(mapped as usize).saturating_add(len)));
            }
            if is_mapped && fd >= 0 {
                rings::note_mapped(fd, offset, mapped as usize);
            }
            mapped
        })
    }

    fn munmap(addr: *mut c_void, len: usize) -> c_int {
        state::as_the_kernel(|| {
            rings::note_unmapped(&(addr as usize..(addr as usize).saturating_add(len)));
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { mapping::unmap(addr, len) }
        })
    }
}

aliases! {
    fn mmap64 = mmap(addr: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
}
