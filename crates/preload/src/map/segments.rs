//! System V shared memory that the program attaches over memory of its own (SHM_REMAP). Elsewhere it is attached where
//! nothing is, and is not managed.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;

use crate::ground::export::export;
use crate::ground::real::{kernel, own};
use crate::ground::{guard, state};
use crate::map::mapping::{Replacing, replace};
use crate::map::{adopt, ring_places};
use crate::memory::known;
use crate::memory::pages::{are_possible, pages};
use folioswap::{BLOCK_BYTES, PAGE_SIZE};

/// The size of a segment; `None` if the kernel does not tell.
fn size_of_segment(id: c_int) -> Option<usize> {
    let mut about = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: the kernel fills the structure in on success.
    state::keeping_errno(|| unsafe {
        (kernel!(libc::SYS_shmctl, id, libc::IPC_STAT, about.as_mut_ptr()) == 0).then(|| about.assume_init().shm_segsz)
    })
}

/// Detaches what was attached just now. Returns whether it is made of huge pages, of which the kernel unmaps no part.
///
/// # Safety
/// Nobody knows of it.
unsafe fn is_huge_detached(at: *mut c_void, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let is_huge = own!(libc::SYS_munmap, at, PAGE_SIZE) != 0;
        own!(libc::SYS_munmap, at, if is_huge { len.next_multiple_of(BLOCK_BYTES) } else { len });
        is_huge
    }
}

/// Where a segment comes over other memory.
fn covered(id: c_int, addr: *const c_void, flags: c_int) -> Option<Range<usize>> {
    if flags & libc::SHM_REMAP == 0 || addr.is_null() || guard::inside() || !state::may_manage() {
        return None;
    }
    let start = if flags & libc::SHM_RND != 0 { addr as usize & !(PAGE_SIZE - 1) } else { addr as usize };
    let range = start..start.saturating_add(pages(size_of_segment(id)?));
    (!range.is_empty() && are_possible(&range)).then_some(range)
}

export! {
    fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
        // SAFETY: passes the caller's arguments on, or equivalent ones.
        let attach = |addr: *const c_void, flags: c_int| unsafe {
            kernel!(libc::SYS_shmat, id, addr, flags) as *mut c_void
        };
        let Some(range) = covered(id, addr, flags) else { return attach(addr, flags) };
        state::as_the_kernel(|| {
            ring_places::make_way(&range);
            let _guard = guard::enter();
            let _held = adopt::hold();
            // First elsewhere, so that what the kernel refuses leaves what is there.
            let trial = attach(null(), flags & !(libc::SHM_REMAP | libc::SHM_RND));
            if trial == libc::MAP_FAILED {
                return trial;
            }
            // SAFETY: attached just now, and known to nobody.
            let range = match unsafe { is_huge_detached(trial, range.len()) } {
                true => range.start..range.end.next_multiple_of(BLOCK_BYTES),
                false => range,
            };
            let replacing = Replacing { is_new: false, may_fail: true };
            known::forget_by(&range, || {
                match state::space().filter(|_| state::overlaps(range.start, range.len())) {
                    // SAFETY: the program gives up what is there.
                    Some(space) => unsafe { replace(space, &range, replacing, || attach(addr, flags)) },
                    None => attach(addr, flags),
                }
            })
        })
    }
}
