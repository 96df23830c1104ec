//! Functions that Rust cannot define: `execl` and its kin, which are variadic; those that save and restore registers,
//! which must be entered from the caller's own frame; `makecontext`, which is variadic, too; and `dlopen`, which knows
//! its caller by the return address. The memory of the first two is faulted in first.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{Lmid_t, ucontext_t};

use crate::calls::process;
use crate::faults::ours;
use crate::ground::export::real;
use crate::ground::guard;
use crate::memory::cover;

type Text = *const c_char;

real!(GET = c"getcontext": fn(*mut ucontext_t) -> c_int);
real!(SET = c"setcontext": fn(*const ucontext_t) -> c_int);
real!(SWAP = c"swapcontext": fn(*mut ucontext_t, *const ucontext_t) -> c_int);
real!(MAKE = c"makecontext": fn(*mut ucontext_t, extern "C" fn(), c_int) -> ());
real!(OPEN = c"dlopen": fn(Text, c_int) -> *mut c_void);
real!(OPEN_IN = c"dlmopen": fn(Lmid_t, Text, c_int) -> *mut c_void);

/// Runs before `getcontext`, and returns the C library's function to jump to.
extern "C" fn before_get(context: *mut ucontext_t) -> *const c_void {
    cover::value(context);
    GET.get() as *const c_void
}

/// Runs before `setcontext`. Keeps the signals that this library needs unblocked in the context.
extern "C" fn before_set(context: *mut ucontext_t) -> *const c_void {
    cover::value(context);
    // SAFETY: the program switches to this context, so nobody else uses it meanwhile.
    if let Some(open) = unsafe { ours::without_ours(&raw const (*context).uc_sigmask) } {
        // SAFETY: as above. Only the kernel's part of the set is changed.
        unsafe { (*context).uc_sigmask = open };
    }
    SET.get() as *const c_void
}

extern "C" fn before_swap(from: *mut ucontext_t, to: *mut ucontext_t) -> *const c_void {
    before_set(to);
    cover::value(from);
    SWAP.get() as *const c_void
}

/// `execlp`: search the path.
const SEARCHED: c_int = 1;
/// `execle`: the environment follows the terminating null of the list.
const WITH_ENVIRONMENT: c_int = 2;

/// Implements `execl` and its kin. `first` are the five arguments after the path that came in registers, `rest` the
/// others.
///
/// # Safety
/// The list ends with a null. For `execle` the environment follows.
unsafe extern "C" fn exec_listed(path: Text, first: *const Text, rest: *const Text, how: c_int) -> c_int {
    // SAFETY: the caller upholds this function's own contract. Nothing after the last argument is read.
    unsafe {
        let argument = |index: usize| if index < 5 { *first.add(index) } else { *rest.add(index - 5) };
        let count = (0..).take_while(|&index| !argument(index).is_null()).count();
        let environment = if how == WITH_ENVIRONMENT { argument(count + 1) } else { std::ptr::null() };
        let list: Vec<Text> = {
            let _guard = guard::enter();
            (0..=count).map(argument).collect()
        };
        match how {
            SEARCHED => process::execvp(path, list.as_ptr()),
            WITH_ENVIRONMENT => process::execve(path, list.as_ptr(), environment.cast()),
            _ => process::execv(path, list.as_ptr()),
        }
    }
}

macro_rules! listed {
    ($($name:ident: $how:literal)*) => {$(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: Text, first: Text) -> c_int {
            std::arch::naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]", // past the five registers and the return address
                concat!("mov ecx, ", $how),
                "call {listed}",
                "add rsp, 40",
                "ret",
                listed = sym exec_listed,
            )
        }
    )*};
}

listed! {
    execl: 0
    execlp: 1
    execle: 2
}

macro_rules! context {
    ($($name:ident: $before:ident)*) => {$(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(first: *mut ucontext_t, second: *mut ucontext_t) -> c_int {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym $before,
            )
        }
    )*};
}

context! {
    getcontext: before_get
    setcontext: before_set
    swapcontext: before_swap
}

/// Where the C library has the function of a context that it has made return: that goes on with the linked context.
static ENDS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn before_make() -> *const c_void {
    MAKE.get() as *const c_void
}

/// Has the function of a context return to this library instead.
unsafe extern "C" fn after_make(context: *mut ucontext_t) {
    unsafe extern "C" {
        static folioswap_context_ends: u8;
    }
    // SAFETY: the C library has just made it, and put the return address at its stack pointer.
    unsafe {
        let returns = (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as *mut usize;
        ENDS.store(returns.read(), Ordering::Relaxed);
        returns.write(&raw const folioswap_context_ends as usize);
    }
}

/// Runs before the C library goes on with the linked context, if there is one. Returns where it does.
extern "C" fn before_linked(context: *mut ucontext_t) -> usize {
    if !context.is_null() {
        before_set(context);
    }
    ENDS.load(Ordering::Relaxed)
}

// The C library keeps the address of the link in rbx. Who unwinds the stack finds its end here.
std::arch::global_asm!(
    ".pushsection .text",
    ".balign 16",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "nop",
    ".hidden folioswap_context_ends",
    ".globl folioswap_context_ends",
    "folioswap_context_ends:",
    "mov rdi, qword ptr [rbx]",
    "call {before}",
    "jmp rax",
    ".cfi_endproc",
    ".popsection",
    before = sym before_linked,
);

/// Makes a context. The C library reads the arguments after the third from the stack, so they are pushed again.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn makecontext(context: *mut ucontext_t, function: extern "C" fn(), nr_arguments: c_int) {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "call {before}",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "mov rdi, qword ptr [rsp]",
        "mov r10, rax",
        "lea eax, [rdx - 3]",
        "test eax, eax",
        "jle 3f",
        "test eax, 1",
        "jz 4f",
        "2: push qword ptr [rbp + 8 * rax + 8]",
        "dec eax",
        "jnz 2b",
        "jmp 5f",
        "3: xor eax, eax",
        "4: sub rsp, 8", // calls are made with the stack aligned
        "test eax, eax",
        "jnz 2b",
        "5: call r10",
        "mov rdi, qword ptr [rbp - 8]",
        "call {after}",
        "leave",
        "ret",
        before = sym before_make,
        after = sym after_make,
    )
}

extern "C" fn before_open() -> *const c_void {
    OPEN.get() as *const c_void
}

extern "C" fn before_open_in() -> *const c_void {
    OPEN_IN.get() as *const c_void
}

/// Opens a library without RTLD_DEEPBIND: it would find the C library's functions before those of this library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(name: Text, how: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "and esi, {others}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        others = const !libc::RTLD_DEEPBIND,
        before = sym before_open,
    )
}

/// The same in a namespace. Only the first one has this library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlmopen(space: Lmid_t, name: Text, how: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "test rdi, rdi",
        "jnz 2f",
        "and edx, {others}",
        "2:",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {before}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        others = const !libc::RTLD_DEEPBIND,
        before = sym before_open_in,
    )
}
