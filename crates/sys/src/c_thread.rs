//! What the C library keeps of threads: how many there are, and a record of each.
//!
//! A thread of which it does not know, or that it shall not count, is given what it needs here. Of other C libraries
//! than glibc nothing is known.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::static_tls;

/// Looks up what is needed later: a lookup makes the C library forget the text that dlerror is about to return.
pub fn prepare() {
    id_offset();
    cpu_offset();
    counted_threads();
}

/// The C library's record of the calling thread, to which the thread register points.
pub(crate) fn own_record() -> Option<usize> {
    // SAFETY: takes no pointers.
    HAS_RECORDS.then(|| unsafe { libc::pthread_self() } as usize)
}

/// Whether a handle of the C library's is the address of its record, as in glibc.
pub(crate) const HAS_RECORDS: bool = cfg!(target_env = "gnu");

/// Where the C library has a thread's id, from its record on, as it tells debuggers. `None`: it tells nobody.
pub(crate) fn id_offset() -> Option<usize> {
    /// How glibc describes a field: its bits, how many there are, and where the first is.
    type Field = [u32; 3];
    static OFFSET: OnceLock<Option<usize>> = OnceLock::new();
    // SAFETY: the name is NUL-terminated. The symbol of this name is such a constant.
    *OFFSET.get_or_init(|| unsafe {
        let field = libc::dlsym(libc::RTLD_DEFAULT, c"_thread_db_pthread_tid".as_ptr()).cast::<Field>().as_ref();
        field.filter(|[bits, count, _]| (*bits, *count) == (u32::BITS, 1)).map(|field| field[2] as usize)
    })
}

/// Where the C library has a thread's CPU, from its record on. The kernel writes it there (glibc 2.35).
pub(crate) fn cpu_offset() -> Option<isize> {
    const CPU_FIELD: isize = 4;
    static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
    // SAFETY: the names are NUL-terminated. The symbols of these names are such numbers.
    *OFFSET.get_or_init(|| unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        (!offset.is_null() && !size.is_null() && *size > 0).then(|| *offset + CPU_FIELD)
    })
}

/// In a child that the C library does not know of: it has one thread.
pub fn is_alone() {
    counted_threads().inspect(|counted| counted.store(1, Ordering::SeqCst));
}

/// Whether the C library knows of one thread only, besides those in seats.
pub fn has_one_other() -> bool {
    counted_threads().is_some_and(|counted| counted.load(Ordering::SeqCst) == 1)
}

/// How many threads the C library counts: an `unsigned int` of glibc's that only debuggers may rely on. `None`: another
/// C library, or glibc before 2.34. The process then outlives a last thread that calls `pthread_exit`.
pub(crate) fn counted_threads() -> Option<&'static AtomicU32> {
    static COUNTED: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    // SAFETY: the name is NUL-terminated. The symbol of this name is a number that all threads change atomically.
    *COUNTED.get_or_init(|| unsafe {
        libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()).cast::<AtomicU32>().as_ref()
    })
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

/// While this lives, the calling thread is not cancelled: many functions of the C library would end it, locks held.
/// Dropping it may end a thread that is cancelled asynchronously: signals should be as before by then.
pub struct Uncancelled {
    /// State and type before. `None`: the C library has no record of this thread, which it cannot cancel.
    before: Option<[c_int; 2]>,
}

/// Keeps the calling thread from being cancelled. Takes some 20 ns.
#[must_use]
pub fn uncancelled() -> Uncancelled {
    let [mut state, mut kind] = [0; 2];
    if !is_known() {
        return Uncancelled { before: None };
    }
    // SAFETY: the C library fills in the locals.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state);
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut kind);
    }
    Uncancelled { before: Some([state, kind]) }
}

/// Whether the thread pointer is the address of a record of the C library's, which the record holds, too. A thread that
/// the program has started by a system call may have set another.
fn is_known() -> bool {
    own_record().is_none_or(|record| record == static_tls::thread_pointer())
}

impl Uncancelled {
    /// Permits it again, at functions of the C library. To be called before signals are as they were: the one that
    /// cancels ends no thread yet.
    pub fn permit(&self) {
        if let Some([state, _]) = self.before {
            // SAFETY: a state that the C library has returned.
            unsafe { pthread_setcancelstate(state, std::ptr::null_mut()) };
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        self.permit();
        if let Some([_, kind]) = self.before.filter(|[_, kind]| *kind != PTHREAD_CANCEL_DEFERRED) {
            // SAFETY: a type that the C library has returned.
            unsafe { pthread_setcanceltype(kind, std::ptr::null_mut()) };
        }
    }
}
