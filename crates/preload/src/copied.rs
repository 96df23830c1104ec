//! What the program hands to the kernel, copied to memory that the kernel always finds, and back.
//!
//! The strongest cover for all that is not long: a call is made once, so nothing it does is done twice, no time limit
//! begins again, and no result is lost because its page left while the call slept. Null, and what is not managed, is
//! handed on as it is.

use std::ffi::{CStr, c_char};

use libc::{nfds_t, pollfd, socklen_t};

use crate::cover::{self, Bounce};

/// A pointer of the program's, by whose type it is known whether the kernel writes there.
pub trait Pointer: Copy {
    const WRITTEN: bool;
    fn addr(self) -> usize;
    fn at(addr: usize) -> Self;
}

impl<T> Pointer for *const T {
    const WRITTEN: bool = false;
    fn addr(self) -> usize {
        self as usize
    }
    fn at(addr: usize) -> Self {
        addr as *const T
    }
}

impl<T> Pointer for *mut T {
    const WRITTEN: bool = true;
    fn addr(self) -> usize {
        self as usize
    }
    fn at(addr: usize) -> Self {
        addr as *mut T
    }
}

/// The most that is copied: no call takes or gives as much that is not bytes of a file or a stream.
const MOST_BYTES: usize = 64 << 20;

/// What of a copy the kernel writes, and the program gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Nothing,
    All,
    /// The third field of each `pollfd`: another thread may change the others meanwhile.
    Revents,
}

/// A piece of the program's memory, and its copy where it needs one.
pub struct Copied {
    addr: usize,
    len: usize,
    written: Written,
    copy: Option<Bounce>,
}

impl Copied {
    /// Copies `len` bytes, if any of them are managed. More than [`MOST_BYTES`], or without memory for a copy, they are
    /// brought in, and may leave again.
    ///
    /// # Safety
    /// The range is the program's, to be handed to the kernel.
    pub unsafe fn new(addr: usize, len: usize, written: bool) -> Copied {
        let written = if written { Written::All } else { Written::Nothing };
        let mut copied = Copied { addr, len, written, copy: None };
        if cover::needed(addr, len) {
            copied.copy = if len <= MOST_BYTES { Bounce::new(addr, len) } else { None };
            match &copied.copy {
                // SAFETY: the program's memory, and a block of that length. No lock is held.
                Some(copy) => unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, copy.as_ptr(), len) },
                None => cover::touch(addr as *const u8, len),
            }
        }
        copied
    }

    /// The address to hand to the kernel.
    pub fn addr(&self) -> usize {
        self.copy.as_ref().map_or(self.addr, |copy| copy.as_ptr() as usize)
    }

    /// The same as a pointer.
    pub fn at<P: Pointer>(&self, _for: P) -> P {
        P::at(self.addr())
    }

    /// Gives the program what the kernel wrote.
    ///
    /// # Safety
    /// The range is still the program's.
    pub unsafe fn bring_back(&self) {
        let Some(copy) = &self.copy else { return };
        // SAFETY: the program's memory, and a block of that length. No lock is held.
        unsafe {
            match self.written {
                Written::Nothing => {}
                Written::All => std::ptr::copy_nonoverlapping(copy.as_ptr(), self.addr as *mut u8, self.len),
                Written::Revents => {
                    let (from, to) = (copy.as_ptr().cast::<pollfd>(), self.addr as *mut pollfd);
                    for index in 0..self.len / size_of::<pollfd>() {
                        // Neither needs to be aligned.
                        let revents = (&raw const (*from.add(index)).revents).read_unaligned();
                        (&raw mut (*to.add(index)).revents).write_unaligned(revents);
                    }
                }
            }
        }
    }
}

/// `len` bytes.
///
/// # Safety
/// Null, or the program's.
pub unsafe fn bytes<P: Pointer>(at: P, len: usize) -> Copied {
    // SAFETY: handed on. Null is not managed.
    unsafe { Copied::new(at.addr(), len, P::WRITTEN) }
}

/// One value.
///
/// # Safety
/// Null, or the program's.
pub unsafe fn value<P: Pointee>(at: P) -> Copied {
    // SAFETY: handed on.
    unsafe { bytes(at, P::BYTES) }
}

/// What a pointer points at.
pub trait Pointee: Pointer {
    const BYTES: usize;
}

impl<T> Pointee for *const T {
    const BYTES: usize = size_of::<T>();
}

impl<T> Pointee for *mut T {
    const BYTES: usize = size_of::<T>();
}

/// So many values.
///
/// # Safety
/// Null, or the program's.
pub unsafe fn values<P: Pointee>(at: P, count: usize) -> Copied {
    // SAFETY: handed on.
    unsafe { bytes(at, count.saturating_mul(P::BYTES)) }
}

/// A list of so many descriptors to wait for.
///
/// # Safety
/// Null, or the program's.
pub unsafe fn polled<P: Pointer>(at: P, count: nfds_t) -> Copied {
    // SAFETY: handed on.
    let copied = unsafe { bytes(at, (count as usize).saturating_mul(size_of::<pollfd>())) };
    Copied { written: Written::Revents, ..copied }
}

/// A C string.
///
/// # Safety
/// Null, or a C string.
pub unsafe fn text<P: Pointer>(at: P) -> Copied {
    let managed = cover::needed(at.addr(), 1);
    // SAFETY: handed on; reading brings it in.
    let len = if managed { unsafe { CStr::from_ptr(at.addr() as *const c_char) }.count_bytes() + 1 } else { 0 };
    // SAFETY: handed on.
    unsafe { bytes(at, len) }
}

/// What a socket call fills in, as long as the number behind `len` says.
///
/// # Safety
/// Each is null or the program's.
pub unsafe fn named<P: Pointer>(at: P, len: *const socklen_t) -> Copied {
    // SAFETY: handed on; reading the length brings it in.
    unsafe { bytes(at, if len.is_null() { 0 } else { *len as usize }) }
}

/// Defines functions that are called once, with copies of what their pointers name: `argument: text`, `value`,
/// `bytes(len)`, `values(count)`, `polled(count)` or `named(len)`.
macro_rules! copied {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty {
        $($pointer:ident: $what:ident $(($len:expr))?),*
    })*) => {$(
        $crate::export::export! {
            $(#[$attribute])*
            fn $name($($arg: $type),*) -> $result {
                #[used]
                #[unsafe(link_section = "folioswap_real")]
                static REAL: $crate::real::Real<unsafe extern "C-unwind" fn($($type),*) -> $result> = {
                    const NAME: &std::ffi::CStr =
                        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name"),
                        };
                    $crate::real::Real::new(NAME)
                };
                let real = REAL.get();
                // SAFETY: the caller's own call, with pointers that are null or valid, or copies of what they name.
                unsafe {
                    let copies = [$($crate::copied::$what($pointer $(, $len)?)),*];
                    let mut next = copies.iter();
                    $(let $pointer = next.next().map_or($pointer, |copy| copy.at($pointer));)*
                    let _ = next;
                    let result = real($($arg),*);
                    copies.iter().for_each(|copy| copy.bring_back());
                    result
                }
            }
        }
    )*};
}
pub(crate) use copied;
