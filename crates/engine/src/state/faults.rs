//! What faults wait for, which pages are lost, and what is to be read ahead. Each lock is a leaf.
//! Signal handlers note windows to be read ahead, so that never allocates.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use folioswap_core::{BLOCK_PAGES, BlockId, CpuId};

use crate::process::renewable::Renewable;
use crate::process::wakeup::Event;

/// The queue of readahead of an arena, and its lost pages.
pub(crate) struct Faults {
    lost: Lost,
    reads: Renewable<ReadQueue>,
    /// How long a thread waits for a frame before it looks for the cause.
    patience: Duration,
    /// 1 + the count of freed frames at the last message about waiting for devices: each stall is reported once.
    stall_said: AtomicU64,
}

impl Faults {
    pub fn new(patience: Duration) -> Self {
        Faults {
            lost: Lost::default(),
            reads: Renewable::new(ReadQueue::new()),
            patience,
            stall_said: AtomicU64::new(0),
        }
    }

    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    pub fn reads(&self) -> &ReadQueue {
        &self.reads
    }

    /// In a forked child: no thread waits for anything.
    pub fn forget_threads(&self) {
        self.reads.renew(ReadQueue::new());
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Notes that no frame was freed for long. `freed`: the count of freed frames. `false`: this stall was reported.
    pub fn begin_stall(&self, freed: u32) -> bool {
        let stall = u64::from(freed) + 1;
        self.stall_said.swap(stall, Ordering::Relaxed) != stall
    }

    /// Whether a stall was reported.
    #[cfg(test)]
    pub fn has_said_stall(&self) -> bool {
        self.stall_said.load(Ordering::SeqCst) > 0
    }
}

/// One bit per lost page of a block.
type Pages = [u64; BLOCK_PAGES / 64];

/// All lost pages.
#[derive(Default)]
pub(crate) struct Lost {
    blocks: Mutex<HashMap<BlockId, Pages>>,
    /// Number of blocks with lost pages. Read under a block's lock, it is accurate for that block.
    nr_blocks: AtomicUsize,
}

impl Lost {
    /// Notes lost pages. `false`: all of them were known.
    pub fn note(&self, block: BlockId, pages: Range<usize>) -> bool {
        let mut blocks = self.blocks.lock().expect("nothing panics under this lock");
        let known = blocks.entry(block).or_insert([0; BLOCK_PAGES / 64]);
        let before = *known;
        pages.for_each(|page| known[page / 64] |= 1 << (page % 64));
        let is_news = *known != before;
        self.nr_blocks.store(blocks.len(), Ordering::Relaxed);
        is_news
    }

    /// Forgets pages of a block, and returns those that were lost.
    pub fn take(&self, block: BlockId, pages: Range<usize>) -> Vec<usize> {
        if self.nr_blocks.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut blocks = self.blocks.lock().expect("nothing panics under this lock");
        let Some(known) = blocks.get_mut(&block) else { return Vec::new() };
        let mut taken = Vec::new();
        for page in pages {
            if known[page / 64] >> (page % 64) & 1 == 1 {
                known[page / 64] &= !(1 << (page % 64));
                taken.push(page);
            }
        }
        if known.iter().all(|&word| word == 0) {
            blocks.remove(&block);
        }
        self.nr_blocks.store(blocks.len(), Ordering::Relaxed);
        taken
    }

    pub fn blocks(&self) -> Vec<BlockId> {
        self.blocks.lock().expect("nothing panics under this lock").keys().copied().collect()
    }
}

/// Most windows that wait to be read. Further ones are dropped.
const QUEUE: usize = 256;

/// Blocks to be read. In the marker's block, the folio that the stream meets first stays unmapped.
#[derive(Clone)]
pub(crate) struct Window {
    pub blocks: Range<BlockId>,
    pub marker: Option<BlockId>,
    /// The program has asked for it, so it is no guess.
    pub is_asked: bool,
    pub backward: bool,
    /// The CPU on which they will be used.
    pub cpu: CpuId,
}

/// Windows to be read.
pub(crate) struct ReadQueue {
    windows: Mutex<VecDeque<Window>>,
    pushed: Event,
}

impl ReadQueue {
    pub fn new() -> Self {
        ReadQueue { windows: Mutex::new(VecDeque::with_capacity(QUEUE)), pushed: Event::default() }
    }

    /// Requests a window. Never allocates, because signal handlers call it.
    pub fn push(&self, window: Window) {
        let mut windows = self.windows.lock().expect("nothing panics under this lock");
        if windows.len() < QUEUE {
            windows.push_back(window);
            drop(windows);
            self.pushed.signal();
        }
    }

    pub fn pop(&self) -> Option<Window> {
        self.windows.lock().expect("nothing panics under this lock").pop_front()
    }

    /// To be read before the queue is looked at, and given to the wait that follows.
    pub fn now(&self) -> u32 {
        self.pushed.now()
    }

    /// Waits for a window, unless one was requested since `seen`.
    pub fn wait(&self, seen: u32) {
        self.pushed.wait(seen);
    }

    /// Wakes the thread to see that the arena stops.
    pub fn wake(&self) {
        self.pushed.signal();
    }
}
