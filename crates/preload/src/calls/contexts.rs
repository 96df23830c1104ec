//! `getcontext` and its kin. Those of the C library have the kernel read and fill in the masks in contexts, which may
//! have left RAM: these pass copies. Threads with a shadow stack go on to the C library, which switches that too.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{mcontext_t, sigset_t, ucontext_t};

use crate::faults::{masks, ours};
use crate::ground::export::real;
use crate::ground::state;

real!(GET = c"getcontext": fn(*mut ucontext_t) -> c_int);
real!(SET = c"setcontext": fn(*const ucontext_t) -> c_int);
real!(SWAP = c"swapcontext": fn(*mut ucontext_t, *const ucontext_t) -> c_int);
real!(MAKE = c"makecontext": fn(*mut ucontext_t, extern "C" fn(), c_int) -> ());

/// Where the C library notes in a thread's record whether it has a shadow stack.
pub const FEATURES_AT: usize = 0x48;
pub const SHADOW_STACK: u32 = 2;

const fn place(register: c_int) -> usize {
    offset_of!(ucontext_t, uc_mcontext) + offset_of!(mcontext_t, gregs) + register as usize * size_of::<u64>()
}

/// Where a context names its floating-point state, where it has that, and the vector unit's control word in it.
const STATE_NAMED: usize = offset_of!(ucontext_t, uc_mcontext) + offset_of!(mcontext_t, fpregs);
const STATE: usize = offset_of!(ucontext_t, uc_sigmask) + size_of::<sigset_t>();
const VECTOR_CONTROL: usize = STATE + 24;

extern "C" fn before_get() -> *const () {
    GET.get() as *const ()
}

extern "C" fn before_set(context: *mut ucontext_t) -> *const () {
    keep_ours_open(context);
    SET.get() as *const ()
}

extern "C" fn before_swap(_: *mut ucontext_t, to: *mut ucontext_t) -> *const () {
    keep_ours_open(to);
    SWAP.get() as *const ()
}

/// Keeps the signals that this library needs unblocked in a context.
fn keep_ours_open(context: *mut ucontext_t) {
    // SAFETY: the program switches to this context, so nobody else uses it meanwhile. Only the kernel's part of the set
    // is changed.
    unsafe {
        if let Some(open) = ours::without_ours(&raw const (*context).uc_sigmask) {
            (*context).uc_sigmask = open;
        }
    }
}

/// Saves the mask in a context. Returns 0.
extern "C" fn save_mask(from: *mut ucontext_t) -> c_int {
    exchange(from, None)
}

/// Sets the mask of a context. Returns 0 or -1.
extern "C" fn set_mask(to: *const ucontext_t) -> c_int {
    // SAFETY: the context of a call that the program makes, of which the kernel knows the first word.
    exchange(null_mut(), Some(unsafe { (&raw const (*to).uc_sigmask).cast::<u64>().read() }))
}

/// Both, one after the other: a handler that may run then finds the mask saved. Returns 0 or -1.
extern "C" fn switch_mask(from: *mut ucontext_t, to: *const ucontext_t) -> c_int {
    match save_mask(from) {
        0 => set_mask(to),
        failed => failed,
    }
}

fn exchange(from: *mut ucontext_t, set: Option<u64>) -> c_int {
    match masks::exchange(libc::SIG_SETMASK, set) {
        Ok(_) if from.is_null() => {}
        // SAFETY: as above.
        Ok(before) => unsafe { (&raw mut (*from).uc_sigmask).cast::<u64>().write(before) },
        Err(error) => {
            state::fail(error);
            return -1;
        }
    }
    0
}

/// A thread with a shadow stack goes on in the C library's function that `before` returns, with the same arguments.
macro_rules! unless_shadow_stack {
    () => {
        "test dword ptr fs:[{features}], {shadow_stack}
        jz 2f
        push rdi
        push rsi
        sub rsp, 8
        call {before}
        add rsp, 8
        pop rsi
        pop rdi
        jmp rax
        2:"
    };
}
pub(crate) use unless_shadow_stack;

macro_rules! entry {
    ($name:ident, $before:ident, [$($line:expr),*], $($operand:tt)*) => {
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(first: *mut ucontext_t, second: *mut ucontext_t) -> c_int {
            std::arch::naked_asm!(
                unless_shadow_stack!(),
                $($line,)*
                features = const FEATURES_AT,
                shadow_stack = const SHADOW_STACK,
                before = sym $before,
                rbx = const place(libc::REG_RBX),
                rbp = const place(libc::REG_RBP),
                r12 = const place(libc::REG_R12),
                r13 = const place(libc::REG_R13),
                r14 = const place(libc::REG_R14),
                r15 = const place(libc::REG_R15),
                rdi = const place(libc::REG_RDI),
                rsi = const place(libc::REG_RSI),
                rdx = const place(libc::REG_RDX),
                rcx = const place(libc::REG_RCX),
                r8 = const place(libc::REG_R8),
                r9 = const place(libc::REG_R9),
                rip = const place(libc::REG_RIP),
                rsp = const place(libc::REG_RSP),
                state_named = const STATE_NAMED,
                vector_control = const VECTOR_CONTROL,
                $($operand)*
            )
        }
    };
}

/// Saves the registers in the context at rdi, as they are when the caller's call has returned.
macro_rules! save {
    () => {
        "mov [rdi + {rbx}], rbx
        mov [rdi + {rbp}], rbp
        mov [rdi + {r12}], r12
        mov [rdi + {r13}], r13
        mov [rdi + {r14}], r14
        mov [rdi + {r15}], r15
        mov [rdi + {rdi}], rdi
        mov [rdi + {rsi}], rsi
        mov [rdi + {rdx}], rdx
        mov [rdi + {rcx}], rcx
        mov [rdi + {r8}], r8
        mov [rdi + {r9}], r9
        mov rcx, [rsp]
        mov [rdi + {rip}], rcx
        lea rcx, [rsp + 8]
        mov [rdi + {rsp}], rcx
        lea rcx, [rdi + {state}]
        mov [rdi + {state_named}], rcx
        fnstenv [rcx]
        fldenv [rcx]
        stmxcsr [rdi + {vector_control}]"
    };
}

/// Goes on in the context at rdx.
macro_rules! load {
    () => {
        "mov rcx, [rdx + {state_named}]
        fldenv [rcx]
        ldmxcsr [rdx + {vector_control}]
        mov rbx, [rdx + {rbx}]
        mov rbp, [rdx + {rbp}]
        mov r12, [rdx + {r12}]
        mov r13, [rdx + {r13}]
        mov r14, [rdx + {r14}]
        mov r15, [rdx + {r15}]
        mov rdi, [rdx + {rdi}]
        mov rsi, [rdx + {rsi}]
        mov r8, [rdx + {r8}]
        mov r9, [rdx + {r9}]
        mov rsp, [rdx + {rsp}]
        push qword ptr [rdx + {rip}]
        mov rcx, [rdx + {rcx}]
        mov rdx, [rdx + {rdx}]
        xor eax, eax
        ret"
    };
}

entry! {
    getcontext, before_get,
    [save!(), "jmp {save_mask}"],
    save_mask = sym save_mask,
    state = const STATE,
}

entry! {
    setcontext, before_set,
    ["push rdi", "call {set_mask}", "pop rdx", "test eax, eax", "jnz 3f", load!(), "3: ret"],
    set_mask = sym set_mask,
}

entry! {
    swapcontext, before_swap,
    [save!(), "push rsi", "call {switch_mask}", "pop rdx", "test eax, eax", "jnz 3f", load!(), "3: ret"],
    switch_mask = sym switch_mask,
    state = const STATE,
}

/// Where the C library has the function of a context that it has made return: that goes on with the linked context.
static ENDS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn before_make() -> *const () {
    MAKE.get() as *const ()
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
        keep_ours_open(context);
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
    "test rdi, rdi",
    "jz 2f",
    "test dword ptr fs:[{features}], {shadow_stack}",
    "jnz 2f",
    "call {set}", // returns only if it fails: the C library calls its own, and ends the process
    "mov rdi, qword ptr [rbx]",
    "2: call {before}",
    "jmp rax",
    ".cfi_endproc",
    ".popsection",
    features = const FEATURES_AT,
    shadow_stack = const SHADOW_STACK,
    set = sym setcontext,
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
