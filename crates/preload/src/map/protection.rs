//! Attributes that the program sets for managed pages (protection, keys, locks), and their consequences.
//!
//! - *No access* (PROT_NONE, guards): the engine seals such pages if it can. Sealed pages need no RAM.
//! - *Other protections, keys, locks*: the kernel moves pages between writable memory only, and locked pages must not
//!   leave RAM. So all folios with such a page are swapped in before the protection changes, and their blocks are held
//!   while they have one. A swap-in then never meets memory that is not writable.
//!
//! Each held block counts once, at its full size. At most half of the budget may be held: the other half must stay
//! evictable. One lock, [`CHANGING`], keeps the table, the holds and the kernel's protection consistent. Faults do not
//! take it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use folioswap::{RawSpace, WholeFolio};
use folioswap_sys::memory;

use crate::real::kernel;

const PAGE_BYTES: usize = 4096;
const BLOCK_BYTES: usize = 2 << 20;
const BLOCK_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;

/// The attributes of a page: its protection, with the values of `mprotect`, and the bits below.
pub type Attributes = u16;
pub const ACCESS: Attributes = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as Attributes;
/// Attributes of a page for which the program has set nothing.
pub const PLAIN: Attributes = (libc::PROT_READ | libc::PROT_WRITE) as Attributes;
/// Locked in RAM by `mlock`.
pub const LOCKED: Attributes = 1 << 3;
/// No access, whatever the protection: `MADV_GUARD_INSTALL`.
pub const GUARD: Attributes = 1 << 4;
/// Zeroed in forked children: `MADV_WIPEONFORK`.
pub const WIPED: Attributes = 1 << 5;
/// Absent in forked children: `MADV_DONTFORK`.
pub const NOT_FORKED: Attributes = 1 << 6;
/// Sealed in the engine, instead of held and protected. Derived from the other bits.
const SEALED: Attributes = 1 << 7;
/// The number of a protection key, 0 to 15.
pub const KEY: Attributes = 15 << KEY_SHIFT;
const KEY_SHIFT: u32 = 8;

/// The attributes of each page of a block.
type Pages = Box<[Attributes; BLOCK_PAGES]>;

/// Blocks by address, only those with a page that is not plain. A tree, because a hash table draws random numbers, and
/// that call is a cancellation point.
struct Table {
    blocks: BTreeMap<usize, Pages>,
    nr_held: usize,
    nr_locked_pages: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Table { blocks: BTreeMap::new(), nr_held: 0, nr_locked_pages: 0 });
static NR_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Serialises all changes to attributes. Taken before [`TABLE`].
static CHANGING: Mutex<()> = Mutex::new(());

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().expect("nothing panics under this lock")
}

/// Proof that no other thread changes attributes or unmaps managed pages.
pub type Alone = MutexGuard<'static, ()>;

pub fn changing() -> Alone {
    CHANGING.lock().expect("nothing panics under this lock")
}

/// Whether all pages are plain.
pub fn is_empty() -> bool {
    NR_BLOCKS.load(Ordering::Relaxed) == 0
}

/// Combines a protection and a key.
pub fn of_key(access: Attributes, key: u16) -> Attributes {
    access | key << KEY_SHIFT & KEY
}

/// The access and the key that the kernel applies to a page.
fn of_kernel(attributes: Attributes) -> Attributes {
    if attributes & GUARD != 0 { attributes & KEY } else { attributes & (ACCESS | KEY) }
}

/// Whether a page with these attributes keeps its block in RAM. A sealed page does not.
fn must_stay(attributes: Attributes) -> bool {
    attributes & LOCKED != 0 || !(of_kernel(attributes) == PLAIN || attributes & SEALED != 0)
}

/// The same for attributes that are about to be set: a page without access may still be sealed.
fn will_stay(attributes: Attributes) -> bool {
    attributes & LOCKED != 0 || !matches!(of_kernel(attributes), PLAIN | 0)
}

fn count(pages: &Pages, bit: Attributes) -> usize {
    pages.iter().filter(|&page| page & bit != 0).count()
}

fn plain() -> Pages {
    Box::new([PLAIN; BLOCK_PAGES])
}

fn pages_at(block: usize) -> Pages {
    table().blocks.get(&block).cloned().unwrap_or_else(plain)
}

/// Stores the attributes of a block's pages, and updates the counts.
fn note(block: usize, pages: Pages) {
    let mut table = table();
    let before = table.blocks.remove(&block).unwrap_or_else(plain);
    table.nr_locked_pages += count(&pages, LOCKED);
    table.nr_locked_pages -= count(&before, LOCKED);
    table.nr_held += usize::from(pages.iter().any(|&page| must_stay(page)));
    table.nr_held -= usize::from(before.iter().any(|&page| must_stay(page)));
    if pages.iter().any(|&page| page != PLAIN) {
        table.blocks.insert(block, pages);
    }
    NR_BLOCKS.store(table.blocks.len(), Ordering::Relaxed);
}

/// Splits a range at block boundaries: the address of each block, and its page indices.
fn by_block(range: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let range = range.clone();
    let first = range.start / BLOCK_BYTES;
    let blocks = if range.is_empty() { 0..0 } else { first..range.end.div_ceil(BLOCK_BYTES) };
    blocks.map(move |block| {
        let block = block * BLOCK_BYTES;
        let pages = range.start.max(block) - block..range.end.min(block + BLOCK_BYTES) - block;
        (block, pages.start / PAGE_BYTES..pages.end.div_ceil(PAGE_BYTES))
    })
}

/// Splits a range where the attributes change.
pub fn runs(range: &Range<usize>) -> Vec<(Range<usize>, Attributes)> {
    let mut runs: Vec<(Range<usize>, Attributes)> = Vec::new();
    let mut add = |part: Range<usize>, attributes: Attributes| match runs.last_mut() {
        Some((last, same)) if *same == attributes && last.end == part.start => last.end = part.end,
        _ => runs.push((part, attributes)),
    };
    let table = table();
    for (block, pages) in by_block(range) {
        let at = |page: usize| block + page * PAGE_BYTES;
        match table.blocks.get(&block) {
            None => add(at(pages.start)..at(pages.end), PLAIN),
            Some(known) => pages.for_each(|page| add(at(page)..at(page + 1), known[page] & !SEALED)),
        }
    }
    runs
}

/// Gives pages the access and the key of `new` in the kernel.
fn kernel_protect(part: &Range<usize>, old: Attributes, new: Attributes) -> Result<(), c_int> {
    let (access, key) = (c_int::from(of_kernel(new) & ACCESS), (new & KEY) >> KEY_SHIFT);
    // SAFETY: the program asked for this protection, for memory of its own.
    let result = unsafe {
        if (old | new) & KEY == 0 {
            kernel!(libc::SYS_mprotect, part.start, part.len(), access)
        } else {
            kernel!(libc::SYS_pkey_mprotect, part.start, part.len(), access, c_int::from(key))
        }
    };
    if result < 0 { Err(crate::state::errno()) } else { Ok(()) }
}

fn errno_of(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::ENOMEM)
}

/// A block whose pages change.
struct Changing<'s> {
    space: &'s RawSpace,
    block: usize,
    is_held: bool,
}

impl Changing<'_> {
    fn range(&self, pages: &Range<usize>) -> Range<usize> {
        self.block + pages.start * PAGE_BYTES..self.block + pages.end * PAGE_BYTES
    }

    /// Holds the block: keeps in RAM what is there and what comes in later.
    fn hold(&mut self) -> Result<(), c_int> {
        if !self.is_held {
            if !has_room(self.space, 1) {
                return Err(libc::ENOMEM);
            }
            // SAFETY: the block is mapped, since the program changes its pages.
            unsafe { self.space.hold_present(self.block, 1) };
            self.is_held = true;
        }
        Ok(())
    }

    /// Seals pages that are readable and writable. If there is no room to hold the block instead, a whole folio is
    /// written out in parts so that the pages can be sealed. Returns whether they are sealed.
    fn seal(&self, part: &Range<usize>) -> Result<bool, c_int> {
        let kinds = [WholeFolio::Keep, WholeFolio::WriteInParts];
        let nr_kinds = if self.is_held || has_room(self.space, 1) { 1 } else { 2 };
        for kind in &kinds[..nr_kinds] {
            // SAFETY: pages of a mapped block, to which the program gives up its access.
            if unsafe { self.space.seal(part.clone(), *kind).map_err(errno_of)? } {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Swaps pages of the block in, and holds the block.
    fn bring_in(&mut self, part: &Range<usize>) -> Result<(), c_int> {
        self.hold()?;
        // SAFETY: the pages are mapped. The block's own hold outlives that of the range.
        unsafe {
            let all = self.space.hold(part.start, part.len());
            self.space.release_hold(part.start, part.len());
            if all { Ok(()) } else { Err(libc::ENOMEM) }
        }
    }

    /// Changes pages from `old` to `new`. Returns the attributes that they then have.
    fn change(&mut self, pages: &Range<usize>, old: Attributes, new: Attributes) -> Result<Attributes, c_int> {
        let part = self.range(pages);
        let (before, after) = (of_kernel(old), of_kernel(new));
        if before == after {
            return Ok(new & !SEALED | old & SEALED);
        }
        if old & SEALED != 0 {
            // SAFETY: sealed pages of a mapped block.
            unsafe { self.space.unseal(part.clone()).map_err(errno_of)? };
        }
        if after == PLAIN {
            if old & SEALED == 0 {
                kernel_protect(&part, old, new)?;
            }
            return Ok(new & !SEALED);
        }
        if after == 0 && before == PLAIN && new & LOCKED == 0 && self.seal(&part)? {
            return Ok(new | SEALED);
        }
        self.bring_in(&part)?;
        kernel_protect(&part, old, new)?;
        Ok(new & !SEALED)
    }
}

/// Whether this many more blocks can be held.
pub fn has_room(space: &RawSpace, nr_blocks: usize) -> bool {
    ((table().nr_held + nr_blocks) * BLOCK_BYTES) as u64 <= space.memory() / 2
}

/// Gives the pages of a block the attributes `wanted`. After a failure some are changed, and the table records which.
fn apply(space: &RawSpace, block: usize, wanted: &Pages) -> Result<(), c_int> {
    // Only readable and writable pages of a block that is not held can be sealed. So a page that loses its last access
    // becomes plain first.
    let mut between = pages_at(block);
    let mut is_other = false;
    for (old, new) in between.iter_mut().zip(wanted.iter()) {
        if of_kernel(*new) == 0 && !matches!(of_kernel(*old), PLAIN | 0) {
            (*old, is_other) = (PLAIN, true);
        }
    }
    if is_other {
        make(space, block, &between)?;
    }
    make(space, block, wanted)
}

/// The same in one step.
fn make(space: &RawSpace, block: usize, wanted: &Pages) -> Result<(), c_int> {
    let mut pages = pages_at(block);
    let was_held = pages.iter().any(|&page| must_stay(page));
    let mut changing = Changing { space, block, is_held: was_held };
    if wanted.iter().any(|&page| will_stay(page)) {
        changing.hold()?;
    }
    let mut result = Ok(());
    let mut start = 0;
    while start < BLOCK_PAGES && result.is_ok() {
        let (old, new) = (pages[start], wanted[start]);
        let end = (start..BLOCK_PAGES).find(|&page| (pages[page], wanted[page]) != (old, new)).unwrap_or(BLOCK_PAGES);
        if old & !SEALED != new & !SEALED {
            result = changing.change(&(start..end), old, new).map(|now| pages[start..end].fill(now));
        }
        start = end;
    }
    let stays = pages.iter().any(|&page| must_stay(page));
    if changing.is_held && !stays {
        // SAFETY: `hold` held the block for its first such page. None is left.
        unsafe { space.release_hold(block, 1) };
    }
    note(block, pages);
    result
}

/// Changes the attributes of mapped pages: all or none of them, unless undoing a failed change fails too.
///
/// # Errors
/// ENOMEM: no room in RAM for pages that must stay there, or the kernel allows no further mapping.
pub fn change(space: &RawSpace, range: &Range<usize>, set: impl Fn(Attributes) -> Attributes) -> Result<(), c_int> {
    if is_empty() && set(PLAIN) == PLAIN {
        return Ok(());
    }
    let _one_at_a_time = changing();
    change_locked(space, range, set)
}

fn change_locked(space: &RawSpace, range: &Range<usize>, set: impl Fn(Attributes) -> Attributes) -> Result<(), c_int> {
    let wanted = |block: usize, part: &Range<usize>| {
        let mut pages = pages_at(block);
        pages[part.clone()].iter_mut().for_each(|page| *page = set(*page) & !SEALED | *page & SEALED);
        pages
    };
    let is_new = |(block, part): &(usize, Range<usize>)| {
        let stays = wanted(*block, part).iter().any(|&page| will_stay(page));
        stays && !pages_at(*block).iter().any(|&page| must_stay(page))
    };
    let nr_more = by_block(range).filter(is_new).count();
    if nr_more > 0 && !has_room(space, nr_more) {
        return Err(libc::ENOMEM);
    }
    apply_all(space, by_block(range).map(|(block, part)| (block, wanted(block, &part))))
}

/// Changes the attributes of several blocks: all or none of them, unless undoing a failed change fails too.
fn apply_all(space: &RawSpace, blocks: impl Iterator<Item = (usize, Pages)>) -> Result<(), c_int> {
    let mut done: Vec<(usize, Pages)> = Vec::new();
    for (block, new) in blocks {
        let old = pages_at(block);
        if old == new {
            continue;
        }
        let result = apply(space, block, &new);
        done.push((block, old));
        if let Err(errno) = result {
            for (block, old) in done {
                let _ = apply(space, block, &old); // only takes away what was added
            }
            return Err(errno);
        }
    }
    Ok(())
}

/// Drops the attributes of pages that are about to be unmapped. Makes those that are not sealed readable and writable.
///
/// # Errors
/// ENOMEM: the kernel has no room for another mapping. Nothing has changed.
pub fn forget(space: &RawSpace, range: &Range<usize>) -> Result<(), c_int> {
    if is_empty() { Ok(()) } else { forget_alone(space, range, &changing()) }
}

fn forget_alone(space: &RawSpace, range: &Range<usize>, _alone: &Alone) -> Result<(), c_int> {
    if is_empty() {
        return Ok(());
    }
    let without = |block: usize, part: &Range<usize>| {
        let mut pages = pages_at(block);
        let is_gone = |page: Attributes| if page & SEALED != 0 { SEALED } else { PLAIN };
        pages[part.clone()].iter_mut().for_each(|page| *page = is_gone(*page));
        pages
    };
    // The unmapped part of a block is zeroed in place, and must be writable for that. A whole block is not touched.
    let (whole, parts): (Vec<_>, Vec<_>) = by_block(range).partition(|(_, part)| part.len() == BLOCK_PAGES);
    apply_all(space, parts.iter().map(|(block, part)| (*block, without(*block, part))))?;
    for (block, part) in &whole {
        let _ = apply(space, *block, &without(*block, part)); // unmapping pages that stay protected is slower
    }
    for (block, part) in parts.into_iter().chain(whole) {
        let mut pages = pages_at(block);
        pages[part].fill(PLAIN);
        note(block, pages);
    }
    Ok(())
}

/// Runs `unmap` on pages with any attributes. No other thread may unmap meanwhile: once a block is closed, another
/// thread may map it anew at once.
///
/// # Errors
/// As [`forget`]. Then `unmap` was not run.
pub fn unmap(space: &RawSpace, range: &Range<usize>, unmap: impl FnOnce()) -> Result<(), c_int> {
    let alone = changing();
    forget_alone(space, range, &alone)?;
    unmap();
    after_unmap(space, range, &alone);
    Ok(())
}

/// Takes away access to pages that were unmapped while other pages of their block stay mapped, unless they are sealed.
/// They could not be sealed because the block is held or in use.
pub fn after_unmap(space: &RawSpace, range: &Range<usize>, _alone: &Alone) {
    for (block, part) in by_block(range).filter(|(_, part)| part.len() < BLOCK_PAGES) {
        let pages = block + part.start * PAGE_BYTES..block + part.end * PAGE_BYTES;
        if !space.is_open(block) {
            note(block, plain()); // the whole block is unmapped, and its holds are gone
        } else if space.are_holes(pages.clone()) && !space.is_sealed(pages.clone()) {
            let _ = change_locked(space, &pages, |_| 0); // without room for this the pages read as zero
        }
    }
}

/// Whether pages with these attributes keep their blocks in RAM.
pub fn is_held_for(attributes: Attributes) -> bool {
    will_stay(attributes)
}

/// Runs `discard` on each part of the range. A part is made writable for this, unless it is sealed.
///
/// # Errors
/// ENOMEM if the attributes of a part could not be restored.
pub fn discard(space: &RawSpace, range: &Range<usize>, discard: impl Fn(&Range<usize>)) -> Result<(), c_int> {
    if is_empty() {
        discard(range);
        return Ok(());
    }
    let _one_at_a_time = changing();
    for (part, attributes) in runs(range) {
        let needs_access = of_kernel(attributes) != PLAIN;
        let blocks = by_block(&part).filter(|_| needs_access);
        for (block, pages) in blocks {
            let is_open = |page: &Attributes| page & SEALED == 0;
            let part = block + pages.start * PAGE_BYTES..block + pages.end * PAGE_BYTES;
            if !pages_at(block)[pages].iter().any(is_open) {
                discard(&part);
                continue;
            }
            change_locked(space, &part, |page| page & !(ACCESS | KEY | GUARD) | PLAIN)?;
            discard(&part);
            change_locked(space, &part, |_| attributes)?;
        }
        if !needs_access {
            discard(&part);
        }
    }
    Ok(())
}

/// Implements `mlock` for mapped managed memory.
///
/// # Errors
/// EPERM and ENOMEM for RLIMIT_MEMLOCK, as the kernel has them. ENOMEM beyond half of the budget, and for pages without
/// access.
pub fn lock(space: &RawSpace, range: &Range<usize>, on_fault: bool) -> Result<(), c_int> {
    let known = runs(range);
    let bytes =
        |bit: Attributes| known.iter().filter(|run| run.1 & LOCKED == bit).map(|run| run.0.len()).sum::<usize>();
    let all_bytes = table().nr_locked_pages * PAGE_BYTES + bytes(0);
    // The kernel already counts all addresses of a locked budget.
    if !space.is_locked() && all_bytes > 0 {
        memory::may_lock(all_bytes).map_err(errno_of)?;
    }
    change(space, range, |page| page | LOCKED)?;
    if on_fault {
        return Ok(());
    }
    // SAFETY: mapped memory, whose blocks stay held.
    let all = unsafe {
        let all = space.hold(range.start, range.len());
        space.release_hold(range.start, range.len());
        all
    };
    if all && known.iter().all(|&(_, attributes)| of_kernel(attributes) & ACCESS != 0) {
        Ok(())
    } else {
        Err(libc::ENOMEM)
    }
}

/// Implements `munlock` for managed memory.
pub fn unlock(space: &RawSpace, range: &Range<usize>) {
    // Removing an attribute needs no room, so this cannot fail for lack of it.
    let _ = change(space, range, |page| page & !LOCKED);
}

/// Implements `munlockall` for managed memory.
pub fn unlock_all(space: &RawSpace) {
    let locked: Vec<usize> =
        table().blocks.iter().filter(|(_, pages)| count(pages, LOCKED) > 0).map(|b| *b.0).collect();
    locked.into_iter().for_each(|block| unlock(space, &(block..block + BLOCK_BYTES)));
}

/// Ranges that forked children get wiped, or not at all.
pub fn for_children() -> Vec<(Range<usize>, Attributes)> {
    if is_empty() {
        return Vec::new();
    }
    let blocks: Vec<usize> = table().blocks.keys().copied().collect();
    let mut found: Vec<_> = blocks.iter().flat_map(|&block| runs(&(block..block + BLOCK_BYTES))).collect();
    found.retain(|(_, attributes)| attributes & (WIPED | NOT_FORKED) != 0);
    found
}
