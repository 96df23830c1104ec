//! Brings memory in for other processes that read or write it, by `/proc/PID/mem`, ptrace or process_vm_readv: the
//! kernel does not wait for a missing page there. Where folios are copied, whoever writes has it held meanwhile: the
//! copy would lose what the kernel then writes to the page itself. In monitor mode the first monitor thread does it;
//! otherwise a thread, which starts when memory first runs short.

use std::cell::Cell;
use std::ops::Range;

use folioswap_core::{BlockId, State};
use folioswap_sys::readers::{Asked, Listener, What, exists};
use folioswap_sys::signals;
use folioswap_sys::uffd::EventFd;

use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::fault::holds;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::threads::Starting;
use crate::process::turns::{Waits, asleep};
use crate::process::wakeup::Pass;

/// The most that is brought in at once.
const MOST_BYTES: usize = 4 << 20;

/// Folios that are brought in before faults go on.
const AT_ONCE: usize = 16;

/// Holds of other processes at a time.
const MOST_HOLDS: usize = 8;

/// What is held in all may be this share of the budget when another process adds to it.
const HELD_SHARE: u64 = 2;

/// How this process is asked, and what others hold.
pub(crate) struct Readers {
    listener: Listener,
    held: [Cell<Option<Asked>>; MOST_HOLDS],
}

impl Readers {
    /// `None`: this process cannot listen.
    pub fn new() -> Option<Self> {
        Some(Readers { listener: Listener::new().ok()?, held: Default::default() })
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Does what a process asks for, and tells it.
    pub async fn serve(&self, engine: &Engine, asked: Asked, waits: Waits<'_>) {
        let range = asked.addr..asked.addr.saturating_add(asked.len.min(MOST_BYTES));
        let range = engine.table().possible(range);
        let is_done = match asked.what {
            What::BringIn => {
                bring_in(engine, &range, waits).await;
                true
            }
            What::Hold => self.hold(engine, &asked, &range, waits).await,
            What::Release => {
                self.end(engine, |held| held.is_of(&asked), waits).await;
                return; // nobody waits for an answer
            }
        };
        self.listener.answer(&asked, is_done);
    }

    /// Brings a range in and holds it. `false`: not now.
    async fn hold(&self, engine: &Engine, asked: &Asked, range: &Range<usize>, waits: Waits<'_>) -> bool {
        self.end(engine, |held| !exists(held.process), waits).await;
        let Some(place) = self.held.iter().find(|place| place.get().is_none()) else { return false };
        let blocks = {
            let _pass = enter(engine, waits).await;
            let blocks = holds::blocks(range);
            if !engine.holds().add(&blocks, engine.ram().budget_bytes() / HELD_SHARE) {
                return false;
            }
            blocks
        };
        place.set(Some(*asked));
        bring_in(engine, range, waits).await;
        for block in blocks {
            let _pass = enter(engine, waits).await;
            holds::pin(engine, block, waits).await;
        }
        bring_in(engine, range, waits).await; // what has left again meanwhile
        true
    }

    /// Ends holds.
    async fn end(&self, engine: &Engine, is_over: impl Fn(&Asked) -> bool, waits: Waits<'_>) {
        for place in &self.held {
            if let Some(held) = place.get().filter(&is_over) {
                place.set(None);
                let range = held.addr..held.addr.saturating_add(held.len.min(MOST_BYTES));
                holds::release_for(engine, &engine.table().possible(range), waits).await;
            }
        }
    }
}

async fn enter<'e>(engine: &'e Engine, waits: Waits<'_>) -> Pass<'e> {
    let thread = signals::thread_id();
    waits.until(|| engine.gate().enter(thread), || engine.gate().try_enter(thread)).await
}

/// Body of the thread. Returns when `stop` is signalled. If the process cannot listen, nobody is served.
pub(crate) fn run(engine: &Engine, stop: &EventFd, starting: Starting) {
    let Some(readers) = Readers::new() else { return };
    drop(starting);
    while let Ok(Some(asked)) = readers.listener.wait(stop) {
        asleep(readers.serve(engine, asked, Waits::Asleep));
    }
}

/// Brings a range in.
async fn bring_in(engine: &Engine, range: &Range<usize>, waits: Waits<'_>) {
    let thread = signals::thread_id();
    let mut nr_brought = 0;
    for id in blocks_of(range).map(BlockId::from_index) {
        if range.is_empty() || !engine.table().contains(id.offset_bytes()) || !engine.table().is_open(id) {
            continue;
        }
        for page in pages_in(id, range) {
            let pass = enter(engine, waits).await;
            let block = engine.lock_for(id, waits).await;
            let is_out = !matches!(block.state(block.index_of(page)), State::Resident(_)) && !block.is_sealed(page);
            drop(block);
            if !is_out {
                continue;
            }
            if Fault::new(engine, id.page(page), thread, waits).run(pass).await.is_err() {
                return; // lost: the reader gets an error
            }
            nr_brought += 1;
            if nr_brought % AT_ONCE == 0 {
                waits.a_turn().await;
            }
        }
    }
}
