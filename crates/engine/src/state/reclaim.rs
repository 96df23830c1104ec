//! Writeback in progress, the memory to which batches of small folios are copied for it, and which pageblocks hold
//! folios whose copies in swap can be given up (`reclaim::kept`).

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use folioswap_core::{BLOCK_PAGES, FolioId, FrameId, Order, SlotId, Zones};
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

/// Writeback and kept copies of an arena.
pub(crate) struct Reclaim {
    buffers: Buffers,
    /// Written folios whose blocks were locked when their write ended. They are settled later.
    unsettled: Mutex<Vec<Written>>,
    /// Pageblocks whose folios have copies in slots that can be given up.
    kept_copies: KeptCopies,
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

impl Reclaim {
    pub fn new(zones: &Zones) -> Result<Self, Error> {
        Ok(Reclaim {
            buffers: Buffers::new(zones.all().len())?,
            unsettled: Mutex::new(Vec::new()),
            kept_copies: KeptCopies::new(zones.nr_frames_max().div_ceil(BLOCK_PAGES)),
            transfers: TransfersUnderWay::default(),
        })
    }

    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub fn transfers(&self) -> &TransfersUnderWay {
        &self.transfers
    }

    pub fn kept_copies(&self) -> &KeptCopies {
        &self.kept_copies
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

/// One bit per pageblock.
pub(crate) struct KeptCopies {
    words: Box<[AtomicU64]>,
    /// The pageblock at which the next search starts.
    next: AtomicUsize,
    /// Folios that were looked at.
    #[cfg(test)]
    pub nr_looks: AtomicUsize,
}

impl KeptCopies {
    pub fn new(nr_pageblocks: usize) -> Self {
        KeptCopies {
            words: (0..nr_pageblocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicUsize::new(0),
            #[cfg(test)]
            nr_looks: AtomicUsize::new(0),
        }
    }

    /// Notes that a folio in these frames keeps a copy.
    pub fn note(&self, frame: FrameId) {
        let pageblock = frame.index() / BLOCK_PAGES;
        let (word, bit) = (&self.words[pageblock / 64], 1 << (pageblock % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    #[cfg(test)]
    pub fn is_noted(&self, frame: FrameId) -> bool {
        let pageblock = frame.index() / BLOCK_PAGES;
        self.words[pageblock / 64].load(Relaxed) >> (pageblock % 64) & 1 == 1
    }

    /// Takes the next pageblock that may hold copies, in turn, and returns its first frame. The pageblock is not
    /// returned again before another copy is noted there.
    pub fn take(&self) -> Option<FrameId> {
        let (first, nr_words) = (self.next.load(Relaxed), self.words.len());
        for step in 0..=nr_words {
            let word = &self.words[(first / 64 + step) % nr_words];
            let passed = if step == 0 { (1 << (first % 64)) - 1 } else { 0 }; // bits before `first` come last
            let found = word.load(Relaxed) & !passed;
            let bit = found & found.wrapping_neg();
            if bit != 0 && word.fetch_and(!bit, Relaxed) & bit != 0 {
                let pageblock = (first / 64 + step) % nr_words * 64 + bit.trailing_zeros() as usize;
                self.next.store(pageblock + 1, Relaxed);
                return Some(FrameId::from_index(pageblock * BLOCK_PAGES));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pageblocks_are_named_by_turns_and_once() {
        let kept = KeptCopies::new(130);
        let named = || kept.take().map(|frame| frame.index() / BLOCK_PAGES);
        for pageblock in [3, 64, 129] {
            kept.note(FrameId::from_index(pageblock * BLOCK_PAGES + 7));
        }
        assert_eq!(named(), Some(3));
        kept.note(FrameId::from_index(3 * BLOCK_PAGES));
        assert_eq!([named(), named(), named(), named()], [Some(64), Some(129), Some(3), None]);
    }
}
