//! The net under the covers of the C library's functions: system calls that do not come from it at all, but from code
//! that has the instruction itself (other run times, compilers at run time, the loader).
//!
//! In direct mode each thread asks the kernel to make no system call but those of the C library's code (PR_SET_SYSCALL_USER_DISPATCH).
//! For the others it gives the thread a SIGSYS, whose handler makes the call as `syscall` would, with the same covers.
//! This costs calls of the C library nothing that can be measured, and the others 1.5 us each.
//!
//! - This library's own calls go through the C library's instruction ([`crate::real::raw`]).
//! - SIGSYS is never blocked, for the kernel would end the process; the program's own action for it gets what is not
//!   caught here. Masks and alternate stacks that a caught call sets are those of the interrupted context.
//! - A call that returns twice, or on another stack, is not made by the handler. The thread makes it from a place of this
//!   library's ([`departures`]) with the net open, and the parent closes the net there. A new thread has no net.
//! - A program that uses the mechanism itself, or other segment registers, has it: the net steps back on that thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use folioswap_sys::sigbus::{self, Handled};
use libc::{c_int, c_long};

use crate::calls::by_number;
use crate::real::{Real, kernel};
use crate::{guard, malloc, signal_stack, signals, state, threads};

/// PR_SET_SYSCALL_USER_DISPATCH.
pub const SET_DISPATCH: usize = 59;
const DISPATCH_OFF: usize = 0;
const DISPATCH_ON: usize = 1;
/// What the selector of a thread says.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
/// Why there is a SIGSYS: not for a filter (1), but for this.
const SYS_USER_DISPATCH: c_int = 2;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_SET_FS: usize = 0x1002;

/// Whether threads get the net.
static READY: AtomicBool = AtomicBool::new(false);

/// Where the C library returns from a signal handler.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

/// Where the program goes on after a call made from the departure of the same index; zero: not in use.
static RETURNS: [AtomicUsize; DEPARTURES] = [const { AtomicUsize::new(0) }; DEPARTURES];
const DEPARTURES: usize = 16;
const DEPARTURE_BYTES: usize = 32;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

// The selector is a byte of each thread's, which the kernel reads. A departure makes its call, and, unless it is the
// child's return from it, closes the net again; then it goes on where the program made the call. The instruction that
// makes the call leaves nothing in rcx and r11; `jrcxz` changes no flags.
std::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden folioswap_selector",
    ".globl folioswap_selector",
    "folioswap_selector: .zero 1",
    ".popsection",
    ".pushsection .text",
    ".balign 32",
    ".hidden folioswap_departures",
    ".globl folioswap_departures",
    "folioswap_departures:",
    ".irp place,0,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120",
    ".balign 32",
    "syscall",
    "mov rcx, rax",
    "jrcxz 2f",
    "mov rcx, qword ptr [rip + folioswap_selector@GOTTPOFF]",
    "mov byte ptr fs:[rcx], 1",
    "2: jmp qword ptr [rip + {returns} + \\place]",
    ".endr",
    ".popsection",
    returns = sym RETURNS,
);

/// This thread's selector.
fn selector() -> *mut u8 {
    let at: *mut u8;
    // SAFETY: reads where this thread's storage is, and the offset in it.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + folioswap_selector@GOTTPOFF]",
            at = out(reg) at,
            options(nostack, readonly),
        );
    }
    at
}

fn departures() -> usize {
    unsafe extern "C" {
        static folioswap_departures: u8;
    }
    &raw const folioswap_departures as usize
}

/// Gets everything ready for [`arm`]. Where the kernel, or a C library in several parts, does not allow for the net,
/// there is none.
pub fn prepare() {
    static CREATE: Real<unsafe extern "C" fn()> = Real::new(c"pthread_create");
    if !malloc::libc_code().contains(&(CREATE.get() as usize)) {
        return; // half of what makes system calls would be caught
    }
    if let Err(error) = sigbus::install_syscall(on_caught) {
        return state::say(&format!("system calls outside the C library are not covered: {error}"));
    }
    let mut action = [0usize; 4]; // handler, flags, restorer, mask
    // SAFETY: the kernel fills in the local.
    unsafe { kernel!(libc::SYS_rt_sigaction, libc::SIGSYS, 0usize, action.as_mut_ptr(), 8usize) };
    RESTORER.store(action[2], Ordering::Relaxed);
    READY.store(malloc::libc_code().contains(&action[2]), Ordering::SeqCst);
}

/// Puts the net under the calling thread.
pub fn arm() {
    if !READY.load(Ordering::Relaxed) || ARMED.get() {
        return;
    }
    let code = malloc::libc_code();
    // SAFETY: the selector is this thread's, and there as long as it is.
    unsafe {
        *selector() = BLOCK;
        let armed = kernel!(libc::SYS_prctl, SET_DISPATCH, DISPATCH_ON, code.start, code.len(), selector());
        ARMED.set(armed == 0);
    }
}

/// In a forked child, whose thread the kernel has taken the net from.
pub fn forget() {
    ARMED.set(false);
}

/// Threads to come get no net: the program has set a filter, which may end who asks for one.
pub fn leave_new_threads() {
    READY.store(false, Ordering::Relaxed);
}

/// Takes the net away from the calling thread.
pub fn step_back() {
    // SAFETY: takes numbers.
    unsafe { kernel!(libc::SYS_prctl, SET_DISPATCH, DISPATCH_OFF, 0usize, 0usize, 0usize) };
    ARMED.set(false);
}

/// The number and the architecture of a call that was caught.
fn about(info: &libc::siginfo_t) -> (c_long, u32) {
    #[repr(C)]
    struct Caught {
        head: [c_int; 4],
        from: usize,
        number: c_int,
        architecture: u32,
    }
    // SAFETY: the kernel's siginfo of a SIGSYS has these parts.
    let caught = unsafe { &*(&raw const *info).cast::<Caught>() };
    (caught.number.into(), caught.architecture)
}

fn on_caught(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> Handled {
    if info.si_code != SYS_USER_DISPATCH || !ARMED.get() {
        return Handled::No;
    }
    let (number, architecture) = about(info);
    let registers = &context.uc_mcontext.gregs;
    let word = |register: c_int| registers[register as usize] as usize;
    let words = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9].map(word);
    if architecture != AUDIT_ARCH_X86_64 || (number == libc::SYS_arch_prctl && words[0] == ARCH_SET_FS) {
        step_back();
        context.uc_mcontext.gregs[libc::REG_RIP as usize] -= 2; // the instruction again
        return Handled::Yes;
    }
    let result = match number {
        libc::SYS_rt_sigreturn => {
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = RESTORER.load(Ordering::Relaxed) as i64;
            return Handled::Yes;
        }
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            depart(context);
            return Handled::Yes;
        }
        libc::SYS_rt_sigprocmask => set_mask(context, &words),
        libc::SYS_sigaltstack => set_stack(context, &words),
        // SAFETY: the program's own call.
        _ => unsafe { by_number::call(number, &words) },
    };
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
    Handled::Yes
}

/// Has the thread make the call from a departure. When all are taken the net stays open from here on.
fn depart(context: &mut libc::ucontext_t) {
    let at = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let next = *at as usize;
    let free = |place: &AtomicUsize| {
        place.compare_exchange(0, next, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|now| now)
    };
    // SAFETY: this thread's own byte.
    unsafe { *selector() = ALLOW };
    match RETURNS.iter().position(|place| matches!(free(place), now if now == 0 || now == next)) {
        Some(index) => *at = (departures() + index * DEPARTURE_BYTES) as i64,
        None => *at -= 2,
    }
}

/// `rt_sigprocmask`: of the interrupted context, for the handler's own mask ends with it.
fn set_mask(context: &mut libc::ucontext_t, &[how, set, before, len, ..]: &[usize; 6]) -> isize {
    if len != 8 {
        return -(libc::EINVAL as isize);
    }
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    let ours = signals::OURS.iter().fold(0, |bits, signal| bits | 1u64 << (signal - 1));
    // SAFETY: the context is the handler's; the others are null or the caller's, and touching them brings them in.
    unsafe {
        let known = *mask;
        if set != 0 {
            let set = *(set as *const u64);
            *mask = match how as c_int {
                libc::SIG_BLOCK => known | set & !ours,
                libc::SIG_UNBLOCK => known & !set,
                libc::SIG_SETMASK => set & !ours,
                _ => return -(libc::EINVAL as isize),
            };
        }
        if before != 0 {
            *(before as *mut u64) = known;
        }
    }
    0
}

extern "C" fn set_now(stack: usize) -> bool {
    // SAFETY: the kernel reads the description that `set_stack` gives.
    unsafe { kernel!(libc::SYS_sigaltstack, stack, 0usize) == 0 }
}

/// `sigaltstack`: the same.
fn set_stack(context: &mut libc::ucontext_t, &[new, before, ..]: &[usize; 6]) -> isize {
    let (known, stood_for) = (context.uc_stack, signal_stack::stands_for());
    let on_it =
        (context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize).wrapping_sub(known.ss_sp as usize).wrapping_sub(1)
            < known.ss_size;
    // SAFETY: null or the caller's; touching them brings them in.
    unsafe {
        if new != 0 {
            let wanted = *(new as *const libc::stack_t);
            if on_it {
                return -(libc::EPERM as isize);
            }
            if wanted.ss_flags & libc::SS_DISABLE == 0 && wanted.ss_size < libc::MINSIGSTKSZ {
                return -(libc::ENOMEM as isize);
            }
            let mut set = signal_stack::instead_of(wanted);
            threads::hold(set.ss_sp as usize, set.ss_size);
            set.ss_flags &= !libc::SS_ONSTACK;
            context.uc_stack = set;
            // The kernel changes nothing for who runs on the stack that is set, as this handler may. No handler runs
            // meanwhile: it would begin where this one did.
            let _guard = guard::enter();
            folioswap_sys::fault_stack::call(set_now, &raw const set as usize);
        }
        if before != 0 {
            let mut told = signal_stack::told(known, stood_for);
            if on_it && told.ss_flags & libc::SS_DISABLE == 0 {
                told.ss_flags |= libc::SS_ONSTACK;
            }
            *(before as *mut libc::stack_t) = told;
        }
    }
    0
}
