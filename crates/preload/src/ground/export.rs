//! How this library's functions get the names of the C library's functions.

/// Defines a function under its C library name. Test builds do not export it, and keep their C library. The ABI is
/// C-unwind because cancelling a thread unwinds through the function.
macro_rules! export {
    ($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        $(#[$attribute])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result $body
    };
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
