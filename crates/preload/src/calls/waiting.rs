//! Functions that sleep on words of the program's, in direct mode. The C library touches a word just before the kernel
//! looks at it, and ends the process if it is not in RAM then. So the folios of these words stay in RAM as long as the
//! thread may sleep. Where that is possible, the call is first tried without sleeping. In monitor mode that holds for
//! mutexes that hand a priority on: the kernel writes to their words, and waits for no page then.
//!
//! A jump out of a handler leaves a folio in RAM for good.

use std::ffi::c_int;

use libc::{clockid_t, pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, sem_t, timespec};

use folioswap::{PAGE_SIZE, Waited};

use crate::calls::copied::{self, Copied};
use crate::ground::export::{aliases, export, real, real_of};
use crate::ground::{guard, state};

/// Whether the kernel may find a word missing. `inherits`: of a mutex that hands a priority on.
fn is_needed(inherits: bool) -> bool {
    (state::direct() || inherits && state::space().is_some()) && !guard::inside()
}

/// What threads sleep on.
trait Word {
    /// Whether it is a mutex that hands its holder a waiter's priority.
    ///
    /// # Safety
    /// The caller's, of this type.
    unsafe fn inherits(_at: *const Self) -> bool {
        false
    }
}

impl Word for pthread_mutex_t {
    unsafe fn inherits(at: *const pthread_mutex_t) -> bool {
        /// Where the C library notes the kind of a mutex, and the bit for this one.
        const KIND_AT: usize = 16;
        const INHERITS: c_int = 0x20;
        // SAFETY: the caller's mutex.
        unsafe { at.byte_add(KIND_AT).cast::<c_int>().read() & INHERITS != 0 }
    }
}

impl Word for pthread_cond_t {}
impl Word for pthread_rwlock_t {}
impl Word for pthread_barrier_t {}
impl Word for sem_t {}

/// An argument of the program's.
trait Given: Sized {
    /// What is kept until the call is over.
    type Kept;

    fn inherits(&self) -> bool {
        false
    }

    /// As the C library's function takes it.
    ///
    /// # Safety
    /// The caller's argument.
    unsafe fn kept(self) -> (Self, Self::Kept);
}

impl<T: Word> Given for *mut T {
    /// Its folios stay in RAM.
    type Kept = [Option<Waited>; 2];

    fn inherits(&self) -> bool {
        // SAFETY: the caller's argument.
        unsafe { T::inherits(*self) }
    }

    unsafe fn kept(self) -> (Self, Self::Kept) {
        let (first, last) = (self as usize, (self as usize).wrapping_add(size_of::<T>() - size_of::<u32>()));
        let is_in_two = first / PAGE_SIZE != last / PAGE_SIZE;
        (self, [wait_on(first), if is_in_two { wait_on(last) } else { None }])
    }
}

impl Given for *const timespec {
    /// The kernel reads a copy.
    type Kept = Copied;

    unsafe fn kept(self) -> (Self, Copied) {
        // SAFETY: the caller's time.
        let copied = unsafe { copied::value(self) };
        (copied.at(self), copied)
    }
}

impl Given for clockid_t {
    type Kept = ();

    unsafe fn kept(self) -> (Self, ()) {
        (self, ())
    }
}

fn wait_on(addr: usize) -> Option<Waited> {
    let space = state::space()?;
    let _guard = guard::enter();
    Some(state::keeping_errno(|| space.wait_on(addr, size_of::<u32>())))
}

/// Functions that may sleep.
macro_rules! waits {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {$(
        export! {
            fn $name($($arg: $type),*) -> c_int {
                real_of!(REAL = $name: fn($($type),*) -> c_int);
                // SAFETY: the caller's call, with a copy of its time.
                unsafe {
                    if !is_needed(false $(|| $arg.inherits())*) {
                        return REAL.get()($($arg),*);
                    }
                    $(let $arg = $arg.kept();)*
                    REAL.get()($($arg.0),*)
                }
            }
        }
    )*};
}

waits! {
    fn pthread_cond_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t);
    fn pthread_cond_timedwait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, end: *const timespec);
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t, end: *const timespec
    );
    fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, end: *const timespec);
    fn pthread_mutex_clocklock(mutex: *mut pthread_mutex_t, clock: clockid_t, end: *const timespec);
    fn pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t, end: *const timespec);
    fn pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t, end: *const timespec);
    fn pthread_rwlock_clockrdlock(lock: *mut pthread_rwlock_t, clock: clockid_t, end: *const timespec);
    fn pthread_rwlock_clockwrlock(lock: *mut pthread_rwlock_t, clock: clockid_t, end: *const timespec);
    fn pthread_barrier_wait(barrier: *mut pthread_barrier_t);
    fn sem_timedwait(semaphore: *mut sem_t, end: *const timespec);
    fn sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, end: *const timespec);
    fn cnd_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t);
    fn cnd_timedwait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, end: *const timespec);
    fn mtx_timedlock(mutex: *mut pthread_mutex_t, end: *const timespec);
}

/// `thrd_busy` of C's threads.
const THREAD_BUSY: c_int = 1;

/// Locks, with the function that does not sleep, and what that returns where this one would sleep, or decide.
macro_rules! locks {
    ($(fn $name:ident($lock:ident: $type:ty) by $tries:ident unless $($busy:path),+;)*) => {$(
        export! {
            fn $name($lock: $type) -> c_int {
                real_of!(REAL = $name: fn($type) -> c_int);
                real_of!(TRIES = $tries: fn($type) -> c_int);
                // SAFETY: the caller's call.
                unsafe {
                    if !is_needed($lock.inherits()) {
                        return REAL.get()($lock);
                    }
                    match TRIES.get()($lock) {
                        $($busy)|+ => {
                            let (lock, _kept) = $lock.kept();
                            REAL.get()(lock)
                        }
                        result => result,
                    }
                }
            }
        }
    )*};
}

locks! {
    fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) by pthread_mutex_trylock unless libc::EBUSY;
    fn pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t) by pthread_rwlock_tryrdlock unless libc::EBUSY, libc::EAGAIN;
    fn pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t) by pthread_rwlock_trywrlock unless libc::EBUSY;
    fn mtx_lock(mutex: *mut pthread_mutex_t) by mtx_trylock unless THREAD_BUSY;
}

aliases! {
    fn __pthread_mutex_lock = pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int;
    fn __pthread_mutex_unlock = pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int;
    fn __pthread_rwlock_rdlock = pthread_rwlock_rdlock(lock: *mut pthread_rwlock_t) -> c_int;
    fn __pthread_rwlock_wrlock = pthread_rwlock_wrlock(lock: *mut pthread_rwlock_t) -> c_int;
}

export! {
    fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
        real!(REAL = c"pthread_mutex_unlock": fn(*mut pthread_mutex_t) -> c_int);
        // SAFETY: the caller's call.
        unsafe {
            let _kept = (mutex.inherits() && is_needed(true)).then(|| mutex.kept());
            REAL.get()(mutex)
        }
    }

    fn sem_wait(semaphore: *mut sem_t) -> c_int {
        real!(REAL = c"sem_wait": fn(*mut sem_t) -> c_int);
        real!(TRIES = c"sem_trywait": fn(*mut sem_t) -> c_int);
        real!(END_IF_CANCELLED = c"pthread_testcancel": fn() -> ());
        // SAFETY: the caller's call.
        unsafe {
            if !is_needed(false) {
                return REAL.get()(semaphore);
            }
            END_IF_CANCELLED.get()();
            if state::keeping_errno(|| TRIES.get()(semaphore)) == 0 {
                return 0;
            }
            let _kept = semaphore.kept();
            REAL.get()(semaphore)
        }
    }
}
