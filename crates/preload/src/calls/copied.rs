//! Copies of call arguments in unmanaged memory, which the kernel always finds present.
//!
//! This is the strongest cover for all arguments of moderate length. The call is made once, so it takes effect once, no
//! timeout restarts, and no result is lost because its page was evicted while the call slept. Null and unmanaged
//! pointers are passed through.

use libc::{nfds_t, pollfd, socklen_t};

use crate::calls::access::{self, Access};
use crate::calls::cover::{self, Bounce};

/// A pointer argument. Its type tells whether the kernel writes through it.
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

/// The longest range that is copied. No call takes or returns more than this, apart from file and stream data.
const MOST_BYTES: usize = 64 << 20;

/// Which part of a copy is written back to the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Nothing,
    All,
    /// Only `revents` of each `pollfd`: another thread may change the other fields during the call.
    Revents,
}

/// A range of the program's memory, and its copy where one is needed.
pub struct Copied {
    addr: usize,
    len: usize,
    written: Written,
    copy: Option<Bounce>,
}

impl Copied {
    /// Copies `len` bytes if any of them are managed. If that is more than [`MOST_BYTES`], or there is no memory for a
    /// copy, the range is only faulted in, and may be evicted again.
    ///
    /// # Safety
    /// The range is the program's, and is an argument of a call.
    pub unsafe fn new(addr: usize, len: usize, written: bool) -> Copied {
        let written = if written { Written::All } else { Written::Nothing };
        let mut copied = Copied { addr, len, written, copy: None };
        if cover::needed(addr, len) {
            let access = if written == Written::Nothing { Access::Read } else { Access::Write };
            // The kernel may do without writing to what it can read.
            let is_protected = access == Access::Write
                && access::prefix(addr, len, Access::Write) < len
                && access::prefix(addr, len, Access::Read) == len;
            let is_copied = len <= MOST_BYTES && !is_protected;
            let copy = if is_copied { Bounce::fitting(addr, len, access) } else { Err(()) };
            match copy {
                Ok(Some(copy)) => {
                    // SAFETY: the program's range, of which the copy covers what may be accessed. Memory that may be
                    // written may be read on this architecture.
                    unsafe { copy.fill(addr) };
                    copied.copy = Some(copy);
                }
                Ok(None) => {} // the kernel says so
                // The length may be beyond what the program has.
                Err(()) => cover::touch(addr as *const u8, access::prefix(addr, len, access)),
            }
        }
        copied
    }

    /// The address to pass to the kernel.
    pub fn addr(&self) -> usize {
        self.copy.as_ref().map_or(self.addr, |copy| copy.as_ptr() as usize)
    }

    /// The same address as a pointer.
    pub fn at<P: Pointer>(&self, _for: P) -> P {
        P::at(self.addr())
    }

    /// Copies what the kernel wrote back to the program.
    ///
    /// # Safety
    /// The range is still the program's.
    pub unsafe fn bring_back(&self) {
        let Some(copy) = &self.copy else { return };
        // SAFETY: the program's range and a block of the same length. No lock is held, so the range may fault.
        unsafe {
            match self.written {
                Written::Nothing => {}
                Written::All => copy.empty(self.addr, self.len),
                Written::Revents => {
                    let (from, to) = (copy.as_ptr().cast::<pollfd>(), self.addr as *mut pollfd);
                    for index in 0..copy.room() / size_of::<pollfd>() {
                        // Neither list need be aligned.
                        let revents = (&raw const (*from.add(index)).revents).read_unaligned();
                        (&raw mut (*to.add(index)).revents).write_unaligned(revents);
                    }
                }
            }
        }
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn bytes<P: Pointer>(at: P, len: usize) -> Copied {
    // SAFETY: the caller upholds this function's own contract. Null is not managed.
    unsafe { Copied::new(at.addr(), len, P::WRITTEN) }
}

/// Copies one value.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn value<P: Pointee>(at: P) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { bytes(at, P::BYTES) }
}

/// A pointer whose target has a known size.
pub trait Pointee: Pointer {
    const BYTES: usize;
}

impl<T> Pointee for *const T {
    const BYTES: usize = size_of::<T>();
}

impl<T> Pointee for *mut T {
    const BYTES: usize = size_of::<T>();
}

/// Copies `count` values.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn values<P: Pointee>(at: P, count: usize) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { bytes(at, count.saturating_mul(P::BYTES)) }
}

/// Copies a list of `count` descriptors to poll.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn polled<P: Pointer>(at: P, count: nfds_t) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    let copied = unsafe { bytes(at, (count as usize).saturating_mul(size_of::<pollfd>())) };
    Copied { written: Written::Revents, ..copied }
}

/// Copies a C string.
///
/// # Safety
/// `at` is null or a C string.
pub unsafe fn text<P: Pointer>(at: P) -> Copied {
    let managed = cover::needed(at.addr(), 1);
    // SAFETY: a C string, by this function's contract. If a part of it cannot be read, the kernel says so.
    let len = managed.then(|| unsafe { access::text_len(at.addr()) }).flatten().map_or(0, |len| len + 1);
    // SAFETY: the caller upholds this function's own contract.
    unsafe { bytes(at, len) }
}

/// Copies a socket call's result buffer, whose length is stored behind `len`.
///
/// # Safety
/// Each pointer is null or the program's.
pub unsafe fn named<P: Pointer>(at: P, len: *const socklen_t) -> Copied {
    // SAFETY: the caller upholds this function's own contract. Reading the length faults it in.
    unsafe {
        let len = if cover::needed(at.addr(), 1) { access::read(len) } else { None };
        bytes(at, len.unwrap_or(0) as usize)
    }
}

/// Defines functions that make one call with copies of what their arguments point to. Each pointer argument names its
/// kind: `argument: text`, `value`, `bytes(len)`, `values(count)`, `polled(count)` or `named(len)`.
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
                // SAFETY: the caller's call, whose pointers are null, valid, or replaced by copies of what they point
                // to.
                unsafe {
                    let copies = [$($crate::calls::copied::$what($pointer $(, $len)?)),*];
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
