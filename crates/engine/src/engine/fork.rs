//! fork: a child gets the folios that are in RAM, as ordinary copy-on-write memory, and what was never touched. It
//! never reads zeros where its parent had data. (Children are not managed yet.)
//!
//! All managed memory is kept from children (`MADV_DONTFORK`). Around a fork by a face the gate is closed, and what is
//! mapped at that moment or empty is let through (`MADV_DOFORK`). Anything else is not mapped in the child: a touch is
//! a segmentation fault, which the handler installed by [`Engine::fork_child`] explains.

use std::ops::Range;
use std::sync::RwLock;

use folioswap_core::{BLOCK_PAGES, BlockId, FolioId, Locked, PAGE_SIZE, State};
use folioswap_sys::{memory, sigbus, signals};

use super::Engine;
use super::manage::BLOCK_BYTES;
use crate::process::fatal;

/// Spans of managed memory of which this process inherited a part.
static INHERITED: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());

impl Engine {
    pub fn fork_prepare(&self) {
        self.gate().close(signals::thread_id());
        // Runs are made as long as possible, because each takes a system call.
        let mut run = 0..0;
        for block in self.table().in_use().into_iter().flatten().map(BlockId::from_index) {
            for pages in self.inherited_pages(block) {
                let first = block.page(pages.start).index();
                if run.end != first && !self.let_through(std::mem::replace(&mut run, first..first)) {
                    return;
                }
                run.end = first + pages.len();
            }
        }
        self.let_through(run);
    }

    /// The managed pages of a block that are mapped or empty.
    fn inherited_pages(&self, block: BlockId) -> Vec<Range<usize>> {
        if !self.table().has(block) {
            return std::iter::once(0..BLOCK_PAGES).collect(); // never touched
        }
        let locked = self.table().lock(block);
        let is_inherited = |&page: &usize| {
            let state = locked.state(locked.index_of(page));
            !locked.is_sealed(page) && matches!(state, State::Resident(_) | State::Empty)
        };
        let mut parts: Vec<Range<usize>> = Vec::new();
        for page in (0..BLOCK_PAGES).filter(is_inherited) {
            match parts.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => parts.push(page..page + 1),
            }
        }
        parts
    }

    /// Lets children inherit a run of pages. `false`: the kernel refuses, as it does when there are too many runs
    /// (`vm.max_map_count`).
    fn let_through(&self, run: Range<usize>) -> bool {
        if run.is_empty() {
            return true;
        }
        let addr = self.table().addr(FolioId::from_index(run.start));
        let len = run.len() * PAGE_SIZE;
        if let Err(error) = memory::dofork(addr, len) {
            fatal::say(&format!("a child will lack a part of its memory: {error}"));
            return false;
        }
        self.lifecycle().note_inherited(addr..addr + len);
        true
    }

    /// For a fault of the forking thread during the fork: the child gets this folio too.
    pub fn follow_fork(&self, locked: &Locked<'_>, page: usize, thread: u32) {
        let index = locked.index_of(page);
        if self.gate().closed_by(thread) && matches!(locked.state(index), State::Resident(_)) {
            let first = locked.name(index).index();
            self.let_through(first..first + locked.order().nr_pages());
        }
    }

    pub fn fork_parent(&self) {
        self.lifecycle().note_fork();
        for addresses in self.lifecycle().take_inherited() {
            if let Err(error) = memory::dontfork(addresses.start, addresses.len()) {
                fatal::say(&format!("keeping regions from children: {error}"));
            }
        }
        self.gate().open();
    }

    pub fn fork_child(&self) {
        self.lifecycle().stop();
        let managed = self.table().in_use();
        let bytes = |blocks: Range<usize>| (blocks.start * BLOCK_BYTES, blocks.len() * BLOCK_BYTES);
        INHERITED.write().expect("nothing panics under this lock").extend(managed.into_iter().map(bytes));
        if let Err(error) = sigbus::install_segv(on_segv) {
            fatal::say(&format!("a touch of memory that was not inherited will not be explained: {error}"));
        }
    }
}

/// In a child: removes a range from the inherited spans, because it is no longer managed memory or was not to be
/// inherited.
pub(crate) fn not_inherited(range: &Range<usize>) {
    let mut inherited = INHERITED.write().expect("nothing panics under this lock");
    let cut = |&(start, len): &(usize, usize)| {
        let end = start + len;
        [
            (start, range.start.clamp(start, end) - start),
            (range.end.clamp(start, end), end - range.end.clamp(start, end)),
        ]
    };
    *inherited = inherited.iter().flat_map(cut).filter(|&(_, len)| len > 0).collect();
}

fn on_segv(addr: usize, _write: bool) -> sigbus::Handled {
    let inherited = INHERITED.read().expect("nothing panics under this lock");
    if inherited.iter().any(|&(start, len)| addr.wrapping_sub(start) < len) {
        fatal::die(&format!(
            "process {}, forked from a managed one, touched memory at {addr:#x} that was swapped out when it was forked; give the parent more --memory, or let children exec",
            std::process::id()
        ));
    }
    sigbus::Handled::No
}
