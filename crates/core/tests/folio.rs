//! The folio table against a plain model that knows every page of its blocks: random sequences of calls, and several
//! threads at once. A failure prints the shortest sequence that shows it, or its seed.
#![cfg(not(loom))]

mod seeded;

use fastrand::Rng;
use folioswap_core::sync::{AtomicBool, Ordering};
use folioswap_core::{
    Ahead, BLOCK_PAGES, BLOCK_PIECES, BlockId, Folio, FolioId, FolioTable, FrameId, Locked, MAX_ORDER, Order, PIECE,
    SlotId, State, Stay,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use std::collections::BTreeSet;
use std::ops::Range;

const NR_BLOCKS: usize = 3;
const PIECE_PAGES: usize = PIECE.nr_pages();
/// Blocks that are allocated at once.
const CHUNK_BLOCKS: usize = 64;
/// The last number at which a folio of order 9 can begin: those after its last page mean "not in RAM".
const FIRST_MAX: u32 = 0xFF00_0000 - BLOCK_PAGES as u32;
/// The same for slots, whose numbers have 40 bits.
const FIRST_SLOT_MAX: u64 = (1 << 40) - 1 - BLOCK_PAGES as u64;

fn order(k: u8) -> Order {
    Order::new(k).unwrap()
}

/// One call for one block. Pages stand for the folios that hold them.
#[derive(Clone, Debug)]
enum Call {
    /// Ignored unless the order is smaller.
    Split(u8),
    Join,
    InRam(usize, u32, bool),
    Out(usize),
    Empty(usize),
    Slot(usize, Option<u64>),
    /// Marker and dropped behind.
    Marks(usize, bool, Stay),
    /// Pinned, and when a folio of it last left RAM.
    Notes(bool, u32),
    /// Ignored unless it is another block.
    MoveTo(usize),
    HashPage(usize, u128),
    HashPiece(usize, u128),
    ForgetHashes(Range<usize>),
    NoteDropped(Range<usize>),
    TakeDropped,
}

fn call() -> impl Strategy<Value = Call> {
    let page = || 0..BLOCK_PAGES;
    let pages = || (page(), 1..100usize).prop_map(|(start, len)| start..(start + len).min(BLOCK_PAGES));
    // 0 stands for no hash.
    let hash = || prop_oneof![1 => Just(0), 3 => any::<u64>().prop_map(u128::from), 9 => any::<u128>()];
    prop_oneof![
        // Large orders more often than small ones, so that a block is split in several steps.
        3 => (0..100u8).prop_map(|n| Call::Split(MAX_ORDER - 1 - n.trailing_zeros().min(8) as u8)),
        1 => (0..MAX_ORDER).prop_map(Call::Split),
        2 => Just(Call::Join),
        6 => (page(), 0..=FIRST_MAX, any::<bool>()).prop_map(|(at, frame, mapped)| Call::InRam(at, frame, mapped)),
        3 => page().prop_map(Call::Out),
        2 => page().prop_map(Call::Empty),
        6 => (page(), prop::option::of(0..=FIRST_SLOT_MAX)).prop_map(|(at, slot)| Call::Slot(at, slot)),
        2 => (page(), any::<bool>(), stay()).prop_map(|(at, marker, stay)| Call::Marks(at, marker, stay)),
        1 => (any::<bool>(), any::<u32>()).prop_map(|(pinned, left_at)| Call::Notes(pinned, left_at)),
        2 => (0..NR_BLOCKS).prop_map(Call::MoveTo),
        4 => (page(), hash()).prop_map(|(page, hash)| Call::HashPage(page, hash)),
        4 => (0..BLOCK_PIECES, hash()).prop_map(|(piece, hash)| Call::HashPiece(piece, hash)),
        2 => pages().prop_map(Call::ForgetHashes),
        2 => pages().prop_map(Call::NoteDropped),
        1 => Just(Call::TakeDropped),
    ]
}

fn stay() -> impl Strategy<Value = Stay> {
    prop_oneof![Just(Stay::Kept), Just(Stay::SwappedIn), Just(Stay::Dropped)]
}

/// The hash known for a page.
#[derive(Copy, Clone, Default)]
enum Hash {
    #[default]
    Unknown,
    Own(u128),
    OfPiece(u128),
}

#[derive(Copy, Clone, Default)]
struct Page {
    frame: Option<u32>,
    slot: Option<u64>,
    mapped: bool,
    /// On the first page of a folio only.
    ahead: Ahead,
    stay: Stay,
}

impl Page {
    fn state(&self) -> State {
        match (self.frame, self.slot) {
            (Some(frame), _) if self.mapped => State::Resident(FrameId::new(frame)),
            (Some(frame), _) => State::Standby(FrameId::new(frame)),
            (None, Some(slot)) => State::Swapped(SlotId::new(slot)),
            (None, None) => State::Empty,
        }
    }
}

/// A block, page by page.
#[derive(Clone)]
struct Model {
    order: u8,
    pages: Vec<Page>,
    hashes: Vec<Hash>,
    dropped: BTreeSet<usize>,
    pinned: bool,
    left_at: u32,
}

impl Model {
    fn new() -> Model {
        Model {
            order: MAX_ORDER,
            pages: vec![Page::default(); BLOCK_PAGES],
            hashes: vec![Hash::Unknown; BLOCK_PAGES],
            dropped: BTreeSet::new(),
            pinned: false,
            left_at: 0,
        }
    }

    /// The first page of the folio that holds this one.
    fn first(&self, page: usize) -> usize {
        page >> self.order << self.order
    }

    /// Changes each page of the folio that holds this one, by its index in the folio.
    fn change(&mut self, page: usize, change: impl Fn(&mut Page, u32)) {
        let (first, len) = (self.first(page), 1 << self.order);
        self.pages[first..first + len].iter_mut().zip(0..).for_each(|(page, at)| change(page, at));
    }

    fn hash_page(&mut self, page: usize, hash: u128) {
        let first = page / PIECE_PAGES * PIECE_PAGES;
        for other in &mut self.hashes[first..first + PIECE_PAGES] {
            if matches!(other, Hash::OfPiece(_)) {
                *other = Hash::Unknown;
            }
        }
        self.hashes[page] = Hash::Own(hash);
    }

    fn hash_piece(&mut self, piece: usize, hash: Hash) {
        self.hashes[piece * PIECE_PAGES..(piece + 1) * PIECE_PAGES].fill(hash);
    }

    /// When folios become smaller than a piece, only swapped ones keep the hashes of their content.
    fn forget_what_split_forgets(&mut self, k: u8) {
        if k >= PIECE.exponent() || self.order < PIECE.exponent() {
            return;
        }
        for piece in 0..BLOCK_PIECES {
            let folio = &self.pages[self.first(piece * PIECE_PAGES)];
            if !matches!(folio.state(), State::Swapped(_)) {
                self.hash_piece(piece, Hash::Unknown);
            }
        }
    }

    /// Compares every query of a block with the pages of the model.
    fn check(&self, locked: &Locked<'_>, id: usize) -> TestCaseResult {
        let (order, nr_folios) = (order(self.order), BLOCK_PAGES >> self.order);
        prop_assert_eq!((locked.id(), locked.order()), (BlockId::from_index(id), order));
        prop_assert_eq!((locked.nr_folios(), locked.folios().len()), (nr_folios, nr_folios));
        for index in 0..nr_folios {
            let first = index << self.order;
            let (page, folio) = (&self.pages[first], locked.folio(index));
            prop_assert_eq!((locked.state(index), folio.state()), (page.state(), page.state()), "folio {}", index);
            prop_assert_eq!((folio.frame(), folio.slot()), (page.frame.map(FrameId::new), page.slot.map(SlotId::new)));
            prop_assert_eq!((folio.ahead, folio.stay), (page.ahead, page.stay));
            prop_assert!(locked.folios()[index] == *folio);
            prop_assert_eq!(locked.name(index), FolioId::from_index(id * BLOCK_PAGES + first));
        }
        for page in 0..BLOCK_PAGES {
            prop_assert_eq!(locked.index_of(page), page / order.nr_pages());
            let known = |hash| (hash != 0).then_some(hash);
            let (own, of_piece) = match self.hashes[page] {
                Hash::Unknown => (None, None),
                Hash::Own(hash) => (known(hash), None),
                Hash::OfPiece(hash) => (None, known(hash)),
            };
            prop_assert_eq!((locked.page_hash(page), locked.piece_hash(page / PIECE_PAGES)), (own, of_piece));
        }
        prop_assert_eq!(locked.is_empty(), self.pages.iter().all(|page| page.state() == State::Empty));
        prop_assert_eq!(locked.is_out(), self.pages.iter().all(|page| page.frame.is_none()));
        prop_assert_eq!((locked.pinned, locked.left_at), (self.pinned, self.left_at));
        Ok(())
    }
}

/// The folio that holds a page.
fn folio_at<'l>(locked: &'l mut Locked<'_>, page: usize) -> &'l mut Folio {
    let index = locked.index_of(page);
    locked.folio_mut(index)
}

/// Makes one call on a folio or its place, in a block and in its model.
fn make(locked: &mut Locked<'_>, model: &mut Model, call: Call) -> TestCaseResult {
    match call {
        Call::Split(k) if k < model.order => {
            locked.split(order(k));
            model.forget_what_split_forgets(k);
            model.order = k;
        }
        Call::Join => {
            locked.join();
            let old = std::mem::replace(model, Model::new());
            *model = Model { pinned: old.pinned, left_at: old.left_at, ..Model::new() };
        }
        Call::InRam(page, frame, mapped) => {
            folio_at(locked, page).set_in_ram(FrameId::new(frame), mapped);
            model.change(page, |page, at| (page.frame, page.mapped) = (Some(frame + at), mapped));
        }
        Call::Out(page) => {
            folio_at(locked, page).set_out();
            model.change(page, |page, _| (page.frame, page.mapped) = (None, false));
        }
        Call::Empty(page) => {
            folio_at(locked, page).set_empty();
            model.change(page, |page, _| *page = Page::default());
        }
        Call::Slot(page, slot) => {
            folio_at(locked, page).set_slot(slot.map(SlotId::new));
            model.change(page, |page, at| page.slot = slot.map(|slot| slot + u64::from(at)));
        }
        Call::Marks(page, marker, stay) => {
            let folio = folio_at(locked, page);
            let ahead = if marker { Ahead::Marker } else { Ahead::No };
            (folio.ahead, folio.stay) = (ahead, stay);
            model.change(page, |page, at| (page.ahead, page.stay) = (if at == 0 { ahead } else { Ahead::No }, stay));
        }
        Call::Notes(pinned, left_at) => {
            (locked.pinned, locked.left_at) = (pinned, left_at);
            (model.pinned, model.left_at) = (pinned, left_at);
        }
        _ => return make_of_pages(locked, model, call),
    }
    Ok(())
}

/// Makes one call on hashes or dropped pages, in a block and in its model.
fn make_of_pages(locked: &mut Locked<'_>, model: &mut Model, call: Call) -> TestCaseResult {
    match call {
        Call::HashPage(page, hash) => {
            locked.set_page_hash(page, hash);
            model.hash_page(page, hash);
        }
        Call::HashPiece(piece, hash) => {
            locked.set_piece_hash(piece, hash);
            model.hash_piece(piece, Hash::OfPiece(hash));
        }
        Call::ForgetHashes(pages) => {
            locked.forget_hashes(pages.clone());
            pages.for_each(|page| model.hash_piece(page / PIECE_PAGES, Hash::Unknown));
        }
        Call::NoteDropped(pages) => {
            locked.note_dropped(pages.clone());
            model.dropped.extend(pages);
        }
        Call::TakeDropped => {
            let taken = locked.take_dropped().map(|pages| pages.collect::<Vec<_>>());
            let dropped = std::mem::take(&mut model.dropped);
            prop_assert_eq!(taken, (!dropped.is_empty()).then(|| dropped.into_iter().collect()));
        }
        _ => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_block_is_its_pages(calls in prop::collection::vec((0..NR_BLOCKS, call()), 1..150)) {
        let table = FolioTable::new(NR_BLOCKS);
        table.ensure(BlockId::new(0)..BlockId::from_index(NR_BLOCKS));
        let mut models = vec![Model::new(); NR_BLOCKS];
        for (at, call) in calls {
            let mut locked = table.lock(BlockId::from_index(at));
            let shown = format!("after {call:?} of block {at}");
            match call {
                Call::MoveTo(other) if other != at => {
                    table.lock(BlockId::from_index(other)).put(locked.take());
                    models[other] = std::mem::replace(&mut models[at], Model::new());
                }
                Call::MoveTo(_) => prop_assert!(table.try_lock(BlockId::from_index(at)).is_none()),
                _ => make(&mut locked, &mut models[at], call)?,
            }
            drop(locked);
            for (id, model) in models.iter().enumerate() {
                let checked = model.check(&table.lock(BlockId::from_index(id)), id);
                checked.map_err(|error| TestCaseError::fail(format!("{shown}, block {id}: {error}")))?;
            }
        }
    }

    #[test]
    fn chunks_are_there_once_asked_for(ranges in prop::collection::vec((0..1000usize, 0..200usize), 0..8)) {
        let table = FolioTable::new(1000);
        let bare = table.bytes();
        let mut chunks = BTreeSet::new();
        for (start, len) in ranges {
            let end = (start + len).min(1000);
            table.ensure(BlockId::from_index(start)..BlockId::from_index(end));
            chunks.extend((start..end).map(|block| block / CHUNK_BLOCKS));
            for block in 0..1000 {
                let (id, there) = (BlockId::from_index(block), chunks.contains(&(block / CHUNK_BLOCKS)));
                prop_assert_eq!((table.has(id), table.try_lock(id).is_some()), (there, there), "block {}", block);
            }
            let directory = if chunks.is_empty() { 0 } else { 1000usize.div_ceil(CHUNK_BLOCKS) * 32 };
            prop_assert_eq!((table.bytes() - bare - directory) % (chunks.len() * CHUNK_BLOCKS).max(1), 0);
        }
    }
}

#[test]
fn what_a_block_takes_grows_with_what_is_known_of_it() {
    let table = FolioTable::new(CHUNK_BLOCKS);
    let (block, none) = (BlockId::new(0), table.bytes());
    table.ensure(block..BlockId::new(1));
    let bare = table.bytes();
    assert_eq!(bare - none, 96 * CHUNK_BLOCKS + 32);
    let more = |change: fn(&mut Locked<'_>)| {
        change(&mut table.lock(block));
        table.bytes() - bare
    };
    assert_eq!(more(|locked| locked.split(order(4))), 12 * 32);
    assert_eq!(more(|locked| locked.split(order(0))), 12 * 512);
    assert_eq!(more(|locked| locked.set_piece_hash(3, 1)), 12 * 512 + 24 * BLOCK_PIECES);
    assert_eq!(more(|locked| locked.set_page_hash(70, 1)), 12 * 512 + 24 * BLOCK_PIECES + 256);
    assert_eq!(more(|locked| locked.join()), 0);
    assert_eq!(more(|locked| locked.note_dropped(3..9)), BLOCK_PAGES / 8);
    assert_eq!(more(|locked| drop(locked.take_dropped())), 0);
    let _locked = table.lock(block);
    assert_eq!(table.bytes(), bare, "what is locked counts as bare");
}

#[test]
fn a_table_of_64_tib_takes_little_and_knows_its_far_end() {
    let table = FolioTable::new(1 << 25);
    let last = BlockId::from_index((1 << 25) - 1);
    table.ensure(last..BlockId::from_index(1 << 25));
    assert!(table.bytes() < 48 << 10, "{} bytes", table.bytes());
    let mut locked = table.lock(last);
    locked.folio_mut(0).set_slot(Some(SlotId::new((32 << 32) - 512)));
    locked.split(Order::PAGE);
    assert_eq!(locked.state(511), State::Swapped(SlotId::new((32 << 32) - 1)), "the last slot of the last device");
    assert_eq!(locked.name(511).offset_bytes(), (64 << 40) - 4096);
}

#[test]
#[should_panic(expected = "was never mapped")]
fn a_block_that_never_was_is_not_locked() {
    let table = FolioTable::new(2 * CHUNK_BLOCKS);
    table.ensure(BlockId::new(0)..BlockId::new(1));
    let _ = table.lock(BlockId::from_index(CHUNK_BLOCKS));
}

#[test]
#[should_panic(expected = "a split makes folios smaller")]
fn a_split_into_folios_of_the_same_order_is_none() {
    let table = FolioTable::new(1);
    table.ensure(BlockId::new(0)..BlockId::new(1));
    table.lock(BlockId::new(0)).split(Order::HUGE);
}

/// A table, and which of its blocks a thread is working on. The flags are relaxed: only the locks order anything.
struct World {
    table: FolioTable,
    inside: [AtomicBool; NR_BLOCKS],
}

impl World {
    /// Changes a block that this thread has locked, in steps, and counts that in the block.
    fn work(&self, locked: &mut Locked<'_>, random: &mut Rng) {
        let inside = &self.inside[locked.id().index()];
        assert!(!inside.swap(true, Ordering::Relaxed), "somebody else is inside {:?}", locked.id());
        let count = locked.left_at;
        match locked.order().exponent() {
            0 => locked.join(),
            k => locked.split(order(random.usize(..usize::from(k)) as u8)),
        }
        let index = random.usize(..locked.nr_folios());
        locked.folio_mut(index).set_slot(Some(SlotId::new(count.into())));
        assert_eq!(locked.nr_folios(), BLOCK_PAGES / locked.order().nr_pages());
        assert_eq!(locked.folio(index).slot(), Some(SlotId::new(count.into())));
        locked.left_at = count + 1;
        assert!(inside.swap(false, Ordering::Relaxed), "somebody else was inside {:?}", locked.id());
    }

    /// Locks random blocks, and tries another one while holding each. Returns how often it worked on each block.
    fn run(&self, seed: u64) -> [u32; NR_BLOCKS] {
        let _seed = seeded::Seed(seed);
        let (mut random, mut counts) = (seeded::rng(seed), [0; NR_BLOCKS]);
        for _ in 0..20_000 {
            let [first, second] = [(); 2].map(|()| random.usize(..NR_BLOCKS));
            let mut locked = self.table.lock(BlockId::from_index(first));
            counts[first] += 1;
            self.work(&mut locked, &mut random);
            let Some(mut other) = self.table.try_lock(BlockId::from_index(second)) else { continue };
            assert_ne!(first, second, "a block was locked twice");
            counts[second] += 1;
            self.work(&mut other, &mut random);
        }
        counts
    }
}

#[test]
fn nobody_else_is_inside_a_locked_block() {
    let world = World { table: FolioTable::new(NR_BLOCKS), inside: [const { AtomicBool::new(false) }; NR_BLOCKS] };
    let mut counts = [0; NR_BLOCKS];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|seed| {
                let world = &world;
                scope.spawn(move || {
                    world.table.ensure(BlockId::new(0)..BlockId::from_index(NR_BLOCKS));
                    world.run(seed)
                })
            })
            .collect();
        for thread in threads {
            let own = thread.join().unwrap();
            counts.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
    });
    assert!(counts.iter().sum::<u32>() >= 4 * 20_000);
    for (id, count) in counts.into_iter().enumerate() {
        assert_eq!(world.table.lock(BlockId::from_index(id)).left_at, count, "block {id}");
    }
}

#[test]
fn a_folio_tells_how_much_was_evicted_since_it_was() {
    let table = FolioTable::new(1);
    table.ensure(BlockId::new(0)..BlockId::new(1));
    let mut block = table.lock(BlockId::new(0));
    for nr_evictions in [0, 1000, (1 << 30) - 1, u32::MAX - 10] {
        let folio = block.folio_mut(0);
        folio.set_slot(Some(SlotId::new(0)));
        folio.set_in_ram(FrameId::new(0), true);
        assert_eq!(folio.nr_evicted_since(nr_evictions), None);
        folio.set_evicted(nr_evictions);
        assert_eq!((folio.state(), folio.frame()), (State::Swapped(SlotId::new(0)), None));
        for since in [0, 640, 1 << 29] {
            let shown = folio.nr_evicted_since(nr_evictions.wrapping_add(since)).unwrap();
            assert!(shown.abs_diff(since) <= 64, "{since} after {nr_evictions}: {shown}");
        }
    }
    let since = block.folio(0).nr_evicted_since(500);
    block.split(PIECE);
    assert_eq!(block.folio(3).nr_evicted_since(500), since);
    block.folio_mut(3).set_empty();
    assert_eq!((block.state(3), block.folio(3).nr_evicted_since(500)), (State::Empty, None));
}
