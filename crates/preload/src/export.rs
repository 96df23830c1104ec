//! How this library's functions get the names of the C library's.

/// Defines a function under the C library's name for it. Test builds keep their own C library. A thread that is cancelled
/// in a call unwinds through it.
macro_rules! export {
    ($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        $(#[$attribute])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result $body
    };
}
pub(crate) use export;

/// Declares `static NAME: Real<type>` for the C library's own function `name`, among those that are looked up at the
/// start.
macro_rules! real {
    ($constant:ident = $name:literal: fn($($type:ty),*) -> $result:ty) => {
        #[used]
        #[unsafe(link_section = "folioswap_real")]
        static $constant: $crate::real::Real<unsafe extern "C-unwind" fn($($type),*) -> $result> =
            $crate::real::Real::new($name);
    };
}
pub(crate) use real;
