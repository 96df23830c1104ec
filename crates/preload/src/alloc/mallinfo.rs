//! mallinfo and mallinfo2: how much of the heaps is in use. Large blocks count as the C library's own mappings do. Of
//! the program heap's small blocks only the calling thread's are counted: other threads change theirs meanwhile.

use std::ffi::{c_int, c_void};

use libmimalloc_sys as mi;

use crate::alloc::{huge, program_heap};
use crate::ground::export::{export, real};
use crate::ground::guard;
use crate::ground::heap::ORDINARY;
use crate::ground::state::{self, Phase};

/// The C library's structure.
#[repr(C)]
#[derive(Default)]
pub struct Info<N> {
    /// Bytes of small blocks and the free memory between them, and the pieces of it.
    arena: N,
    ordblks: N,
    smblks: N,
    /// Large blocks, and their bytes.
    hblks: N,
    hblkhd: N,
    usmblks: N,
    fsmblks: N,
    /// Bytes of small blocks in use, and free.
    uordblks: N,
    fordblks: N,
    keepcost: N,
}

real!(INFO = c"mallinfo": fn() -> Info<c_int>);
real!(INFO_2 = c"mallinfo2": fn() -> Info<usize>);

unsafe extern "C" fn add_area(
    _: *const mi::mi_heap_t,
    area: *const mi::mi_heap_area_t,
    _: *mut c_void,
    _: usize,
    info: *mut c_void,
) -> bool {
    // SAFETY: mimalloc describes an area, and passes on what `info` gave it.
    let (area, info) = unsafe { (&*area, &mut *info.cast::<Info<usize>>()) };
    let used = area.used * area.full_block_size; // it is a number of blocks
    info.arena += area.committed;
    info.ordblks += 1;
    info.uordblks += used;
    info.fordblks += area.committed.saturating_sub(used);
    true
}

fn info() -> Info<usize> {
    let _guard = guard::enter();
    let ordinary = ORDINARY.used();
    let mut info = Info { arena: ordinary, uordblks: ordinary, ..Info::default() };
    if program_heap::is_ready() {
        let to = (&raw mut info).cast::<c_void>();
        // SAFETY: the calling thread's own heap, which it does not change meanwhile: no handler interrupts it.
        unsafe { mi::mi_heap_visit_blocks(mi::mi_heap_get_default(), false, Some(add_area), to) };
    }
    let blocks = huge::blocks();
    Info { hblks: blocks.len(), hblkhd: blocks.values().sum(), ..info }
}

export! {
    fn mallinfo2() -> Info<usize> {
        match state::phase() {
            // It came with glibc 2.33.
            // SAFETY: takes no pointers.
            Phase::Passing => INFO_2.find().map_or_else(Info::default, |real| unsafe { real() }),
            _ => info(),
        }
    }

    fn mallinfo() -> Info<c_int> {
        if state::phase() == Phase::Passing {
            // SAFETY: takes no pointers.
            return unsafe { INFO.get()() };
        }
        let all = info();
        Info {
            arena: all.arena as c_int,
            ordblks: all.ordblks as c_int,
            hblks: all.hblks as c_int,
            hblkhd: all.hblkhd as c_int,
            uordblks: all.uordblks as c_int,
            fordblks: all.fordblks as c_int,
            ..Info::default()
        }
    }
}
