//! Formatted output. `printf` and its kin pass a long string to the kernel from where it lies. In direct mode the text
//! is formatted in unmanaged memory, and written from there.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use libc::FILE;

use crate::alloc::texts;
use crate::calls::{io, stdio};
use crate::ground::export::{export, real};
use crate::ground::{guard, state};
use crate::memory::bounce::Bounce;

/// A `va_list` in the System V ABI for x86-64: which saved registers come next, and where the other arguments are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VaList {
    general: u32,
    vector: u32,
    rest: *const c_void,
    saved: *const c_void,
}

type Text = *const c_char;

real!(VFPRINTF = c"vfprintf": fn(*mut FILE, Text, *mut VaList) -> c_int);
real!(VFPRINTF_CHK = c"__vfprintf_chk": fn(*mut FILE, c_int, Text, *mut VaList) -> c_int);
real!(VDPRINTF = c"vdprintf": fn(c_int, Text, *mut VaList) -> c_int);
real!(VDPRINTF_CHK = c"__vdprintf_chk": fn(c_int, c_int, Text, *mut VaList) -> c_int);
real!(VASPRINTF = c"vasprintf": fn(*mut *mut c_char, Text, *mut VaList) -> c_int);
real!(VASPRINTF_CHK = c"__vasprintf_chk": fn(*mut *mut c_char, c_int, Text, *mut VaList) -> c_int);
real!(VSNPRINTF = c"vsnprintf": fn(*mut c_char, usize, Text, *mut VaList) -> c_int);
real!(VSNPRINTF_CHK = c"__vsnprintf_chk": fn(*mut c_char, usize, c_int, usize, Text, *mut VaList) -> c_int);

unsafe extern "C" {
    static stdout: *mut FILE;
}

/// Shorter texts are formatted on the stack.
const SHORT_BYTES: usize = 512;

/// In direct mode formats the text with `make` (a `vsnprintf`) and passes it to `write`. Otherwise, or if formatting
/// fails, calls `real`.
///
/// # Safety
/// The list is the program's, for its own call.
unsafe fn print(
    list: *mut VaList,
    make: impl Fn(*mut c_char, usize, *mut VaList) -> c_int,
    write: impl FnOnce(*const c_char, usize) -> c_int,
    real: impl FnOnce(*mut VaList) -> c_int,
) -> c_int {
    if !state::direct() || guard::inside() {
        return real(list);
    }
    // SAFETY: the program's list. Each pass needs a copy, because a list can be traversed only once.
    let (mut first, mut second) = unsafe { (*list, *list) };
    let mut short = MaybeUninit::<[c_char; SHORT_BYTES]>::uninit();
    let errno = state::errno();
    let len = make(short.as_mut_ptr().cast(), SHORT_BYTES, &mut first);
    state::fail(errno); // `%m` prints errno
    match usize::try_from(len) {
        // Without a text, the call tells whether the stream can be written to.
        Err(_) | Ok(0) => real(list),
        Ok(len) if len < SHORT_BYTES => write(short.as_ptr().cast(), len),
        Ok(len) => {
            let Some(long) = Bounce::new(0, len + 1) else {
                state::fail(errno);
                return real(list);
            };
            state::fail(errno);
            let made = usize::try_from(make(long.as_ptr().cast(), len + 1, &mut second));
            // Another thread may have changed a string meanwhile. A longer text is cut.
            made.map_or(-1, |made| write(long.as_ptr().cast_const().cast(), made.min(len)))
        }
    }
}

/// Writes a whole text, which a zero ends, to a stream, in one call.
fn to_stream(stream: *mut FILE) -> impl FnOnce(*const c_char, usize) -> c_int {
    move |at, len| {
        // SAFETY: a text of that length with its zero, and the caller's stream.
        let is_written = unsafe {
            if libc::strlen(at) == len {
                stdio::FPUTS.get()(at, stream) >= 0
            } else {
                stdio::written(stream, len, || stdio::FWRITE.get()(at.cast(), 1, len, stream))
            }
        };
        if is_written { len as c_int } else { -1 }
    }
}

/// Writes a whole text to a descriptor.
fn to_descriptor(fd: c_int) -> impl FnOnce(*const c_char, usize) -> c_int {
    move |at, len| {
        let mut done = 0;
        while done < len {
            // SAFETY: the rest of the text.
            match unsafe { io::write(fd, at.add(done).cast(), len - done) } {
                more if more < 0 => return -1,
                more => done += more as usize,
            }
        }
        len as c_int
    }
}

// A program may define functions of these names itself, so the exported functions do not call each other.

unsafe extern "C-unwind" fn stream(stream: *mut FILE, format: Text, list: *mut VaList) -> c_int {
    let (make, real) = (VSNPRINTF.get(), VFPRINTF.get());
    let make = |at, len, list| {
        // SAFETY: a buffer of that length, and the caller's format and list.
        unsafe { make(at, len, format, list) }
    };
    // SAFETY: the caller's call, in parts.
    unsafe { print(list, make, to_stream(stream), |list| real(stream, format, list)) }
}

unsafe extern "C-unwind" fn stream_checked(stream: *mut FILE, flag: c_int, format: Text, list: *mut VaList) -> c_int {
    let (make, real) = (VSNPRINTF_CHK.get(), VFPRINTF_CHK.get());
    let make = |at, len, list| {
        // SAFETY: as in `stream`.
        unsafe { make(at, len, flag, len, format, list) }
    };
    // SAFETY: the caller's call, in parts.
    unsafe { print(list, make, to_stream(stream), |list| real(stream, flag, format, list)) }
}

unsafe extern "C-unwind" fn descriptor(fd: c_int, format: Text, list: *mut VaList) -> c_int {
    let (make, real) = (VSNPRINTF.get(), VDPRINTF.get());
    let make = |at, len, list| {
        // SAFETY: as in `stream`.
        unsafe { make(at, len, format, list) }
    };
    // SAFETY: the caller's call, in parts.
    unsafe { print(list, make, to_descriptor(fd), |list| real(fd, format, list)) }
}

unsafe extern "C-unwind" fn descriptor_checked(fd: c_int, flag: c_int, format: Text, list: *mut VaList) -> c_int {
    let (make, real) = (VSNPRINTF_CHK.get(), VDPRINTF_CHK.get());
    let make = |at, len, list| {
        // SAFETY: as in `stream`.
        unsafe { make(at, len, flag, len, format, list) }
    };
    // SAFETY: the caller's call, in parts.
    unsafe { print(list, make, to_descriptor(fd), |list| real(fd, flag, format, list)) }
}

/// Has a text allocated by `make`, and moves it to where the program's blocks are.
///
/// # Safety
/// The program's place for the text.
unsafe fn allocated(to: *mut *mut c_char, make: impl FnOnce() -> c_int) -> c_int {
    let len = make();
    if let Ok(nr_bytes) = usize::try_from(len) {
        // SAFETY: the C library has put a text of that length there.
        state::keeping_errno(|| unsafe { *to = texts::moved(*to, nr_bytes) });
    }
    len
}

unsafe extern "C-unwind" fn block(to: *mut *mut c_char, format: Text, list: *mut VaList) -> c_int {
    // SAFETY: the caller's call.
    unsafe { allocated(to, || VASPRINTF.get()(to, format, list)) }
}

unsafe extern "C-unwind" fn block_checked(to: *mut *mut c_char, flag: c_int, format: Text, list: *mut VaList) -> c_int {
    // SAFETY: the caller's call.
    unsafe { allocated(to, || VASPRINTF_CHK.get()(to, flag, format, list)) }
}

unsafe extern "C-unwind" fn standard(format: Text, list: *mut VaList) -> c_int {
    // SAFETY: the caller's call.
    unsafe { stream(stdout, format, list) }
}

unsafe extern "C-unwind" fn standard_checked(flag: c_int, format: Text, list: *mut VaList) -> c_int {
    // SAFETY: the caller's call.
    unsafe { stream_checked(stdout, flag, format, list) }
}

/// Exports functions that take a `va_list`, under the names of the C library.
macro_rules! listed {
    ($($name:ident($($arg:ident: $type:ty),*) => $inner:ident)*) => {$(
        export! {
            fn $name($($arg: $type),*, list: *mut VaList) -> c_int {
                // SAFETY: the caller's call.
                unsafe { $inner($($arg),*, list) }
            }
        }
    )*};
}

listed! {
    vprintf(format: Text) => standard
    vfprintf(to: *mut FILE, format: Text) => stream
    vdprintf(fd: c_int, format: Text) => descriptor
    vasprintf(to: *mut *mut c_char, format: Text) => block
    __vasprintf_chk(to: *mut *mut c_char, flag: c_int, format: Text) => block_checked
    __vprintf_chk(flag: c_int, format: Text) => standard_checked
    __vfprintf_chk(to: *mut FILE, flag: c_int, format: Text) => stream_checked
    __vdprintf_chk(fd: c_int, flag: c_int, format: Text) => descriptor_checked
}

/// Variadic functions. Each saves the argument registers, builds a `va_list`, and calls the function that takes it in
/// the register after the named arguments. A thread may be cancelled in them, so CFI directives describe the frame to
/// the unwinder.
macro_rules! variadic {
    ($($name:ident: $general:literal, $register:literal => $listed:ident)*) => {$(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(first: usize) -> c_int {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216", // 24 bytes of list, 176 of registers, and padding for alignment
                ".cfi_def_cfa_offset 224",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al", // upper bound of the vector registers in use
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $general),
                "mov dword ptr [rsp + 4], 48",
                "lea r10, [rsp + 224]",
                "mov [rsp + 8], r10",
                "lea r10, [rsp + 32]",
                "mov [rsp + 16], r10",
                concat!("mov ", $register, ", rsp"),
                "call {listed}",
                "add rsp, 216",
                ".cfi_def_cfa_offset 8",
                "ret",
                ".cfi_endproc",
                listed = sym $listed,
            )
        }
    )*};
}

variadic! {
    printf: 8, "rsi" => standard
    fprintf: 16, "rdx" => stream
    dprintf: 16, "rdx" => descriptor
    asprintf: 16, "rdx" => block
    __asprintf: 16, "rdx" => block
    __asprintf_chk: 24, "rcx" => block_checked
    __printf_chk: 16, "rdx" => standard_checked
    __fprintf_chk: 24, "rcx" => stream_checked
    __dprintf_chk: 24, "rcx" => descriptor_checked
}
