//! How this library's functions get the names of the C library's functions.

/// Defines functions under their C library names. Test builds do not export them, and keep their C library. The ABI is
/// C-unwind because cancelling a thread unwinds through the function.
macro_rules! export {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        $(#[$attribute])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result $body
    )*};
}
pub(crate) use export;

/// Defines other names of exported functions.
macro_rules! aliases {
    ($(fn $alias:ident = $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        $crate::ground::export::export! {
            fn $alias($($arg: $type),*) -> $result {
                // SAFETY: an alias with the same contract.
                unsafe { $name($($arg),*) }
            }
        }
    )*};
}
pub(crate) use aliases;

/// Declares `static NAME: Real<type>` for the C library's function `name`, which is looked up at the start.
macro_rules! real {
    ($visible:vis $constant:ident = $name:literal: fn($($type:ty),*) -> $result:ty) => {
        #[used]
        #[unsafe(link_section = "folioswap_real")]
        $visible static $constant: $crate::ground::real::Real<unsafe extern "C-unwind" fn($($type),*) -> $result> =
            $crate::ground::real::Real::new($name);
    };
}
pub(crate) use real;

/// The same for a name that is not in quotes.
macro_rules! real_of {
    ($constant:ident = $name:ident: fn($($type:ty),*) -> $result:ty) => {
        #[used]
        #[unsafe(link_section = "folioswap_real")]
        static $constant: $crate::ground::real::Real<unsafe extern "C-unwind" fn($($type),*) -> $result> = {
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name"),
                };
            $crate::ground::real::Real::new(NAME)
        };
    };
}
pub(crate) use real_of;

/// Declares functions that make a call as the program has made it: by the C library's function of this name, or by the
/// kernel's number.
macro_rules! made {
    ($(fn $function:ident = $name:literal, $number:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        unsafe fn $function(by: $crate::ground::real::By, $($arg: $type),*) -> $result {
            $crate::ground::export::real!(NAMED = $name: fn($($type),*) -> $result);
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe {
                match by {
                    $crate::ground::real::By::Name => NAMED.get()($($arg),*),
                    $crate::ground::real::By::Number => {
                        $crate::ground::real::kernel!(libc::$number $(, $arg)*) as $result
                    }
                }
            }
        }
    )*};
}
pub(crate) use made;

/// Defines functions under their C library names, and for each one that does the same for a call by number, too.
macro_rules! made_both {
    ($(fn $name:ident, $made:ident($by:ident, $($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        /// # Safety
        /// As the call.
        pub unsafe fn $made($by: $crate::ground::real::By, $($arg: $type),*) -> $result $body

        $crate::ground::export::export! {
            fn $name($($arg: $type),*) -> $result {
                // SAFETY: passes the caller's arguments on unchanged.
                unsafe { $made($crate::ground::real::By::name(), $($arg),*) }
            }
        }
    )*};
}
pub(crate) use made_both;
