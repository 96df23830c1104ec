//! Stacks for what is done in a signal handler: the alternate stack that a thread runs it on may be as small as 2 KiB,
//! and Rust's own has 8 KiB on most machines, of which the signal's frame takes up to half. A fault takes 5 KiB, and more
//! to report why it failed.
//!
//! A few stacks are kept for all threads; who takes one has it alone until it is given back. When there is none a new
//! one is mapped, so there are as many as threads were ever in a fault at once. Nothing here allocates or locks.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::memory::{self, Reservation};

/// The lowest page of it is no memory at all.
const STACK_BYTES: usize = 192 << 10;
const GUARD_BYTES: usize = 4096;

/// Where the stacks begin that nobody uses; zero: none.
static SPARE: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Calls `function(argument)` on a stack of its own. On the one it is called on when no memory is left for another, or
/// on processors for which the switch is not written.
pub fn call(function: extern "C" fn(usize) -> bool, argument: usize) -> bool {
    let first = first_place();
    let Some(stack) = take(first).or_else(map) else { return function(argument) };
    let result = switch(function, argument, stack + STACK_BYTES);
    give(stack, first);
    result
}

/// The place where a thread looks first: its own, as long as there are few.
fn first_place() -> usize {
    let here = 0u8;
    (&raw const here as usize >> 14) % SPARE.len()
}

fn places(first: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    SPARE[first..].iter().chain(&SPARE[..first])
}

fn take(first: usize) -> Option<usize> {
    // Acquire: what its last user left on it was written before it was given back.
    let taken = |place: &AtomicUsize| match place.load(Ordering::Relaxed) {
        0 => 0,
        _ => place.swap(0, Ordering::Acquire),
    };
    places(first).map(taken).find(|&stack| stack != 0)
}

fn give(stack: usize, first: usize) {
    let into = |place: &AtomicUsize| {
        place.load(Ordering::Relaxed) == 0
            && place.compare_exchange(0, stack, Ordering::Release, Ordering::Relaxed).is_ok()
    };
    if !places(first).any(into) {
        // SAFETY: more threads at once than places: the stack is in none, so nobody runs on it or will. It is all of a
        // reservation that was leaked. A failure leaves it mapped, and unused.
        let _ = unsafe { memory::unmap(stack, STACK_BYTES) };
    }
}

fn map() -> Option<usize> {
    let stack = Reservation::new(STACK_BYTES, GUARD_BYTES).ok()?;
    stack.protect_rw(stack.addr() + GUARD_BYTES..stack.addr() + STACK_BYTES).ok()?;
    let addr = stack.addr();
    stack.leak();
    Some(addr)
}

#[cfg(target_arch = "x86_64")]
fn switch(function: extern "C" fn(usize) -> bool, argument: usize, top: usize) -> bool {
    let result: u8;
    // SAFETY: the stack is the caller's alone, mapped below `top` and aligned to 16 bytes. The function follows the C
    // calling convention, keeps r12, does not unwind (a panic that would leave it aborts), and returns to here.
    unsafe {
        std::arch::asm!(
            "xchg rsp, r12",
            "call {function}",
            "mov rsp, r12",
            function = in(reg) function,
            inout("r12") top => _,
            in("rdi") argument,
            lateout("al") result,
            clobber_abi("C"),
        );
    }
    result != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn switch(function: extern "C" fn(usize) -> bool, argument: usize, _top: usize) -> bool {
    function(argument)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Notes where it runs, and calls itself so many times.
    extern "C" fn nest(depth: usize) -> bool {
        let filled = std::hint::black_box([depth as u8; 4 << 10]);
        let inner = depth == 0 || call(nest, depth - 1);
        inner && filled.iter().all(|&byte| byte == depth as u8)
    }

    #[test]
    fn each_call_has_a_stack_of_its_own_and_there_may_be_more_calls_than_places() {
        assert!(nest(SPARE.len() + 10));
        assert!(!call(never, 7));
    }

    extern "C" fn never(argument: usize) -> bool {
        argument != 7
    }

    #[test]
    fn threads_share_them() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(depth: usize) -> bool {
            CALLS.fetch_add(1, Ordering::Relaxed);
            nest(depth)
        }
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|at| assert!(call(count, at % 3))));
            }
        });
        assert_eq!(CALLS.load(Ordering::Relaxed), 8000);
    }
}
