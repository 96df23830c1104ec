//! Code from which a caught call is made that returns twice or on another stack, with dispatch off.
//!
//! The parent closes the net again. A child that shares its parent's memory until it executes a program gets the net,
//! too, in direct mode: the kernel finds what its calls name as it would find it for its parent.

use std::sync::atomic::{AtomicUsize, Ordering};

use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::{own_calls, static_tls, vforked};

use crate::faults::{caught, net};
use crate::ground::{c_library, selector, state};

/// Where the program continues after a call from the trampoline of the same index. Zero: the trampoline is free.
static RETURNS: [AtomicUsize; TRAMPOLINES] = [const { AtomicUsize::new(0) }; TRAMPOLINES];
const TRAMPOLINES: usize = 16;
const DEPARTURE_BYTES: usize = 32;

static_tls! {
    /// Where the program continues in a child that shares the memory, and in its parent after that.
    static RETURN: usize = "folioswap_shared_return";
}

static_tls! {
    /// Registers of such a child while it gets the net.
    static KEPT: [usize; 5] = "folioswap_shared_kept";
}

/// The C library's code, whose calls are not caught.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

// A trampoline makes its call, then sets the selector to BLOCK unless it returns in the child, and jumps to where the
// program made the call. The `syscall` instruction leaves nothing in rcx and r11, so they are free to use, and `jrcxz`
// changes no flags.
//
// The child that shares the memory has its parent's thread-local variables, and its parent waits. So the last
// trampoline needs no static place, and has the selector set for both.
std::arch::global_asm!(
    ".pushsection .text",
    ".balign 32",
    ".hidden folioswap_trampolines",
    ".globl folioswap_trampolines",
    "folioswap_trampolines:",
    ".irp place,0,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120",
    ".balign 32",
    "syscall",
    "mov rcx, rax",
    "jrcxz 2f",
    "mov rcx, qword ptr [rip + folioswap_selector@GOTTPOFF]",
    "mov byte ptr fs:[rcx], 1",
    "2: jmp qword ptr [rip + {returns} + \\place]",
    ".endr",
    ".balign 32",
    ".hidden folioswap_shared_trampoline",
    ".globl folioswap_shared_trampoline",
    "folioswap_shared_trampoline:",
    "syscall",
    "mov rcx, rax",
    "jrcxz 3f",
    "mov rcx, qword ptr [rip + folioswap_selector@GOTTPOFF]",
    "mov byte ptr fs:[rcx], 1",
    "2: mov rcx, qword ptr [rip + folioswap_shared_return@GOTTPOFF]",
    "jmp qword ptr fs:[rcx]",
    "3: mov rcx, qword ptr [rip + folioswap_shared_kept@GOTTPOFF]",
    "mov qword ptr fs:[rcx], rdi",
    "mov qword ptr fs:[rcx + 8], rsi",
    "mov qword ptr fs:[rcx + 16], rdx",
    "mov qword ptr fs:[rcx + 24], r10",
    "mov qword ptr fs:[rcx + 32], r8",
    "mov eax, {prctl}",
    "mov edi, {set_dispatch}",
    "mov esi, {on}",
    "mov rdx, qword ptr [rip + {code}]",
    "mov r10, qword ptr [rip + {code} + 8]",
    "mov r8, qword ptr fs:[0]",
    "mov rcx, qword ptr [rip + folioswap_selector@GOTTPOFF]",
    "lea r8, [r8 + rcx]",
    "syscall",
    "mov rcx, qword ptr [rip + folioswap_selector@GOTTPOFF]",
    "mov byte ptr fs:[rcx], 1",
    "mov rcx, qword ptr [rip + folioswap_shared_kept@GOTTPOFF]",
    "mov rdi, qword ptr fs:[rcx]",
    "mov rsi, qword ptr fs:[rcx + 8]",
    "mov rdx, qword ptr fs:[rcx + 16]",
    "mov r10, qword ptr fs:[rcx + 24]",
    "mov r8, qword ptr fs:[rcx + 32]",
    "mov eax, 0",
    "jmp 2b",
    ".popsection",
    returns = sym RETURNS,
    prctl = const libc::SYS_prctl,
    set_dispatch = const net::SET_DISPATCH,
    on = const net::DISPATCH_ON,
    code = sym CODE,
);

unsafe extern "C" {
    static folioswap_trampolines: u8;
    static folioswap_shared_trampoline: u8;
}

/// Lets the thread make the call from a trampoline. If all are taken, the net stays open on this thread. With another
/// FS base, a trampoline would not find the selector: the thread has no net from then on.
///
/// `shares`: the child shares the memory, with the thread-local variables, until it executes a program.
pub fn depart(context: &mut libc::ucontext_t, shares: bool) {
    let at = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let next = *at as usize;
    if caught::other_base().is_some() {
        net::step_back();
        *at -= 2;
        return;
    }
    selector::open();
    if shares && state::direct() && !own_calls::is_used() && !vforked::is_child() {
        let code = c_library::code();
        CODE[0].store(code.start, Ordering::Relaxed);
        CODE[1].store(code.len(), Ordering::Relaxed);
        RETURN.set(next);
        *at = &raw const folioswap_shared_trampoline as i64;
        return;
    }
    let free = |place: &AtomicUsize| {
        place.compare_exchange(0, next, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|now| now)
    };
    match RETURNS.iter().position(|place| matches!(free(place), now if now == 0 || now == next)) {
        Some(index) => *at = (&raw const folioswap_trampolines as usize + index * DEPARTURE_BYTES) as i64,
        None => *at -= 2,
    }
}
