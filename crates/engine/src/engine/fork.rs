//! fork: a child gets the folios that are in RAM, as ordinary copy-on-write memory. It never reads zeros where its
//! parent had data. (Children are not managed yet.)
//!
//! All managed memory is kept from children (`MADV_DONTFORK`). Around a fork by a face the gate is closed, and the
//! folios mapped at that moment are let through (`MADV_DOFORK`). Anything else is not mapped in the child: a touch is a
//! segmentation fault, which the handler installed by [`Engine::fork_child`] explains.

use std::sync::RwLock;

use folioswap_core::{BlockId, FolioId, Locked, PAGE_SIZE, State};
use folioswap_sys::{memory, sigbus, signals};

use super::Engine;
use crate::process::fatal;

/// Spans of managed memory of which this process inherited a part.
static INHERITED: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());

impl Engine {
    pub fn fork_prepare(&self) {
        self.gate().close(signals::thread_id());
        for range in self.table().addresses().in_use() {
            // Runs of pages in RAM are made as long as possible, because each takes a system call.
            let mut run = self.first_page(range.start)..self.first_page(range.start);
            for index in range {
                let locked = self.table().lock(BlockId::from_index(index));
                let nr_pages = locked.order().nr_pages();
                for (at, folio) in locked.folios().iter().enumerate() {
                    let page = self.first_page(index) + at * nr_pages;
                    if !matches!(folio.state(), State::Resident(_)) {
                        if !self.let_through(std::mem::replace(&mut run, page + nr_pages..page + nr_pages)) {
                            return;
                        }
                    } else {
                        run.end = page + nr_pages;
                    }
                }
            }
            self.let_through(run);
        }
    }

    fn first_page(&self, block: usize) -> usize {
        BlockId::from_index(block).page(0).index()
    }

    /// Lets children inherit a run of pages. `false`: the kernel refuses, as it does when there are too many runs
    /// (`vm.max_map_count`).
    fn let_through(&self, run: std::ops::Range<usize>) -> bool {
        if run.is_empty() {
            return true;
        }
        let addr = self.table().addr(FolioId::from_index(run.start));
        if let Err(error) = memory::dofork(addr, run.len() * PAGE_SIZE) {
            fatal::say(&format!("a child will lack a part of its memory: {error}"));
            return false;
        }
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
        if let Err(error) = self.table().keep_from_children(self.table().span()) {
            fatal::say(&format!("keeping regions from children: {error}"));
        }
        self.gate().open();
    }

    pub fn fork_child(&self) {
        self.lifecycle().stop();
        INHERITED
            .write()
            .expect("nothing panics under this lock")
            .push((self.table().span().start, self.table().span().len()));
        if let Err(error) = sigbus::install_segv(on_segv) {
            fatal::say(&format!("a touch of memory that was not inherited will not be explained: {error}"));
        }
    }
}

/// In a child: removes a range from the inherited spans, because it is no longer managed memory or was not to be
/// inherited.
pub(crate) fn not_inherited(range: &std::ops::Range<usize>) {
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
