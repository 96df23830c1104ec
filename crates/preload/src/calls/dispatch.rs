//! Catches system calls that are made outside the C library, by other run times, JIT code or the loader.
//!
//! The kernel raises SIGSYS for them (PR_SET_SYSCALL_USER_DISPATCH). The handler makes the call as `syscall` would: the
//! engine learns of memory calls, and in direct mode the call has the same covers. A caught call costs 1.5 us more, a C
//! library call nothing measurable.
//! - Signals that come meanwhile are deferred ([`caught`]).
//! - This library's own calls go through the C library's instruction ([`crate::ground::real::raw`]).
//! - SIGSYS is never blocked: the kernel would kill the process. A caught call sets the mask and stack of the
//!   interrupted code.
//! - A call that returns twice or on another stack is made from one of the [`trampolines`], with dispatch off. New
//!   threads start without it.
//! - A program's own use of the mechanism is done here: what it catches goes on to its handler of SIGSYS. Calls of the
//!   C library are not caught for it.
//! - A program that sets another FS base by a call disables it for that thread, and so does one that makes a call with
//!   such a base which returns twice or on another stack.

use folioswap_sys::sigbus::{self, Handled};
use libc::{c_int, c_long};

use crate::calls::{by_number, clones, mirrored, trampolines};
use crate::faults::{caught, cleared, masks, net, ours, signal_stack, small_stack};
use crate::ground::real::{Real, own};
use crate::ground::{c_library, guard, selector, state};
use crate::memory::{access, key_rights};

/// The `si_code` of a SIGSYS from dispatch; a seccomp filter's is 1.
const SYS_USER_DISPATCH: c_int = 2;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_SET_FS: usize = 0x1002;
const ARCH_GET_FS: usize = 0x1003;

/// Prepares [`net::arm`]. Returns whether SIGSYS is this library's now. There is no net if the kernel does not support
/// it, or if the C library consists of several objects.
pub fn prepare() -> bool {
    static CREATE: Real<unsafe extern "C" fn()> = Real::new(c"pthread_create");
    if !c_library::code().contains(&(CREATE.get() as usize)) {
        return false; // only half of the C library's calls would be recognised
    }
    if let Err(error) = sigbus::install_syscall(on_caught, caught::folioswap_on_call) {
        state::say(&format!("system calls outside the C library are not covered: {error}"));
        return false;
    }
    let mut action = [0usize; 4]; // handler, flags, restorer, mask
    // SAFETY: the kernel fills in the local.
    unsafe { own!(libc::SYS_rt_sigaction, libc::SIGSYS, 0usize, action.as_mut_ptr(), 8usize) };
    net::begin(action[2]);
    true
}

/// The number and the architecture of a caught call.
fn about(info: &libc::siginfo_t) -> (c_long, u32) {
    #[repr(C)]
    struct Caught {
        head: [c_int; 4],
        from: usize,
        number: c_int,
        architecture: u32,
    }
    // SAFETY: the kernel's siginfo for SIGSYS has this layout.
    let caught = unsafe { &*(&raw const *info).cast::<Caught>() };
    (caught.number.into(), caught.architecture)
}

fn on_caught(info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> Handled {
    if info.si_code != SYS_USER_DISPATCH || !selector::is_armed() {
        caught::forget();
        return if mirrored::is_answered(info) { Handled::Yes } else { Handled::No };
    }
    if net::is_theirs(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize) {
        caught::forget();
        return Handled::No;
    }
    let (number, architecture) = about(info);
    let registers = &context.uc_mcontext.gregs;
    let word = |register: c_int| registers[register as usize] as usize;
    let words = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9].map(word);
    if architecture != AUDIT_ARCH_X86_64 || (number == libc::SYS_arch_prctl && words[0] == ARCH_SET_FS) {
        net::step_back();
        context.uc_mcontext.gregs[libc::REG_RIP as usize] -= 2; // runs the instruction again
        return Handled::Yes;
    }
    if number == libc::SYS_pkey_alloc {
        key_rights::note_keys();
    }
    // SAFETY: the kernel's own context.
    let rights = unsafe { key_rights::borrow(context) };
    let result = caught::during(number, &words, || made(number, &words, context));
    if let Some(rights) = rights {
        // SAFETY: as above.
        unsafe { rights.give_back(context) };
    }
    match result {
        (None, _) => {}
        (Some(caught::INTERRUPTED), true) => context.uc_mcontext.gregs[libc::REG_RIP as usize] -= 2,
        (Some(result), _) => context.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64,
    }
    Handled::Yes
}

/// Makes a caught call. `None`: the program goes on elsewhere than behind it.
fn made(number: c_long, words: &[usize; 6], context: &mut libc::ucontext_t) -> Option<isize> {
    cleared::end_call();
    Some(match number {
        libc::SYS_rt_sigreturn => {
            // SAFETY: the stack pointer is where the kernel looks for the context.
            unsafe { small_stack::take_context(context.uc_mcontext.gregs[libc::REG_RSP as usize] as *mut _) };
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = net::restorer() as i64;
            return None;
        }
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            // SAFETY: the program's own call.
            let shares = unsafe { clones::shares_until_exec(number, words) };
            // SAFETY: as above.
            unsafe { clones::before_clone(number, words) };
            // SAFETY: as above. A child goes on here, too.
            let result = unsafe { clones::by_number(number, words) };
            if result.is_none() {
                trampolines::depart(context, shares);
            }
            return result;
        }
        libc::SYS_rt_sigprocmask => set_mask(context, words),
        libc::SYS_sigaltstack => set_stack(context, words),
        libc::SYS_arch_prctl
            if words[0] == ARCH_GET_FS
                && let Some(base) = caught::other_base() =>
        {
            tell_base(words[1], base)
        }
        libc::SYS_kill | libc::SYS_tkill | libc::SYS_rt_sigqueueinfo | libc::SYS_pidfd_send_signal => {
            leave_for_later(words[1] as c_int);
            // SAFETY: makes the call that the program itself made.
            unsafe { by_number::call(number, words) }
        }
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => {
            leave_for_later(words[2] as c_int);
            // SAFETY: as above.
            unsafe { by_number::call(number, words) }
        }
        // What the loader maps is a library's. It holds its locks, so the engine must not start on it.
        libc::SYS_mmap if c_library::is_loader(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize) => {
            let _guard = guard::enter();
            // SAFETY: makes the call that the loader itself made.
            unsafe { by_number::call(number, words) }
        }
        // SAFETY: makes the call that the program itself made.
        _ => unsafe { by_number::call(number, words) },
    })
}

/// Blocks a signal that is open in the handler of SIGSYS, as instructions raise it, until that returns: the program may
/// send it to itself.
fn leave_for_later(signal: c_int) {
    let raised = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    if raised.contains(&signal) && !ours::is_ours(signal) {
        let mask = 1u64 << (signal - 1);
        // SAFETY: the kernel reads a set of 8 bytes.
        unsafe { own!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, 0usize, 8) };
    }
}

/// Answers with the other FS base.
fn tell_base(at: usize, base: usize) -> isize {
    if at == 0 { BAD_ADDRESS } else { tell(base, at) }
}

const BAD_ADDRESS: isize = -(libc::EFAULT as isize);

/// Writes what a call tells to where the program wants it, if anywhere: the call's result.
fn tell<T>(value: T, at: usize) -> isize {
    // SAFETY: the caller's pointer.
    let result = state::keeping_errno(|| unsafe { ours::bring(value, at as *mut T, 0) });
    if result == 0 { 0 } else { BAD_ADDRESS }
}

/// `rt_sigprocmask` on the interrupted context, because the handler's own mask ends with the handler.
fn set_mask(context: &mut libc::ucontext_t, &[how, set, before, len, ..]: &[usize; 6]) -> isize {
    if len != 8 {
        return -(libc::EINVAL as isize);
    }
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    let ours = ours::ours_mask();
    // SAFETY: the context is the handler's. The pointer is null or the caller's.
    unsafe {
        let known = *mask;
        let wanted = access::read(set as *const u64);
        if set != 0 && wanted.is_none() {
            return BAD_ADDRESS;
        }
        if let Some(set) = wanted {
            *mask = match how as c_int {
                libc::SIG_BLOCK => known | set & !ours,
                libc::SIG_UNBLOCK => known & !set,
                libc::SIG_SETMASK => set & !ours,
                _ => return -(libc::EINVAL as isize),
            };
        }
        tell(masks::change(how as c_int, wanted, known), before)
    }
}

/// `sigaltstack` on the interrupted context.
fn set_stack(context: &mut libc::ucontext_t, &[new, before, ..]: &[usize; 6]) -> isize {
    let (known, stood_for) = (context.uc_stack, signal_stack::stands_for());
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let on_it = signal_stack::is_on(&known, pointer) || signal_stack::is_on_theirs(pointer);
    if new != 0 {
        // SAFETY: the caller's pointer.
        let Some(wanted) = (unsafe { access::read(new as *const libc::stack_t) }) else { return BAD_ADDRESS };
        if on_it {
            return -(libc::EPERM as isize);
        }
        let error = signal_stack::complaint(&wanted);
        if error != 0 {
            return -(error as isize);
        }
        let mut set = signal_stack::instead_of(wanted);
        let _before = signal_stack::hold(&set);
        set.ss_flags &= !libc::SS_ONSTACK;
        context.uc_stack = set;
        signal_stack::change(&set);
    }
    let mut told = signal_stack::told(known, stood_for);
    if on_it && told.ss_flags & libc::SS_DISABLE == 0 {
        told.ss_flags |= libc::SS_ONSTACK;
    }
    tell(told, before)
}
