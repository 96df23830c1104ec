//! A pool of memory for objects of up to 64 KiB, such as compressed folios. It tracks places and sizes; the owner has
//! the memory.
//!
//! Objects are rounded up to a [`SizeClass`] and lie in groups of whole pages, each class in an address range of its
//! own. An object goes to the lowest free place of its class or the next, so that holes left by frees are filled before
//! more memory is taken. Pages are taken as a group first fills, and kept when objects go, because taking a page anew
//! costs a fault. Groups without objects are *empty*; the owner gives their memory back ([`Pool::take_empty`]).
//!
//! **Invariants.** The pages taken are those that each group has reached since its memory was last given back, plus
//! what was charged; never more than the limit. A group that is being given back has no free place. **Locking.** One
//! mutex per class, a leaf, held for a few bit operations and a search of one word per 4096 groups. The counts are read
//! without it.

mod class;

pub use class::{MAX_OBJECT_BYTES, NR_CLASSES, SizeClass};

use crate::order::PAGE_SIZE;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// How many larger classes are tried before new pages are taken. 1 wastes the least memory (`tests/pool.rs`).
const LARGER_CLASSES: usize = 1;

/// Where an object lies.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ObjectId {
    /// Its size.
    pub class: SizeClass,
    /// Its number among those of its size.
    pub index: u32,
}

impl ObjectId {
    /// Bytes before it in the range of its class.
    pub const fn offset_bytes(self) -> usize {
        self.index as usize * self.class.object_bytes()
    }
}

/// A group without objects whose memory is to be given back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct EmptyGroup {
    /// The class of its objects.
    pub class: SizeClass,
    index: usize,
    nr_pages: usize,
}

impl EmptyGroup {
    /// Bytes before it in the range of its class.
    pub const fn offset_bytes(self) -> usize {
        self.index * self.class.group_bytes()
    }

    /// Bytes of it that were used, from its start.
    pub const fn len_bytes(self) -> usize {
        self.nr_pages * PAGE_SIZE
    }
}

/// There is no memory for the object.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PoolFull;

/// A bitmap that finds its lowest set bit quickly.
#[derive(Default)]
struct Bits {
    words: Vec<u64>,
    /// A bit for each word that is not 0.
    summary: Vec<u64>,
}

impl Bits {
    fn set(&mut self, at: usize) {
        if self.words.len() <= at / 64 {
            self.words.resize(at / 64 + 1, 0);
            self.summary.resize(at / 4096 + 1, 0);
        }
        self.words[at / 64] |= 1 << (at % 64);
        self.summary[at / 4096] |= 1 << (at / 64 % 64);
    }

    fn clear(&mut self, at: usize) {
        let Some(word) = self.words.get_mut(at / 64) else { return };
        *word &= !(1 << (at % 64));
        if *word == 0 {
            self.summary[at / 4096] &= !(1 << (at / 64 % 64));
        }
    }

    fn put(&mut self, at: usize, is_set: bool) {
        if is_set { self.set(at) } else { self.clear(at) }
    }

    fn lowest(&self) -> Option<usize> {
        let (high, summary) = self.summary.iter().enumerate().find(|(_, word)| **word != 0)?;
        let word = high * 64 + summary.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

/// A group of objects.
#[derive(Copy, Clone, Default)]
struct Group {
    /// A bit for each object; all bits while its memory is being given back.
    taken: u64,
    /// Pages used, from its start.
    nr_pages: u8,
}

/// The objects of a class.
#[derive(Default)]
struct Groups {
    groups: Vec<Group>,
    /// Groups with a free place in pages that they have.
    ready: Bits,
    /// Groups with any free place.
    roomy: Bits,
    /// Groups that have pages and no object.
    empty: Bits,
}

impl Groups {
    /// The lowest group with a free place in its pages. Otherwise, if `may_grow`, one that needs a page, or a new one
    /// while there are fewer than `most`.
    fn choose(&mut self, may_grow: bool, most: usize) -> Option<usize> {
        let ready = self.ready.lowest();
        if ready.is_some() || !may_grow {
            return ready;
        }
        self.roomy.lowest().or_else(|| {
            let new = self.groups.len();
            (new < most).then(|| {
                self.groups.push(Group::default());
                self.roomy.set(new);
                new
            })
        })
    }

    /// Updates the bitmaps for a group.
    fn note(&mut self, class: SizeClass, index: usize) {
        let group = self.groups[index];
        let place = group.taken.trailing_ones() as usize;
        let is_roomy = place < class.group_objects();
        self.roomy.put(index, is_roomy);
        self.ready.put(index, is_roomy && class.pages_of(place + 1) <= group.nr_pages.into());
        self.empty.put(index, group.taken == 0 && group.nr_pages > 0);
    }
}

/// A pool; see the module. Every call is safe from any thread.
pub struct Pool {
    classes: Box<[Mutex<Groups>]>,
    limit_pages: u64,
    nr_pages: AtomicU64,
    /// Pages of groups without objects, included above.
    nr_empty_pages: AtomicU64,
    /// Bytes of the objects, each rounded up to its class.
    object_bytes: AtomicU64,
}

impl Pool {
    /// A pool of at most `limit_bytes` of memory.
    pub fn new(limit_bytes: usize) -> Pool {
        Pool {
            classes: (0..NR_CLASSES).map(|_| Mutex::new(Groups::default())).collect(),
            limit_pages: (limit_bytes / PAGE_SIZE) as u64,
            nr_pages: AtomicU64::new(0),
            nr_empty_pages: AtomicU64::new(0),
            object_bytes: AtomicU64::new(0),
        }
    }

    /// The most groups of a class: twice as many as would fill the pool, because a mostly free group has few pages.
    const fn most_groups(limit_bytes: usize, class: SizeClass) -> usize {
        2 * limit_bytes.div_ceil(class.group_bytes()) + 1
    }

    /// The size of the address range that a class needs in a pool of `limit_bytes`.
    pub const fn range_bytes(limit_bytes: usize, class: SizeClass) -> usize {
        Pool::most_groups(limit_bytes, class) * class.group_bytes()
    }

    /// A place for an object of this length: where there is memory already, if necessary in a slightly larger class,
    /// else in new pages. May allocate memory for its records.
    ///
    /// # Errors
    /// When the memory would exceed the pool's limit or the range of its class.
    pub fn allocate(&self, len: usize) -> Result<ObjectId, PoolFull> {
        let class = SizeClass::of(len);
        let near = class.index()..NR_CLASSES.min(class.index() + 1 + LARGER_CLASSES);
        let ready = near.map(SizeClass::from_index).find_map(|class| self.place(class, false).ok());
        ready.map_or_else(|| self.place(class, true), Ok)
    }

    /// A place for an object of this class in pages that the pool has.
    ///
    /// # Errors
    /// When there is none.
    pub fn allocate_in_pages(&self, class: SizeClass) -> Result<ObjectId, PoolFull> {
        self.place(class, false)
    }

    /// A place for an object of this class in the pool's pages, or in new ones if `may_grow`.
    fn place(&self, class: SizeClass, may_grow: bool) -> Result<ObjectId, PoolFull> {
        let mut groups = lock(&self.classes[class.index()]);
        let most = Pool::most_groups(self.limit_bytes(), class);
        let index = groups.choose(may_grow, most).ok_or(PoolFull)?;
        let group = &mut groups.groups[index];
        let place = group.taken.trailing_ones() as usize;
        let before = usize::from(group.nr_pages);
        let nr_pages = class.pages_of(place + 1).max(before);
        self.take_pages((nr_pages - before) as u64)?;
        if group.taken == 0 {
            self.nr_empty_pages.fetch_sub(before as u64, Ordering::Relaxed);
        }
        group.nr_pages = nr_pages as u8;
        group.taken |= 1 << place;
        groups.note(class, index);
        self.object_bytes.fetch_add(class.object_bytes() as u64, Ordering::Relaxed);
        Ok(ObjectId { class, index: (index * class.group_objects() + place) as u32 })
    }

    /// Frees an object.
    ///
    /// # Panics
    /// When the object is not allocated.
    pub fn free(&self, object: ObjectId) {
        let class = object.class;
        let (index, place) =
            (object.index as usize / class.group_objects(), object.index as usize % class.group_objects());
        let mut groups = lock(&self.classes[class.index()]);
        let group = &mut groups.groups[index];
        assert!(group.taken & 1 << place != 0, "{object:?} is freed and was not taken");
        group.taken &= !(1 << place);
        if group.taken == 0 {
            self.nr_empty_pages.fetch_add(group.nr_pages.into(), Ordering::Relaxed);
        }
        groups.note(class, index);
        self.object_bytes.fetch_sub(class.object_bytes() as u64, Ordering::Relaxed);
    }

    /// Charges other memory to the pool: whole pages, permanently.
    ///
    /// # Errors
    /// When the limit does not permit it.
    pub fn charge(&self, bytes: usize) -> Result<(), PoolFull> {
        self.take_pages(bytes.div_ceil(PAGE_SIZE) as u64)
    }

    fn take_pages(&self, nr_pages: u64) -> Result<(), PoolFull> {
        if nr_pages == 0 {
            return Ok(());
        }
        let taken = self.nr_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            Some(before + nr_pages).filter(|&pages| pages <= self.limit_pages)
        });
        taken.map(drop).map_err(|_| PoolFull)
    }

    /// Takes up to `most` empty groups out of use until each is passed to [`Pool::gave_back`].
    pub fn take_empty(&self, most: usize) -> Vec<EmptyGroup> {
        let mut taken = Vec::new();
        for class in (0..NR_CLASSES).map(SizeClass::from_index) {
            let mut groups = lock(&self.classes[class.index()]);
            while taken.len() < most
                && let Some(index) = groups.empty.lowest()
            {
                let group = &mut groups.groups[index];
                let nr_pages = group.nr_pages.into();
                group.taken = u64::MAX;
                groups.note(class, index);
                self.nr_empty_pages.fetch_sub(nr_pages as u64, Ordering::Relaxed);
                taken.push(EmptyGroup { class, index, nr_pages });
            }
        }
        taken
    }

    /// Records that the group's memory is gone; the group may be used again.
    pub fn gave_back(&self, group: EmptyGroup) {
        let mut groups = lock(&self.classes[group.class.index()]);
        groups.groups[group.index] = Group::default();
        groups.note(group.class, group.index);
        self.nr_pages.fetch_sub(group.nr_pages as u64, Ordering::Relaxed);
    }

    /// Bytes that it may have.
    pub fn limit_bytes(&self) -> usize {
        self.limit_pages as usize * PAGE_SIZE
    }

    /// Bytes that it has.
    pub fn used_bytes(&self) -> usize {
        self.nr_pages.load(Ordering::Relaxed) as usize * PAGE_SIZE
    }

    /// Bytes of the objects, rounded up to their classes.
    pub fn object_bytes(&self) -> usize {
        self.object_bytes.load(Ordering::Relaxed) as usize
    }

    /// Bytes of groups without objects, which could be given back.
    pub fn empty_bytes(&self) -> usize {
        self.nr_empty_pages.load(Ordering::Relaxed) as usize * PAGE_SIZE
    }
}
