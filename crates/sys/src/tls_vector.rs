//! The C library's vector of a thread's thread-local storage, by which a library finds its variables.
//!
//! glibc takes the vector of a new thread from the program's allocator, so it may be in managed memory. A thread of the
//! engine's that holds a lock while the vector has left RAM would wait for itself. So such a thread has a copy on its
//! own stack, where a forked child finds it too. The copy has room for libraries that the program loads later: glibc
//! would have the program's allocator enlarge it.

use std::ops::Range;

use crate::c_thread::HAS_RECORDS;

/// Libraries with thread-local variables for which a copy has room. With more, glibc would enlarge it, and end the
/// process: it is no block of the allocator's.
const ROOM: usize = 1022;

/// Where the variables of a library are, and what is to be freed. The entry before the first holds the number of those
/// behind the first, and the first the loader's generation.
type Entry = [usize; 2];

/// The vector of a thread. `None`: another C library or architecture.
///
/// # Safety
/// The thread has not ended.
pub unsafe fn of(thread: libc::pthread_t) -> Option<Range<usize>> {
    if !HAS_RECORDS {
        return None;
    }
    // SAFETY: the second word of the record points to the first entry.
    unsafe {
        let vector = (thread as *const *const Entry).add(1).read_volatile();
        let room = (*vector.sub(1))[0];
        Some(vector.sub(1) as usize..vector.add(room + 1) as usize)
    }
}

/// Runs `body` with a copy of the calling thread's vector. `record`: the C library's record of the thread, which it
/// gets back.
pub(crate) fn with_own<R>(record: usize, body: impl FnOnce() -> R) -> R {
    let place = (record as *mut *mut Entry).wrapping_add(1);
    let mut own: [Entry; ROOM + 2] = [[0; 2]; ROOM + 2];
    // SAFETY: the second word of the record points to the first entry. Nobody else uses a thread's vector, and this
    // thread uses no thread-local variable between the reads and the write.
    unsafe {
        let vector = place.read_volatile();
        let room = (*vector.sub(1))[0];
        if room > ROOM {
            return body();
        }
        own[..room + 2].copy_from_slice(std::slice::from_raw_parts(vector.sub(1), room + 2));
        own[0][0] = ROOM;
        place.write_volatile(&raw mut own[1]);
        let result = body();
        // What the C library frees at the end of the thread. Not the generation: the vector may be too short for it.
        for at in 1..=room {
            vector.add(at).write(own[at + 1]);
        }
        place.write_volatile(vector);
        result
    }
}
