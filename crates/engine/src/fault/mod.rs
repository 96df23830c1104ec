//! Delivery of faults: on the faulting thread ([`direct`]) or on threads of the engine ([`monitor`]).

pub(crate) mod direct;
pub(crate) mod gather;
pub(crate) mod lost;
pub(crate) mod monitor;
pub(crate) mod readahead;
pub(crate) mod swap_in;
pub(crate) mod take;

use std::cell::Cell;

use crate::engine::Engine;
use crate::process::fatal;
use crate::swap::health::SwapInError;

/// Consecutive faults of one page whose folio is in RAM, before the program is ended.
const MOST_REPEATS: u32 = 100_000;

thread_local! {
    /// The page that this thread last found present, and how often in a row.
    static LAST: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// Resolves the fault at `addr`. Returns `false` if the content is lost; the reason is printed to standard error.
pub(crate) fn resolve(engine: &Engine, addr: usize, thread: u32) -> bool {
    let resolved = engine.fault(engine.gate().enter(thread), engine.table().page_at(addr), thread);
    outcome(engine, resolved, addr, thread)
}

/// Evaluates the result of a fault. Ends the program if the page keeps faulting though its folio is in RAM.
fn outcome(engine: &Engine, resolved: Result<bool, SwapInError>, addr: usize, thread: u32) -> bool {
    match resolved {
        Ok(was_absent) => {
            let (page, (last, repeats)) = (engine.table().addr(engine.table().page_at(addr)), LAST.get());
            match was_absent {
                true => LAST.set((0, 0)),
                false if last != page => LAST.set((page, 1)),
                false if repeats < MOST_REPEATS => LAST.set((page, repeats + 1)),
                false => fatal::die(&format!(
                    "the page at {page:#x} is missing though its folio is in RAM: the program dropped it by a way that folioswap does not see"
                )),
            }
            true
        }
        Err(error) => {
            if error.is_news {
                fatal::say(&format!("{error}; thread {thread} gets SIGBUS, or EFAULT from its system call"));
            }
            false
        }
    }
}
