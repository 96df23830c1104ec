//! The C library's own functions behind the names that this library takes over, looked up on first use.
//!
//! Looking up may allocate; the allocation functions themselves depend on no lookup while this library is at work, so
//! there is no recursion. What is looked up never changes: a race stores the same pointer twice.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a name after this library's; `F` is its function pointer type.
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

// SAFETY: an atomic pointer to code and a name; `F` is a function pointer, which any thread may call.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    pub const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Real { name, found: AtomicPtr::new(null_mut()), kind: PhantomData }
    }

    /// The function. Ends the process when the C library has none of this name: the caller has just called one.
    pub fn get(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: a C string; any thread may ask.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if found.is_null() {
                crate::state::end(70, &format!("the C library has no {}", self.name.to_string_lossy()));
            }
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: `F` is a function pointer type of the same size (asserted), and by the declaration that of this name.
        unsafe { std::mem::transmute_copy(&found) }
    }
}
