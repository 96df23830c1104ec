//! brk and sbrk: the memory behind the program's data, which some allocators use.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use folioswap_sys::said;

use crate::ground::export::{aliases, export, real};
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::map::adopt;
use crate::map::managed::manage;
use crate::map::mapping::{Replacing, replace};
use crate::map::ring_places;
use crate::memory::pages::pages;
use crate::memory::refused;
use crate::memory::{known, open_pages};

// The C library keeps in mind where the end is. Its sbrk is not called: an allocator's may stand before it, which calls
// this library's.
real!(BRK = c"brk": fn(*mut c_void) -> c_int);

fn now() -> usize {
    // SAFETY: an impossible address changes nothing.
    unsafe { own!(libc::SYS_brk, 0usize) as usize }
}

/// Where this memory begins: the kernel moves the end no lower. Zero, if it does not say.
fn start() -> usize {
    static START: OnceLock<usize> = OnceLock::new();
    // The command's name, which comes before, may hold spaces.
    const FIELDS_BEHIND_NAME: usize = 44;
    *START.get_or_init(|| {
        let text = said::read("/proc/self/stat").unwrap_or_default();
        let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
        fields.split(' ').nth(FIELDS_BEHIND_NAME).and_then(|field| field.parse().ok()).unwrap_or(0)
    })
}

/// Moves the end by a call that returns 0 or -1. What it grows by is managed, unless there is room.
fn change(wanted: usize, call: impl FnOnce() -> c_int) -> c_int {
    let (old, new) = (pages(now()), pages(wanted));
    adopt::make_room(new.saturating_sub(old));
    if guard::inside() || !state::may_manage() || wanted == 0 {
        return call();
    }
    ring_places::make_way(&(old..new));
    let _guard = guard::enter();
    let _held = adopt::hold();
    if new < old {
        if wanted < start() {
            return call(); // which changes nothing
        }
        let gone = new..old;
        let replacing = state::space().map(|space| Replacing::removing(space, &gone));
        return known::forget_by(&gone, || match state::space().zip(replacing) {
            Some((space, replacing)) if state::overlaps(gone.start, gone.len()) => {
                // SAFETY: the program gives this memory up.
                unsafe { replace(space, &gone, replacing, call) }
            }
            _ => call(),
        });
    }
    let result = call();
    if result == 0 && new > old {
        let grown = old..new;
        known::forget(&grown);
        open_pages::note_open(&grown);
        match state::space() {
            Some(space) if !adopt::has_room(grown.len()) => manage(space, grown),
            _ => known::note_ordinary(grown),
        }
    } else if new > old {
        refused::note(new - old);
    }
    result
}

/// Implements the system call: returns the end as it is afterwards.
pub fn by_number(wanted: usize) -> usize {
    change(wanted, || {
        // SAFETY: the program's own call.
        if unsafe { own!(libc::SYS_brk, wanted) as usize } == wanted { 0 } else { -1 }
    });
    now()
}

export! {
    fn brk(end: *mut c_void) -> c_int {
        // SAFETY: the caller's call.
        state::as_the_kernel(|| change(end as usize, || unsafe { BRK.get()(end) }))
    }

    fn sbrk(more: isize) -> *mut c_void {
        state::as_the_kernel(|| {
            let old = now();
            let moved = old.checked_add_signed(more).map(|end| match more {
                0 => 0,
                // SAFETY: the caller's call.
                _ => change(end, || unsafe { BRK.get()(end as *mut c_void) }),
            });
            if moved == Some(0) {
                return old as *mut c_void;
            }
            state::fail(libc::ENOMEM);
            libc::MAP_FAILED
        })
    }
}

aliases! {
    // tcmalloc defines sbrk itself, and calls this.
    fn __sbrk = sbrk(more: isize) -> *mut c_void;
}
