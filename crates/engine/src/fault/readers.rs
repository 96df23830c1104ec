//! Brings memory in for other processes that read it, by `/proc/PID/mem` or ptrace: the kernel does not wait for a
//! missing page there. In monitor mode the first monitor thread does it; otherwise a thread, which starts when memory
//! first runs short.

use std::ops::Range;

use folioswap_core::{BlockId, State};
use folioswap_sys::readers::{Asked, Listener};
use folioswap_sys::signals;
use folioswap_sys::uffd::EventFd;

use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::threads::Starting;
use crate::process::turns::{Waits, asleep};

/// The most that is brought in at once.
const MOST_BYTES: usize = 4 << 20;

/// Folios that are brought in before faults go on.
const AT_ONCE: usize = 16;

/// Body of the thread. Returns when `stop` is signalled. If the process cannot listen, nobody is served.
pub(crate) fn run(engine: &Engine, stop: &EventFd, starting: Starting) {
    let Ok(listener) = Listener::new() else { return };
    drop(starting);
    while let Ok(Some(asked)) = listener.wait(stop) {
        asleep(serve(engine, &listener, asked, Waits::Asleep));
    }
}

/// Does what a process asks for, and tells it.
pub(crate) async fn serve(engine: &Engine, listener: &Listener, asked: Asked, waits: Waits<'_>) {
    bring_in(engine, asked.addr..asked.addr.saturating_add(asked.len.min(MOST_BYTES)), waits).await;
    listener.answer(&asked);
}

/// Brings a range in. Another process named it: it may be anything.
async fn bring_in(engine: &Engine, range: Range<usize>, waits: Waits<'_>) {
    let range = engine.table().possible(range);
    let thread = signals::thread_id();
    let mut nr_brought = 0;
    for id in blocks_of(&range).map(BlockId::from_index) {
        if range.is_empty() || !engine.table().contains(id.offset_bytes()) || !engine.table().is_open(id) {
            continue;
        }
        for page in pages_in(id, &range) {
            let pass = waits.until(|| engine.gate().enter(thread), || engine.gate().try_enter(thread)).await;
            let block = engine.lock_for(id, waits).await;
            let is_out = !matches!(block.state(block.index_of(page)), State::Resident(_)) && !block.is_sealed(page);
            drop(block);
            if !is_out {
                continue;
            }
            if Fault::new(engine, id.page(page), thread, waits).run(pass).await.is_err() {
                break; // lost: the reader gets an error
            }
            nr_brought += 1;
            if nr_brought % AT_ONCE == 0 {
                waits.a_turn().await;
            }
        }
    }
}
