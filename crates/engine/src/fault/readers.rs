//! Brings memory in for other processes that read or write it, by `/proc/PID/mem`, ptrace or process_vm_readv: the
//! kernel does not wait for a missing page there. Where folios are copied, whoever writes has it held meanwhile: the
//! copy would lose what the kernel then writes to the page itself. In monitor mode the first monitor thread does it;
//! otherwise a thread, which starts when memory first runs short.

use std::cell::Cell;
use std::ops::Range;

use folioswap_core::{BlockId, State};
use folioswap_sys::readers::{Asked, Listener, Request, What, exists};
use folioswap_sys::signals;
use folioswap_sys::uffd::EventFd;

use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::fault::holds;
use crate::memory::table::{blocks_of, pages_in};
use crate::process::threads::Starting;
use crate::process::turns::{Waits, asleep};

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
    held: HeldForOthers,
}

impl Readers {
    /// `None`: this process cannot listen.
    pub fn new() -> Option<Self> {
        Some(Readers { listener: Listener::new().ok()?, held: HeldForOthers::default() })
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Does what a process asks for, and tells it, unless it waits for no answer.
    pub async fn serve(&self, engine: &Engine, asked: Asked, waits: Waits<'_>) {
        if let Some(is_done) = self.held.serve(engine, &asked.request, waits).await {
            self.listener.answer(&asked, is_done);
        }
    }
}

/// What this process holds for others.
#[derive(Default)]
pub(crate) struct HeldForOthers([Cell<Option<Request>>; MOST_HOLDS]);

impl HeldForOthers {
    /// Does what a process asks for. Returns whether it is done; `None`: nobody waits for an answer.
    pub async fn serve(&self, engine: &Engine, request: &Request, waits: Waits<'_>) -> Option<bool> {
        while self.end(engine, |held| !exists(held.process), waits).await {}
        match request.what {
            What::BringIn => {
                bring_in(engine, &range_of(engine, request), waits).await;
                Some(true)
            }
            What::Hold => Some(self.hold(engine, request, waits).await),
            What::Release => {
                let is_same = |held: &Request| *held == Request { what: What::Hold, ..*request };
                self.end(engine, is_same, waits).await;
                None
            }
        }
    }

    /// Brings memory in and holds it. `false`: not now.
    async fn hold(&self, engine: &Engine, request: &Request, waits: Waits<'_>) -> bool {
        let range = &range_of(engine, request);
        let Some(place) = self.0.iter().find(|place| place.get().is_none()) else { return false };
        {
            let _pass = engine.enter_for(signals::thread_id(), waits).await;
            if !holds::count(engine, range, engine.ram().budget_bytes() / HELD_SHARE) {
                return false;
            }
        }
        place.set(Some(*request));
        bring_in(engine, range, waits).await;
        for block in blocks_of(range).map(BlockId::from_index) {
            let _pass = engine.enter_for(signals::thread_id(), waits).await;
            holds::pin(engine, block, waits).await;
        }
        bring_in(engine, range, waits).await; // what has left again meanwhile
        true
    }

    /// Ends a hold. `false`: there is no such hold.
    async fn end(&self, engine: &Engine, is_over: impl Fn(&Request) -> bool, waits: Waits<'_>) -> bool {
        let mut places = self.0.iter();
        let Some(place) = places.find(|place| place.get().is_some_and(|held| is_over(&held))) else { return false };
        let Some(held) = place.take() else { return false };
        holds::release_for(engine, &range_of(engine, &held), waits).await;
        true
    }
}

/// What a request is of. Another process named it: it may be anything.
fn range_of(engine: &Engine, &Request { addr, len, .. }: &Request) -> Range<usize> {
    engine.table().possible(addr..addr.saturating_add(len.min(MOST_BYTES)))
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
            let pass = engine.enter_for(thread, waits).await;
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
