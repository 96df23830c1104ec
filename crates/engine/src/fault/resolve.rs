//! Resolves a fault for whoever delivers it, and judges the result. Of a page that keeps faulting though nothing is to
//! be done: if it is not managed, the fault is another's; if its folio is in RAM, the program dropped it unseen, and is
//! ended.

use folioswap_core::PAGE_SIZE;
use folioswap_sys::seat;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;
use folioswap_sys::uffd::MoveError;

use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::process::fatal;
use crate::process::turns::{Waits, asleep};

/// Consecutive faults of one page that is not managed, before they are taken for faults of something else: while what
/// is managed does not change, and altogether.
const MOST_OF_OTHERS: u32 = 3;
const MOST_WHILE_CHANGING: u32 = 1000;

/// Consecutive faults of one page whose folio is in RAM, before the program is ended.
const MOST_REPEATS: u32 = 100_000;

static_tls! {
    /// The page that this thread last found present, for which thread, and how often in a row.
    static LAST: (usize, (u32, u32)) = "folioswap_last_present";
}

static_tls! {
    /// How many changes of what is managed there had been then, and how many of these faults came without another.
    static UNCHANGED: (u64, u32) = "folioswap_unchanged";
}

/// Resolves the fault at `addr` for a thread that sleeps meanwhile, and judges the result as [`resolve_for`] does.
pub(crate) fn resolve(engine: &Engine, addr: usize, thread: u32) -> bool {
    asleep(resolve_for(engine, addr, thread, Waits::Asleep))
}

/// Resolves the fault of a thread at `addr`: it may touch the page again. Enters the fork gate. Returns `false` if the
/// content is lost, and prints the reason to standard error, or if the fault is of something else.
pub(crate) async fn resolve_for(engine: &Engine, addr: usize, thread: u32, waits: Waits<'_>) -> bool {
    let page = engine.table().page_at(addr);
    let pass = engine.enter_for(thread, waits).await;
    match Fault::new(engine, page, thread, waits).run(pass).await {
        Ok(true) => {
            if LAST.get().1.0 == thread {
                LAST.set((0, (0, 0)));
            }
            true
        }
        Ok(false) => may_repeat(engine, engine.table().addr(page), thread, waits).await,
        Err(error) => {
            if error.is_news {
                fatal::say(&format!("{error}; thread {thread} gets SIGBUS, or EFAULT from its system call"));
            }
            false
        }
    }
}

/// Whether a thread may touch a page again for which nothing was to be done. Ends the program if the page keeps
/// faulting though its folio is in RAM.
async fn may_repeat(engine: &Engine, page: usize, thread: u32, waits: Waits<'_>) -> bool {
    // Another flow of this thread may change it during each wait.
    let is_last = || (LAST.get().0, LAST.get().1.0) == (page, thread);
    let repeats = || if is_last() { LAST.get().1.1 } else { 0 };
    match is_managed(engine, page, thread, waits).await {
        // It touches the page again. This thread must not wait: it may be needed for the fork.
        None => true,
        // It was given up: the next touch does not fault, once it is unmapped or replaced. If it does, the fault is
        // another's.
        Some(false) => {
            let changes = if engine.gate().is_closed() { 0 } else { engine.table().nr_changes(waits).await };
            let (repeats, (before, unchanged)) = (repeats(), UNCHANGED.get());
            let unchanged = if is_last() && before == changes { unchanged + 1 } else { 0 };
            LAST.set((page, (thread, repeats + 1)));
            UNCHANGED.set((changes, unchanged));
            unchanged < MOST_OF_OTHERS && repeats < MOST_WHILE_CHANGING
        }
        Some(true) if repeats() < MOST_REPEATS => {
            LAST.set((page, (thread, repeats() + 1)));
            true
        }
        Some(true) => fatal::die(&format!(
            "the page at {page:#x} is missing though its folio is in RAM: the program dropped it by a way that folioswap does not see"
        )),
    }
}

/// Whether the page at an address, which a thread touched, is managed. `None`: another thread forks.
async fn is_managed(engine: &Engine, addr: usize, thread: u32, waits: Waits<'_>) -> Option<bool> {
    let page = engine.table().page_at(addr);
    let _pass = engine.gate().try_enter(thread)?;
    let is_open = engine.table().is_open(page.block());
    Some(is_open && !engine.lock_for(page.block(), waits).await.is_sealed(page.page_in_block()))
}

/// Resolves a fault of a thread of the program, if the address is the engine's own and reports faults. A program may
/// read all that `/proc/self/maps` calls readable: collectors of garbage, checkers and crash handlers do. Homes of
/// frames are readable, and those that are empty report a fault. Such a page reads as zero. It goes when the home gets
/// its content back ([`crate::memory::move_mapper`]).
pub(crate) fn resolve_own(engine: &Engine, addr: usize, thread: u32) -> bool {
    if !engine.ram().backing().registered().any(|range| range.contains(&addr)) {
        return false;
    }
    if seat::has(thread) {
        fatal::die(&format!("a thread of the engine found nothing at {addr:#x}, where it has a frame"));
    }
    let page = addr & !(PAGE_SIZE - 1);
    // SAFETY: a page of the homes without memory, which the engine reads only after it has put content there.
    let shown = unsafe { engine.uffd().zeropage(page, PAGE_SIZE) };
    let woken = engine.uffd().wake(page, PAGE_SIZE);
    match (shown, woken) {
        (Ok(()) | Err(MoveError::Present), Ok(())) => true,
        (Err(error), _) => fatal::die(&format!("showing the engine's own memory: {error}")),
        (_, Err(error)) => fatal::die(&format!("waking a thread: {error}")),
    }
}
