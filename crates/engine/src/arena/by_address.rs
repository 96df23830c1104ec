//! Managed memory by address, in pages. For faces that stand in for the memory calls of a C library; programs use
//! [`Region`](crate::Region).
//!
//! The kernel keeps the address space. A face makes the kernel's own call, and tells the engine here which memory it
//! manages ([`RawSpace::manage`]) and which it is about to lose ([`RawSpace::forget`]).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use folioswap_core::{BLOCK_BYTES, PAGE_SIZE};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::{fault_stack, signals};

use crate::arena::advice::{self, Advice};
use crate::arena::discard;
use crate::config::error::Error;
use crate::config::fault_mode::FaultMode;
use crate::config::folio_size::FolioSize;
use crate::engine::Engine;
use crate::fault::{holds, resolve, touch};
use crate::manage::adopt;
use crate::manage::hand_over;
use crate::manage::pages;
use crate::manage::remap::{self, Relocation};
use crate::memory::table::blocks_of;
use crate::memory::waited::Waited;
use crate::swap::info;

/// Access to an arena's memory by address. Cheap to clone.
#[derive(Clone)]
pub struct RawSpace {
    engine: Arc<Engine>,
    mode: FaultMode,
}

/// Memory whose content was dropped, and that is about to be unmapped or replaced.
pub struct Replaced<'a> {
    engine: &'a Engine,
    managed: &'a [Range<usize>],
}

impl Replaced<'_> {
    /// The parts that were managed before.
    pub fn managed(&self) -> &[Range<usize>] {
        self.managed
    }

    /// As [`RawSpace::manage`].
    ///
    /// # Errors
    /// As [`RawSpace::manage`].
    ///
    /// # Safety
    /// As [`RawSpace::manage`].
    pub unsafe fn manage(&self, range: Range<usize>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { pages::manage_now(self.engine, range, None) }.map_err(Error::system("managing memory"))
    }
}

/// A length in whole pages. None has no bytes, or more than there are addresses.
fn whole_pages(len: usize) -> Result<usize, Error> {
    len.checked_next_multiple_of(PAGE_SIZE).filter(|&whole| whole != 0).ok_or(Error::BadLength(len))
}

impl RawSpace {
    pub(crate) fn new(engine: Arc<Engine>, mode: FaultMode) -> Self {
        RawSpace { engine, mode }
    }

    /// Does work in which a fault of this thread would wait for itself, on a stack of which no page can be missing: if
    /// the caller's is managed memory, as a coroutine's may be, or small, on another. The work should own what it uses.
    pub fn on_present_stack<R>(&self, work: impl FnOnce() -> R) -> R {
        let here = 0u8;
        // A handler stays where it is: a signal would overwrite its frames. The stack of signals is held.
        let is_unfit = fault_stack::is_small() || self.contains(&raw const here as usize);
        if is_unfit && !signals::are_on_their_stack() { fault_stack::run(work) } else { work() }
    }

    /// Has the engine do work: the way to it for all but looks at the table.
    fn with<R>(&self, work: impl FnOnce(&Engine) -> R) -> R {
        self.on_present_stack(move || work(&self.engine))
    }

    /// The same inside the fork gate, where no handler interrupts it: its fault might need what this thread holds.
    fn inside<R>(&self, work: impl FnOnce(&Engine) -> R) -> R {
        self.with(move |engine| {
            let _inside = engine.enter();
            work(engine)
        })
    }

    /// Whether pages of the block at an address are managed, or were.
    pub fn contains(&self, addr: usize) -> bool {
        self.engine.table().contains(addr)
    }

    /// Whether pages of a block that overlaps the range are managed, or were. Cheap, and callable from signal handlers.
    pub fn overlaps(&self, addr: usize, len: usize) -> bool {
        self.engine.table().overlaps(addr..addr.saturating_add(len))
    }

    /// Notes that the program is about to lock a range in RAM: it does not leave. `false`, and not noted: more than
    /// half of the budget would be locked.
    #[must_use]
    pub fn note_locked(&self, range: Range<usize>) -> bool {
        self.inside(move |engine| engine.table().note_locked(range, engine.ram().budget_bytes() as usize / 2))
    }

    /// Notes that the program has unlocked a range. Returns the parts of it that were locked.
    pub fn note_unlocked(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.inside(move |engine| engine.table().note_unlocked(range))
    }

    /// Whether the program has locked any of a range in RAM.
    pub fn has_locked(&self, range: &Range<usize>) -> bool {
        let range = range.clone();
        self.inside(move |engine| engine.table().has_locked(&range))
    }

    /// Whether the program has locked some of a range in RAM, but not all. The kernel has several mappings there.
    pub fn is_partly_locked(&self, range: &Range<usize>) -> bool {
        let range = range.clone();
        self.inside(move |engine| engine.table().is_partly_locked(&range))
    }

    /// Makes a call that changes the protection of mappings, or other properties that they have without their content.
    /// Meanwhile no folio goes back to where it was, for which the kernel would bring the mapping that it had before.
    pub fn change_mappings<R>(&self, call: impl FnOnce() -> R) -> R {
        self.inside(move |engine| {
            let _held = engine.ram().mapper().hold_mappings();
            call()
        })
    }

    /// The parts of a range that are managed, in order.
    pub fn managed_parts(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.with(move |engine| {
            let _blocked = signals::block_all(); // a signal handler might touch one of these
            pages::managed_parts(engine, range)
        })
    }

    /// The parts of a range with content, in RAM or not, in the first block that has some. Empty: there is none.
    pub fn first_filled(&self, range: Range<usize>) -> Vec<Range<usize>> {
        self.with(move |engine| {
            let _blocked = signals::block_all(); // a signal handler might touch one of these
            pages::first_filled(engine, range)
        })
    }

    /// Bytes of RAM that the engine uses: managed memory, frames without content, and the most that swap devices in
    /// memory may use.
    pub fn resident_bytes(&self) -> u64 {
        self.inside(|engine| {
            (engine.ram().zones().counts().populated * PAGE_SIZE) as u64
                + info::most_bytes_in_ram(engine.swap().devices())
        })
    }

    /// The budget in bytes.
    pub fn memory(&self) -> u64 {
        self.engine.ram().budget_bytes()
    }

    /// Whether the budget, and with it all managed memory, is locked in RAM.
    pub fn is_locked(&self) -> bool {
        self.engine.ram().frames().is_locked()
    }

    /// How faults are delivered: [`FaultMode::Direct`] or [`FaultMode::Monitor`].
    pub fn mode(&self) -> FaultMode {
        self.mode
    }

    /// Manages private anonymous memory from now on, where it lies, and drops what is present.
    ///
    /// # Errors
    /// The kernel's: the memory is of another kind, or there are too many mappings. Nothing is managed then.
    ///
    /// # Safety
    /// The range is whole pages of private anonymous memory. Nobody relies on their content, and none is managed.
    pub unsafe fn manage(&self, range: Range<usize>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        self.with(move |engine| unsafe { pages::manage(engine, range, None) }).map_err(Error::system("managing memory"))
    }

    /// Manages private anonymous memory from now on, where it lies, with its content, without a copy. Takes frames for
    /// each block that is nearly full, and of the others for each piece of 64 KiB that has a page.
    ///
    /// # Errors
    /// The kernel's: the memory is of another kind, there are too many mappings, or the process may not read its page
    /// tables. It is as it was then.
    ///
    /// # Safety
    /// The range is whole pages of private anonymous memory, of which none is managed, and nobody unmaps it meanwhile.
    pub unsafe fn adopt(&self, range: &Range<usize>) -> Result<(), Error> {
        let range = range.clone();
        // SAFETY: the caller's promise.
        self.with(move |engine| unsafe { adopt::adopt(engine, &range) }).map_err(Error::system("managing memory"))
    }

    /// Drops the content of pages and no longer manages them. Then calls `replace`, which unmaps or replaces them;
    /// threads that touch them wait for that. Pages that are not managed are skipped.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn forget<R>(&self, range: Range<usize>, replace: impl FnOnce() -> R) -> R {
        // SAFETY: the caller's promise.
        unsafe { self.replace(range, |_| replace()) }
    }

    /// As [`RawSpace::forget`], for memory that stays mapped: the kernel resolves its faults from then on.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn release<R>(&self, range: Range<usize>, change: impl FnOnce() -> R) -> R {
        let change = |replaced: &Replaced<'_>| {
            let result = change();
            for part in replaced.managed() {
                // Where the kernel has no room for another mapping, it goes on asking us. Nothing is lost.
                let _ = replaced.engine.uffd().unregister(part.start, part.len());
                let _ = memory::advise_hugepage(part.start, part.len());
            }
            result
        };
        // SAFETY: the caller's promise.
        unsafe { self.replace(range, change) }
    }

    /// As [`RawSpace::forget`]. What `replace` maps there, or leaves there, it may have managed before other threads
    /// touch it.
    ///
    /// # Safety
    /// Nobody relies on the content of the range.
    pub unsafe fn replace<R>(&self, range: Range<usize>, replace: impl FnOnce(&Replaced<'_>) -> R) -> R {
        self.with(move |engine| {
            holds::forget(engine, &range);
            // SAFETY: the caller's promise.
            unsafe { pages::unmanage(engine, range, |managed| replace(&Replaced { engine, managed })) }
        })
    }

    /// As [`RawSpace::replace`], by a call that the kernel may refuse: then what is still mapped has its content, and
    /// is managed as before. Slower: what is mapped leaves its mapping first.
    ///
    /// # Errors
    /// That of `replace`.
    ///
    /// # Safety
    /// If `replace` succeeds, nobody relies on the content of the range.
    pub unsafe fn try_replace<R, E>(
        &self,
        range: &Range<usize>,
        replace: impl FnOnce(&Replaced<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.with(move |engine| {
            let call = |managed: &[Range<usize>]| {
                let done = replace(&Replaced { engine, managed })?;
                holds::forget(engine, range);
                Ok(done)
            };
            // SAFETY: the caller's promise.
            unsafe { remap::replace(engine, range, call) }
        })
    }

    /// No longer manages a range, and leaves its content to the kernel, in RAM. `false`: some of it stays managed,
    /// because it is lost.
    #[must_use]
    pub fn hand_over(&self, range: &Range<usize>) -> bool {
        let range = range.clone();
        self.with(move |engine| {
            let stays = hand_over::hand_over(engine, &range);
            if stays.is_empty() {
                holds::forget(engine, &range);
            }
            stays.is_empty()
        })
    }

    /// Maps `len` bytes of zeroed, readable and writable memory, aligned to 2 MiB. `len` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::BadLength`], or the kernel's error.
    pub fn map(&self, len: usize) -> Result<usize, Error> {
        self.map_with(len, FolioSize::Auto)
    }

    /// As [`RawSpace::map`], with a folio size of its own. `Auto` means the arena's.
    ///
    /// # Errors
    /// As [`RawSpace::map`].
    pub fn map_with(&self, len: usize, folio: FolioSize) -> Result<usize, Error> {
        let len = whole_pages(len)?;
        let mapping = Reservation::for_program(len, BLOCK_BYTES).map_err(Error::system("mapping a region"))?;
        mapping.protect_rw(mapping.range()).map_err(Error::system("mapping a region"))?;
        let range = mapping.range();
        // SAFETY: a new mapping, which nobody knows.
        self.with(move |engine| unsafe { pages::manage(engine, range, folio.order()) })
            .map_err(Error::system("mapping a region"))?;
        let addr = mapping.addr();
        mapping.leak();
        Ok(addr)
    }

    /// Unmaps managed pages.
    ///
    /// # Safety
    /// Nobody uses these pages any more.
    pub unsafe fn unmap(&self, addr: usize, len: usize) {
        let range = addr..addr + len.next_multiple_of(PAGE_SIZE);
        // SAFETY: the caller's promise.
        let unmapped = unsafe { self.forget(range.clone(), || memory::unmap(range.start, range.len())) };
        if let Err(error) = unmapped {
            crate::process::fatal::say(&format!("unmapping a region: {error}")); // it stays, as zeros
        }
    }

    /// Grows or shrinks memory from [`RawSpace::map`]. Returns its address, which is a new one if it had to move.
    ///
    /// # Errors
    /// As [`RawSpace::map`].
    ///
    /// # Safety
    /// `addr..addr + old_len` is one mapping of the caller's, and nobody uses it meanwhile. After a move nobody uses
    /// the old addresses.
    pub unsafe fn remap(&self, addr: usize, old_len: usize, new_len: usize) -> Result<usize, Error> {
        let (old_len, new_len) = (whole_pages(old_len)?, whole_pages(new_len)?);
        if new_len <= old_len {
            if new_len < old_len {
                // SAFETY: the caller gives up the tail.
                unsafe { self.unmap(addr + new_len, old_len - new_len) };
            }
            return Ok(addr);
        }
        let target = Reservation::for_program(new_len, BLOCK_BYTES).map_err(Error::system("mapping a region"))?;
        let call = || {
            // SAFETY: the caller's mapping, to addresses that this call has just reserved.
            unsafe { memory::move_mapping(addr..addr + old_len, target.range()) }.map(|()| target.addr())
        };
        let ranges = Relocation { from: addr..addr + old_len, new_len, alike: true, replaced: &[], keeps_old: false };
        // SAFETY: addresses that this call has just reserved.
        let moved = unsafe { self.relocate(ranges, call) }.map_err(Error::system("moving a region"));
        target.leak(); // they may be another's if the kernel has failed
        moved
    }

    /// Moves managed memory, as mremap does. `call` moves the mappings, and returns where they are now. If it fails,
    /// everything is as it was, but for what the kernel has unmapped.
    ///
    /// # Errors
    /// Those of `call`. EIO, before the call: content on a device could not be read.
    ///
    /// # Safety
    /// If `call` succeeds, nobody relies on the content of `replaced`, and what was managed is private anonymous memory
    /// at the new place.
    pub unsafe fn relocate(
        &self,
        ranges: Relocation<'_>,
        call: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        self.with(move |engine| unsafe { remap::relocate(engine, ranges, call) })
    }

    /// Makes pages read as zero, as `madvise(MADV_DONTNEED)` does.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn discard(&self, addr: usize, len: usize) {
        // SAFETY: the caller's promise.
        self.with(move |engine| unsafe { discard::discard(engine, addr..addr + len) });
    }

    /// Drops whole folios in the range. Other content may be dropped later or never, as after `madvise(MADV_FREE)`.
    ///
    /// # Safety
    /// Nobody relies on the content of these pages.
    pub unsafe fn offer(&self, range: Range<usize>) {
        self.with(move |engine| discard::offer(engine, &range));
    }

    /// Follows advice that changes no content: [`Advice::DontNeed`] does nothing here. All advice applies to the whole
    /// blocks of 2 MiB that overlap the range.
    pub fn advise(&self, addr: usize, len: usize, advice: Advice) {
        self.with(move |engine| advice::follow(engine, blocks_of(&(addr..addr + len)), advice));
    }

    /// Makes the folios that lie within a range the oldest in RAM.
    pub fn make_oldest(&self, addr: usize, len: usize) {
        self.with(move |engine| advice::make_oldest(engine, &(addr..addr + len)));
    }

    /// Makes the pages of a range leave RAM first, and starts their writeback. A folio that reaches past the range is
    /// split.
    pub fn page_out(&self, addr: usize, len: usize) {
        self.with(move |engine| advice::page_out(engine, &(addr..addr + len)));
    }

    /// Brings a range in, writable, as a touch would. Cheap for resident pages.
    pub fn touch(&self, addr: usize, len: usize) {
        self.with(move |engine| touch::touch(engine, addr..addr.saturating_add(len)));
    }

    /// Brings a range in that this thread needs during a call, and keeps it in RAM until the result is dropped. Cheap
    /// for a few resident pages.
    pub fn wait_on(&self, addr: usize, len: usize) -> Waited {
        let waited = Waited::new(addr..addr + len);
        self.touch(addr, len); // takes the locks of blocks: who looked before has gone on
        waited
    }

    /// Brings a range in and keeps it in RAM until [`RawSpace::release_hold`]: for thread stacks, and for memory that
    /// the kernel uses. A hold keeps all resident folios of its blocks, and holds of one block are counted. `false`:
    /// some content could not be read; the holds stand nevertheless.
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn hold(&self, addr: usize, len: usize) -> bool {
        self.with(move |engine| holds::hold(engine, &(addr..addr + len), u64::MAX) == Some(true))
    }

    /// As [`RawSpace::hold`], unless more than `most_bytes` would be held in all: then nothing is held, and the result
    /// is `None`. Each block counts as a whole, and once. For callers that cannot know what other threads hold: RAM
    /// that is all held leaves none for faults.
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn hold_within(&self, addr: usize, len: usize, most_bytes: u64) -> Option<bool> {
        self.with(move |engine| holds::hold(engine, &(addr..addr + len), most_bytes))
    }

    /// Has this called on a thread of the engine's when no more memory can leave RAM: it releases holds that are over,
    /// and returns whether there were any. It must not wait for a thread that forks. The first such function stays.
    pub fn ask_when_stuck(&self, let_go: fn() -> bool) {
        self.engine.ram().demand().ask_when_stuck(let_go);
    }

    /// Ends a hold.
    ///
    /// # Safety
    /// The range was held.
    pub unsafe fn release_hold(&self, addr: usize, len: usize) {
        self.with(move |engine| holds::release(engine, &(addr..addr + len)));
    }

    /// Resolves a fault in managed memory, for a program's own signal handler. `false`: the address is not managed, or
    /// its content is lost.
    #[must_use]
    pub fn on_fault(&self, addr: usize) -> bool {
        self.contains(addr) && resolve::resolve(&self.engine, addr, signals::thread_id())
    }

    /// Resolves a fault of the program in the engine's own memory, which reads as zero where it is empty. `false`: the
    /// address is of something else.
    #[must_use]
    pub fn on_own_fault(&self, addr: usize) -> bool {
        resolve::resolve_own(&self.engine, addr, signals::thread_id())
    }
}
