//! Thread-local variables at a fixed distance from the thread pointer (the initial-exec model).
//!
//! Rust's own are found through the loader, which may allocate when a thread first looks for one after a library was
//! loaded. On the way of a fault, or of an allocation, it must not: it would come back to where it was called from, or
//! wait for a lock that the interrupted code holds. A library that a program loads later has little room for such
//! variables. So they are made with the feature `static-tls` only; otherwise they are Rust's own.

/// A type of which zeros are a value, in which the variables begin.
///
/// # Safety
/// That is true.
pub unsafe trait Zeroed: Copy {}

// SAFETY: zeros are a value of each.
unsafe impl Zeroed for bool {}
// SAFETY: as above.
unsafe impl Zeroed for u32 {}
// SAFETY: as above.
unsafe impl Zeroed for u64 {}
// SAFETY: as above.
unsafe impl Zeroed for usize {}
// SAFETY: as above.
unsafe impl<A: Zeroed, B: Zeroed> Zeroed for (A, B) {}
// SAFETY: as above.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}
// SAFETY: as above: no stack.
unsafe impl Zeroed for libc::stack_t {}

/// The calling thread's pointer to its own storage.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the first word that the thread pointer names is the pointer itself.
    unsafe { std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

/// Such a variable.
///
/// # Safety
/// `at` gives the place of the calling thread's own, which is aligned, begins as zeros, and is used through this only.
pub unsafe trait StaticTls: Sized {
    /// What it holds.
    type Value: Zeroed;

    /// The place of the calling thread's own.
    fn at(&self) -> *mut Self::Value;

    /// Its value.
    fn get(&self) -> Self::Value {
        // SAFETY: this trait's own contract. There are no references to it.
        unsafe { *self.at() }
    }

    /// Changes its value.
    fn set(&self, value: Self::Value) {
        // SAFETY: as above.
        unsafe { *self.at() = value }
    }

    /// Changes its value, and returns the one before.
    fn replace(&self, value: Self::Value) -> Self::Value {
        let before = self.get();
        self.set(value);
        before
    }
}

/// Defines such a variable. The name of its symbol must be the only one of its kind among the crates that are linked
/// together.
#[cfg(feature = "static-tls")]
#[macro_export]
macro_rules! static_tls {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $symbol:literal;) => {
        $(#[$attribute])*
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        struct $name;

        std::arch::global_asm!(
            ".pushsection .tbss,\"awT\",@nobits",
            ".balign 8",
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!($symbol, ": .zero {bytes}"),
            ".popsection",
            bytes = const size_of::<$type>(),
        );

        // SAFETY: the symbol is this variable's alone, in memory of each thread's own that begins as zeros.
        unsafe impl $crate::static_tls::StaticTls for $name {
            type Value = $type;

            #[inline(always)]
            fn at(&self) -> *mut $type {
                const { assert!(align_of::<$type>() <= 8) };
                let at: *mut $type;
                // SAFETY: reads the thread pointer, and the variable's distance from it.
                unsafe {
                    std::arch::asm!(
                        "mov {at}, qword ptr fs:[0]",
                        concat!("add {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                        at = out(reg) at,
                        options(nostack, readonly),
                    );
                }
                at
            }
        }
    };
}

/// Defines such a variable by a thread-local one of Rust's own.
#[cfg(not(feature = "static-tls"))]
#[macro_export]
macro_rules! static_tls {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $symbol:literal;) => {
        $(#[$attribute])*
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        struct $name;

        // SAFETY: each thread's own, which begins as zeros, and is reached through this only.
        unsafe impl $crate::static_tls::StaticTls for $name {
            type Value = $type;

            fn at(&self) -> *mut $type {
                thread_local! {
                    // SAFETY: zeros are a value of it.
                    static PLACE: std::cell::Cell<$type> = const { std::cell::Cell::new(unsafe { std::mem::zeroed() }) };
                }
                PLACE.with(std::cell::Cell::as_ptr)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    static_tls! {
        /// A variable.
        static ONE: (usize, u32) = "folioswap_test_tls_one";
    }
    static_tls! {
        static OTHER: u64 = "folioswap_test_tls_other";
    }

    #[test]
    fn each_thread_has_its_own_that_begins_as_zeros() {
        let look = |number: u32| {
            assert_eq!((ONE.get(), OTHER.get()), ((0, 0), 0));
            ONE.set((usize::MAX, number));
            assert_eq!(OTHER.replace(u64::MAX), 0);
            std::thread::yield_now();
            assert_eq!((ONE.get(), OTHER.get()), ((usize::MAX, number), u64::MAX));
        };
        std::thread::scope(|scope| (1..9).for_each(|number| _ = scope.spawn(move || look(number))));
        look(9);
    }
}
