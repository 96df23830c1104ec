//! Formatted output. `printf` and its kin pass a long string to the kernel from where it lies. In direct mode the text
//! is formatted in unmanaged memory, and written from there.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use libc::FILE;

use super::io;
use crate::cover::Bounce;
use crate::export::{export, real};
use crate::{guard, state};

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

real!(FWRITE = c"fwrite": fn(*const c_void, usize, usize, *mut FILE) -> usize);
real!(VFPRINTF = c"vfprintf": fn(*mut FILE, Text, *mut VaList) -> c_int);
real!(VFPRINTF_CHK = c"__vfprintf_chk": fn(*mut FILE, c_int, Text, *mut VaList) -> c_int);
real!(VDPRINTF = c"vdprintf": fn(c_int, Text, *mut VaList) -> c_int);
real!(VDPRINTF_CHK = c"__vdprintf_chk": fn(c_int, c_int, Text, *mut VaList) -> c_int);
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
    write: impl FnOnce(*const c_void, usize) -> c_int,
    real: impl FnOnce(*mut VaList) -> c_int,
) -> c_int {
    if !state::direct() || guard::inside() {
        return real(list);
    }
    // SAFETY: the program's list. Each pass needs a copy, because a list can be traversed only once.
    let (mut first, mut second) = unsafe { (*list, *list) };
    let mut short = MaybeUninit::<[u8; SHORT_BYTES]>::uninit();
    let errno = state::errno();
    let len = match usize::try_from(make(short.as_mut_ptr().cast(), SHORT_BYTES, &mut first)) {
        Ok(len) if len < SHORT_BYTES => return write(short.as_ptr().cast(), len),
        Ok(len) => len,
        Err(_) => return real(list),
    };
    let Some(long) = Bounce::new(0, len + 1) else { return real(list) };
    state::fail(errno); // `%m` prints errno
    let made = make(long.as_ptr().cast(), len + 1, &mut second);
    // Another thread may have changed a string meanwhile. A longer text is cut.
    write(long.as_ptr().cast_const().cast(), len.min(made.max(0) as usize))
}

/// Writes a whole text to a stream, in one call.
fn to_stream(stream: *mut FILE) -> impl FnOnce(*const c_void, usize) -> c_int {
    move |at, len| {
        let real = FWRITE.get();
        // SAFETY: a text of that length, and the caller's stream.
        if unsafe { real(at, 1, len, stream) } == len { len as c_int } else { -1 }
    }
}

/// Writes a whole text to a descriptor.
fn to_descriptor(fd: c_int) -> impl FnOnce(*const c_void, usize) -> c_int {
    move |at, len| {
        let mut done = 0;
        while done < len {
            // SAFETY: the rest of the text.
            match unsafe { io::write(fd, at.byte_add(done), len - done) } {
                more if more < 0 => return -1,
                more => done += more as usize,
            }
        }
        len as c_int
    }
}

export! {
    fn vfprintf(stream: *mut FILE, format: Text, list: *mut VaList) -> c_int {
        let (make, real) = (VSNPRINTF.get(), VFPRINTF.get());
        // SAFETY: the caller's arguments, for a function of the same contract or for its parts.
        unsafe {
            print(
                list,
                |at, len, list| make(at, len, format, list),
                to_stream(stream),
                |list| real(stream, format, list),
            )
        }
    }
}

export! {
    fn __vfprintf_chk(stream: *mut FILE, flag: c_int, format: Text, list: *mut VaList) -> c_int {
        let (make, real) = (VSNPRINTF_CHK.get(), VFPRINTF_CHK.get());
        // SAFETY: as above.
        unsafe {
            print(
                list,
                |at, len, list| make(at, len, flag, len, format, list),
                to_stream(stream),
                |list| real(stream, flag, format, list),
            )
        }
    }
}

export! {
    fn vdprintf(fd: c_int, format: Text, list: *mut VaList) -> c_int {
        let (make, real) = (VSNPRINTF.get(), VDPRINTF.get());
        // SAFETY: as above.
        unsafe {
            print(
                list,
                |at, len, list| make(at, len, format, list),
                to_descriptor(fd),
                |list| real(fd, format, list),
            )
        }
    }
}

export! {
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: Text, list: *mut VaList) -> c_int {
        let (make, real) = (VSNPRINTF_CHK.get(), VDPRINTF_CHK.get());
        // SAFETY: as above.
        unsafe {
            print(
                list,
                |at, len, list| make(at, len, flag, len, format, list),
                to_descriptor(fd),
                |list| real(fd, flag, format, list),
            )
        }
    }
}

export! {
    fn vprintf(format: Text, list: *mut VaList) -> c_int {
        // SAFETY: `vprintf` is defined as this.
        unsafe { vfprintf(stdout, format, list) }
    }
}

export! {
    fn __vprintf_chk(flag: c_int, format: Text, list: *mut VaList) -> c_int {
        // SAFETY: as above.
        unsafe { __vfprintf_chk(stdout, flag, format, list) }
    }
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
    printf: 8, "rsi" => vprintf
    fprintf: 16, "rdx" => vfprintf
    dprintf: 16, "rdx" => vdprintf
    __printf_chk: 16, "rdx" => __vprintf_chk
    __fprintf_chk: 24, "rcx" => __vfprintf_chk
    __dprintf_chk: 24, "rcx" => __vdprintf_chk
}
