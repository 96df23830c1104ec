//! A thread that brings memory in for other processes that read it, by `/proc/PID/mem` or ptrace: the kernel does not
//! wait for a missing page there. It starts when memory first runs short, as the others.

use std::ops::Range;

use folioswap_core::{BlockId, State};
use folioswap_sys::uffd::EventFd;
use folioswap_sys::{readers, signals};

use crate::engine::Engine;
use crate::fault::flow::Fault;
use crate::manage::pages::{blocks_of, pages_in};
use crate::process::turns::{Waits, asleep};

/// The most that is brought in at once.
const MOST_BYTES: usize = 4 << 20;

/// Body of the thread. Returns when `stop` is signalled. If the process cannot listen, nobody is served.
pub(super) fn run(engine: &Engine, stop: &EventFd) {
    let _ = readers::answer(stop, |addr, len| bring_in(engine, addr..addr.saturating_add(len.min(MOST_BYTES))));
}

/// Brings a range in. Another process named it: it may be anything.
fn bring_in(engine: &Engine, range: Range<usize>) {
    let range = engine.table().possible(range);
    let thread = signals::thread_id();
    for id in blocks_of(&range).map(BlockId::from_index) {
        if range.is_empty() || !engine.table().contains(id.offset_bytes()) || !engine.table().is_open(id) {
            continue;
        }
        for page in pages_in(id, &range) {
            let pass = engine.gate().enter(thread);
            let block = engine.lock(id);
            let is_out = !matches!(block.state(block.index_of(page)), State::Resident(_)) && !block.is_sealed(page);
            drop(block);
            if is_out && asleep(Fault::new(engine, id.page(page), thread, Waits::Asleep).run(pass)).is_err() {
                break; // lost: the reader gets an error
            }
        }
    }
}
