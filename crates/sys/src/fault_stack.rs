//! Stacks for work in signal handlers. A thread's alternate stack may be as small as 2 KiB, and Rust's own has 8 KiB on
//! most machines, of which the signal frame takes up to half. Handling a fault takes 5 KiB, and more to report why it
//! failed.
//!
//! All threads share a pool of stacks. A thread owns the one that it takes until it gives it back. If the pool is
//! empty, a new stack is mapped, so there are as many as threads were ever in a fault at once. Nothing here allocates
//! or locks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::memory::{self, PAGE_SIZE, Reservation};
use crate::static_tls::StaticTls;
use crate::{signals, static_tls};

/// Includes the guard page at the bottom.
const STACK_BYTES: usize = 192 << 10;
const GUARD_BYTES: usize = PAGE_SIZE;

/// Start addresses of the unused stacks; zero: none.
static SPARE: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

static_tls! {
    /// Whether the calling thread's own stack is a small one.
    static IS_SMALL: bool = "folioswap_small_stack";
}

/// Notes that the calling thread's own stack is too small for what the engine does.
pub fn note_small() {
    IS_SMALL.set(true);
}

/// Whether it is.
pub fn is_small() -> bool {
    IS_SMALL.get()
}

/// Makes a call for this module.
type Around = fn(&mut dyn FnMut());

static AROUND: OnceLock<Around> = OnceLock::new();

/// Has `around` make the calls that map and unmap stacks. A preloaded library, which takes over the C library's
/// `syscall`, tells them from the program's by that. Once.
pub fn set_around(around: Around) {
    let _ = AROUND.set(around);
}

fn apart<R>(call: impl Fn() -> R) -> R {
    let Some(around) = AROUND.get() else { return call() };
    let mut result = None;
    around(&mut || result = Some(call()));
    result.expect("the call was made")
}

/// Calls `function(argument)` on a stack of its own. If no memory is left for one, calls it on the current stack.
pub fn call(function: extern "C" fn(usize) -> bool, argument: usize) -> bool {
    let first = first_place();
    let Some(stack) = take(first).or_else(|| apart(map)) else { return function(argument) };
    // SAFETY: only this call uses the stack. Its start and length are multiples of a page, and it is mapped from the
    // guard page to its end. `function` returns: a panic cannot leave it, because it is `extern "C"`.
    let result =
        unsafe { psm::on_stack((stack + GUARD_BYTES) as *mut u8, STACK_BYTES - GUARD_BYTES, || function(argument)) };
    give(stack, first);
    result
}

/// As [`call`], for a closure.
pub fn run<R, F: FnOnce() -> R>(work: F) -> R {
    extern "C" fn work_once<R, F: FnOnce() -> R>(both: usize) -> bool {
        // SAFETY: the caller below waits, and nobody else knows the address.
        let (work, result) = unsafe { &mut *(both as *mut (Option<F>, Option<R>)) };
        // Made on this stack first: the caller's may need a fault, and what the work holds is given up by then.
        *result = work.take().map(|work| std::hint::black_box(work()));
        result.is_some()
    }
    let mut both = (Some(work), None::<R>);
    call(work_once::<R, F>, &raw mut both as usize);
    both.1.expect("the work was done")
}

/// Does work on the calling thread's own stack, or on another if that is small.
pub fn run_if_small<R>(work: impl FnOnce() -> R) -> R {
    if is_small() && !signals::are_on_their_stack() { run(work) } else { work() }
}

/// Where a thread looks first. While there are few threads, each has a place of its own.
fn first_place() -> usize {
    let here = 0u8;
    (&raw const here as usize >> 14) % SPARE.len()
}

fn places(first: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    SPARE[first..].iter().chain(&SPARE[..first])
}

fn take(first: usize) -> Option<usize> {
    // Acquire: pairs with the release in `give`, so the last user's writes to the stack come before ours.
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
        // SAFETY: more threads at once than places. The stack is in no place, so nobody runs on it or will. It is a
        // whole reservation that was leaked. If this fails, it stays mapped and unused.
        let _ = apart(|| unsafe { memory::unmap(stack, STACK_BYTES) });
    }
}

fn map() -> Option<usize> {
    let stack = Reservation::new(STACK_BYTES, GUARD_BYTES).ok()?;
    stack.protect_rw(stack.addr() + GUARD_BYTES..stack.addr() + STACK_BYTES).ok()?;
    let addr = stack.addr();
    stack.leak();
    Some(addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Fills a part of the stack, calls itself `depth` times, and checks that part.
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

    #[test]
    fn a_closure_returns_what_it_likes() {
        let words = ["two", "words"];
        assert_eq!(run(|| words.join(" ")), "two words");
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
