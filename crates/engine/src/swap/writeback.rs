//! Writeback in progress, and the memory to which batches of small folios are copied for it.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use folioswap_core::{FolioId, FrameId, Order, SlotId};
use folioswap_sys::futex;
use folioswap_sys::memory::Reservation;

use crate::config::error::Error;
use crate::process::lent::Lent;
use crate::swap::transfer::DEPTH;

/// Bytes of a batch. Longer writes are hardly faster per byte.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Buffers for direct reclaim. There is one more for each write in flight of each zone's reclaim thread, so threads
/// never wait for each other in a circle.
const DIRECT_BUFFERS: usize = 4;

pub(crate) struct Writeback {
    buffers: Buffers,
    /// Written folios whose blocks were locked when their write ended. They are settled later.
    unsettled: Mutex<Vec<Written>>,
    transfers: TransfersUnderWay,
}

/// Counts the transfers of the engine's threads that go on while those are outside the fork gate.
#[derive(Default)]
pub(crate) struct TransfersUnderWay(AtomicUsize);

impl TransfersUnderWay {
    pub fn begin(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// The transfer has ended, and all locks that it needed are free.
    pub fn end(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// Waits until there is none. Call with the gate closed, so that none can start.
    pub fn wait(&self) {
        while self.0.load(Acquire) > 0 {
            futex::sleep(Duration::from_micros(50));
        }
    }
}

impl Writeback {
    pub fn new(nr_zones: usize) -> Result<Self, Error> {
        Ok(Writeback {
            buffers: Buffers::new(nr_zones)?,
            unsettled: Mutex::new(Vec::new()),
            transfers: TransfersUnderWay::default(),
        })
    }

    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub fn transfers(&self) -> &TransfersUnderWay {
        &self.transfers
    }

    /// Leaves written folios to be settled later.
    pub fn push_unsettled(&self, written: impl IntoIterator<Item = Written>) {
        self.unsettled.lock().expect("nothing panics under this lock").extend(written);
    }

    /// Takes the folios to be settled.
    pub fn take_unsettled(&self) -> Vec<Written> {
        std::mem::take(&mut *self.unsettled.lock().expect("nothing panics under this lock"))
    }

    #[cfg(test)]
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.lock().expect("nothing panics under this lock").is_empty()
    }
}

/// The memory to which batches are copied.
pub(crate) struct Buffers {
    memory: Reservation,
    lent: Lent<usize>,
}

impl Buffers {
    /// Reserves addresses for the threads of `nr_zones` zones. Memory is used only as batches are written.
    pub fn new(nr_zones: usize) -> Result<Self, Error> {
        let nr_buffers = nr_zones * DEPTH + DIRECT_BUFFERS;
        let memory = Reservation::undumped(nr_buffers * BATCH_BYTES, BATCH_BYTES)
            .and_then(|memory| memory.protect_rw(memory.range()).map(|()| memory))
            .map_err(Error::system("reserving buffers"))?;
        let lent = Lent::new((0..nr_buffers).map(|index| memory.addr() + index * BATCH_BYTES));
        Ok(Buffers { memory, lent })
    }

    /// Takes a buffer. Waits for one if all are in use; their holders give them back soon.
    pub fn lend(&self) -> Buffer<'_> {
        Buffer { owner: self, addr: self.lent.take() }
    }
}

pub(crate) struct Buffer<'b> {
    owner: &'b Buffers,
    addr: usize,
}

impl Buffer<'_> {
    pub fn addr(&self) -> usize {
        self.addr
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        let all = self.owner.memory.addr()..self.owner.memory.addr() + self.owner.memory.len();
        assert!(all.contains(&self.addr) && self.addr.is_multiple_of(BATCH_BYTES));
        // SAFETY: one buffer of the reservation (asserted), readable and writable anonymous memory that lives as long
        // as the owner. It is lent to this `Buffer` alone, and borrowed mutably with it.
        unsafe { std::slice::from_raw_parts_mut(self.addr as *mut u8, BATCH_BYTES) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.owner.lent.give_back(self.addr);
    }
}

/// A small folio whose content is being written, or was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub folio: FolioId,
    pub order: Order,
    pub frame: FrameId,
    /// Reserved for this write until it is settled, which tells it from a later write of the same folio.
    pub slot: SlotId,
    pub failed: bool,
}
