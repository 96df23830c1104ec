//! `sigsetjmp`, `siglongjmp` and their other names. Those of the C library have the kernel read and fill in the mask
//! in a buffer, which may have left RAM: then the mask stays as it is, and nobody is told. Here the kernel gets copies.
//! On threads with a shadow stack the C library saves the buffer, and notes that stack in it.

use std::ffi::c_int;
use std::mem::offset_of;

use libc::sigset_t;

use crate::calls::contexts::{FEATURES_AT, SHADOW_STACK, unless_shadow_stack};
use crate::faults::{masks, signal_stack};
use crate::ground::export::{aliases, export, real};
use crate::ground::real::Real;

real!(SAVE = c"__sigsetjmp": fn(*mut Buffer, c_int) -> c_int);
real!(JUMP = c"siglongjmp": fn(*const Buffer, c_int) -> ());
real!(JUMP_CHECKED = c"__longjmp_chk": fn(*const Buffer, c_int) -> ());

type Jump = Real<unsafe extern "C-unwind" fn(*const Buffer, c_int)>;

/// The C library's buffer: rbx, rbp, r12 to r15, rsp and rip. The address that a register holds is kept guarded.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Buffer {
    registers: [u64; 8],
    has_mask: c_int,
    mask: sigset_t,
}

/// Where the C library has the word by which it guards addresses, in a thread's record, and how far it turns them.
const GUARD_AT: usize = 0x30;
const GUARD_TURNS: usize = 17;

extern "C" fn before_save() -> *const () {
    SAVE.get() as *const ()
}

/// Saves the mask. Returns 0.
extern "C" fn save_mask(buffer: *mut Buffer) -> c_int {
    let mask = masks::exchange(libc::SIG_BLOCK, None);
    // SAFETY: the program's buffer, of which the registers have been written. The kernel's set has 8 bytes.
    unsafe {
        (*buffer).has_mask = mask.is_ok().into();
        (&raw mut (*buffer).mask).cast::<u64>().write(mask.unwrap_or(0));
    }
    0
}

/// Saves the registers as they are when this has returned, and the mask if the second argument is not zero.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sigsetjmp(buffer: *mut Buffer, has_mask: c_int) -> c_int {
    std::arch::naked_asm!(
        unless_shadow_stack!(),
        "mov rax, rbp",
        "lea rdx, [rsp + 8]",
        "mov rcx, [rsp]",
        "xor rax, fs:[{guard}]",
        "xor rdx, fs:[{guard}]",
        "xor rcx, fs:[{guard}]",
        "rol rax, {turns}",
        "rol rdx, {turns}",
        "rol rcx, {turns}",
        "mov [rdi], rbx",
        "mov [rdi + 8], rax",
        "mov [rdi + 16], r12",
        "mov [rdi + 24], r13",
        "mov [rdi + 32], r14",
        "mov [rdi + 40], r15",
        "mov [rdi + 48], rdx",
        "mov [rdi + 56], rcx",
        "test esi, esi",
        "jnz {save_mask}",
        "mov dword ptr [rdi + {has_mask}], 0",
        "xor eax, eax",
        "ret",
        features = const FEATURES_AT,
        shadow_stack = const SHADOW_STACK,
        before = sym before_save,
        guard = const GUARD_AT,
        turns = const GUARD_TURNS,
        save_mask = sym save_mask,
        has_mask = const offset_of!(Buffer, has_mask),
    )
}

/// BSD's, which saves the mask. What C programs call by this name is a macro.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setjmp(buffer: *mut Buffer) -> c_int {
    std::arch::naked_asm!("mov esi, 1", "jmp {save}", save = sym __sigsetjmp)
}

/// Jumps by a function of the C library's that finds no mask to set.
unsafe fn jump(by: &Jump, buffer: *const Buffer, value: c_int) {
    // SAFETY: the caller's call. It does not return, and no frame of this library has anything to drop. Without a mask
    // the buffer may be shorter.
    unsafe {
        if (*buffer).has_mask == 0 {
            return by.get()(buffer, value);
        }
        let copy = Buffer { has_mask: 0, ..*buffer };
        let mask = (&raw const copy.mask).cast::<u64>().read();
        let _ = masks::exchange(libc::SIG_SETMASK, Some(mask));
        by.get()(&raw const copy, value);
    }
}

export! {
    fn siglongjmp(buffer: *const Buffer, value: c_int) -> () {
        // SAFETY: the caller's call.
        unsafe { jump(&JUMP, buffer, value) };
    }

    fn __longjmp_chk(buffer: *const Buffer, value: c_int) -> () {
        // The C library asks the kernel whether the thread is on the signal stack, which does not know it.
        let here = 0u8;
        let by = if signal_stack::is_on_theirs(&raw const here as usize) { &JUMP } else { &JUMP_CHECKED };
        // SAFETY: the caller's call.
        unsafe { jump(by, buffer, value) };
    }
}

aliases! {
    fn longjmp = siglongjmp(buffer: *const Buffer, value: c_int) -> ();
    fn _longjmp = siglongjmp(buffer: *const Buffer, value: c_int) -> ();
}
