//! The C library's own functions behind the names that this library takes over.
//!
//! All are looked up when the library begins: looking up takes the loader's lock, which nobody may wait for on the way
//! of a fault or in a signal handler. What is called before that is looked up on first use. Looking up may allocate;
//! the allocation functions themselves depend on no lookup while this library is at work, so there is no recursion.
//! What is looked up never changes: a race stores the same pointer twice.
//!
//! The statics lie side by side in a section of their own, which is how they are found: all have the same layout.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a name after this library's; `F` is its function pointer type.
#[repr(C)]
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

    fn look_up(&self) -> *mut c_void {
        // SAFETY: a C string; any thread may ask.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// The function. Ends the process when the C library has none of this name: the caller has just called one.
    pub fn get(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.look_up();
            if found.is_null() {
                crate::state::end(70, &format!("the C library has no {}", self.name.to_string_lossy()));
            }
        }
        // SAFETY: `F` is a function pointer type of the same size (asserted), and by the declaration that of this name.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

/// Looks all of them up. What the C library lacks, no program calls.
pub fn look_up_all() {
    type Any = Real<unsafe extern "C" fn()>;
    unsafe extern "C" {
        #[link_name = "__start_folioswap_real"]
        static FIRST: u8;
        #[link_name = "__stop_folioswap_real"]
        static END: u8;
    }
    let (mut at, end) = ((&raw const FIRST).cast::<Any>(), (&raw const END).cast::<Any>());
    while at < end {
        // SAFETY: the linker's bounds of the section, in which only such statics lie, without gaps.
        unsafe {
            (*at).look_up();
            at = at.add(1);
        }
    }
}
