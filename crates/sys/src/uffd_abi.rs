//! The kernel's userfaultfd ABI: structures, request numbers and flags of linux/userfaultfd.h (Linux 6.8), which the
//! libc crate has only in part. Request numbers contain sizes, so sizes are asserted.

const fn request(direction: u64, number: u64, size: usize) -> u64 {
    (direction << 30) | ((size as u64) << 16) | (0xAA << 8) | number
}

const READ: u64 = 2;
const READ_WRITE: u64 = 3;

pub const USERFAULTFD_IOC_NEW: u64 = request(0, 0, 0);
pub const UFFDIO_API: u64 = request(READ_WRITE, 0x3F, size_of::<Api>());
pub const UFFDIO_REGISTER: u64 = request(READ_WRITE, 0x00, size_of::<Register>());
pub const UFFDIO_UNREGISTER: u64 = request(READ, 0x01, size_of::<Range>());
pub const UFFDIO_WAKE: u64 = request(READ, 0x02, size_of::<Range>());
pub const UFFDIO_COPY: u64 = request(READ_WRITE, 0x03, size_of::<Transfer>());
pub const UFFDIO_ZEROPAGE: u64 = request(READ_WRITE, 0x04, size_of::<InPlace>());
pub const UFFDIO_MOVE: u64 = request(READ_WRITE, 0x05, size_of::<Transfer>());
pub const UFFDIO_POISON: u64 = request(READ_WRITE, 0x08, size_of::<InPlace>());

pub const API_VERSION: u64 = 0xAA;
pub const USER_MODE_ONLY: libc::c_int = 1;
/// The same bit in the modes of all requests that make pages present.
pub const MODE_DONTWAKE: u64 = 1;

pub const FEATURE_SIGBUS: u64 = 1 << 7;
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
pub const FEATURE_POISON: u64 = 1 << 14;
pub const FEATURE_MOVE: u64 = 1 << 16;

pub const REGISTER_MISSING: u64 = 1 << 0;

pub const EVENT_PAGEFAULT: u8 = 0x12;
pub const PAGEFAULT_WRITE: u64 = 1 << 0;

#[repr(C)]
pub struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
pub struct Register {
    pub range: Range,
    pub mode: u64,
    pub ioctls: u64,
}

/// For UFFDIO_COPY and UFFDIO_MOVE. `done` is signed: -errno, or the number of bytes done.
#[allow(missing_docs)] // as in the kernel
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Transfer {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    pub done: i64,
}

/// For UFFDIO_ZEROPAGE and UFFDIO_POISON.
#[repr(C)]
pub struct InPlace {
    pub range: Range,
    pub mode: u64,
    pub done: i64,
}

/// What reading the descriptor returns. Packed in the kernel, but all fields are naturally aligned anyway.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    pub event: u8,
    pub reserved: [u8; 7],
    /// Page fault: flags. Remove, unmap: start. Remap: from.
    pub first: u64,
    /// Page fault: address. Remove, unmap: end. Remap: to.
    pub second: u64,
    /// Page fault: thread id in the low half. Remap: length.
    pub third: u64,
}

const _: () = assert!(size_of::<Api>() == 24);
const _: () = assert!(size_of::<Range>() == 16);
const _: () = assert!(size_of::<Register>() == 32);
const _: () = assert!(size_of::<Transfer>() == 40);
const _: () = assert!(size_of::<InPlace>() == 32);
const _: () = assert!(size_of::<Message>() == 32);
const _: () = assert!(UFFDIO_API == 0xc018_aa3f);
const _: () = assert!(UFFDIO_MOVE == 0xc028_aa05);
