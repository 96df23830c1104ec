//! A pool of memory for objects of any length up to 64 KiB, as compressed folios are.
//!
//! It says where objects lie and how much memory that takes; the memory is its owner's. Objects are rounded up to one of a few sizes
//! ([`SizeClass`]), and those of a size lie in groups of whole pages, each class in a range of addresses of its own. An object is put
//! into the lowest place that is free, of its own class or the next, so what is freed at random is filled again before more memory is
//! taken.
//!
//! Memory is taken page by page as a group fills for the first time, and kept when objects go: taking it anew costs a fault
//! each page. A group without objects is *empty*; its memory is given back when the owner asks for such groups ([`Pool::take_empty`]).
//!
//! **Invariants.** The pages taken are those that the objects of each group have reached since it had none, and what was charged;
//! never more than the limit. A group that is being given back has no place for an object.
//!
//! **Locking.** A mutex for each class, a leaf, held for a few operations on bits; one search of bits may be as long as
//! the class has groups, divided by 4096. The counts are read without.

mod class;

pub use class::{MAX_OBJECT_BYTES, NR_CLASSES, SizeClass};

use crate::order::PAGE_SIZE;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Classes above its own in which an object is put rather than into new pages. With 1 it is wasted least (`tests/pool.rs`).
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
    #[must_use]
    pub const fn offset_bytes(self) -> usize {
        self.index as usize * self.class.object_bytes()
    }
}

/// A group without objects whose memory is to be given back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct EmptyGroup {
    /// Of which objects.
    pub class: SizeClass,
    index: usize,
    nr_pages: usize,
}

impl EmptyGroup {
    /// Bytes before it in the range of its class.
    #[must_use]
    pub const fn offset_bytes(self) -> usize {
        self.index * self.class.group_bytes()
    }

    /// Bytes of it that were used, from its start.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        self.nr_pages * PAGE_SIZE
    }
}

/// There is no memory for it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PoolFull;

/// Which of many have something, and the lowest of them.
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
    /// A bit for each object that is there; all of them while its memory is given back.
    taken: u64,
    /// Pages from its start that have been used.
    nr_pages: u8,
}

/// The objects of a class.
#[derive(Default)]
struct Groups {
    groups: Vec<Group>,
    /// Those with a free place in pages that they have.
    ready: Bits,
    /// Those with any free place.
    roomy: Bits,
    /// Those that have pages and no object.
    empty: Bits,
}

impl Groups {
    /// A group with a free place, the lowest of those whose pages are there already; another one of at most `most` if it may get some.
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

    /// Writes down what a group has become.
    fn note(&mut self, class: SizeClass, index: usize) {
        let group = self.groups[index];
        let place = group.taken.trailing_ones() as usize;
        let is_roomy = place < class.group_objects();
        self.roomy.put(index, is_roomy);
        self.ready.put(index, is_roomy && class.pages_of(place + 1) <= group.nr_pages.into());
        self.empty.put(index, group.taken == 0 && group.nr_pages > 0);
    }
}

/// See the module. Every call is safe from any thread.
pub struct Pool {
    classes: Box<[Mutex<Groups>]>,
    limit_pages: u64,
    /// Pages that it has.
    nr_pages: AtomicU64,
    /// Of them, those of groups without objects.
    nr_empty_pages: AtomicU64,
    /// Bytes of the objects that are there, each as large as its class.
    object_bytes: AtomicU64,
}

impl Pool {
    /// For so many bytes of memory.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Pool {
        Pool {
            classes: (0..NR_CLASSES).map(|_| Mutex::new(Groups::default())).collect(),
            limit_pages: (limit_bytes / PAGE_SIZE) as u64,
            nr_pages: AtomicU64::new(0),
            nr_empty_pages: AtomicU64::new(0),
            object_bytes: AtomicU64::new(0),
        }
    }

    /// Groups that a class has at most: twice as many as would fill the pool. (One of which most is free has few pages.)
    const fn most_groups(limit_bytes: usize, class: SizeClass) -> usize {
        2 * limit_bytes.div_ceil(class.group_bytes()) + 1
    }

    /// The range of addresses that the objects of a class need in a pool of so many bytes.
    #[must_use]
    pub const fn range_bytes(limit_bytes: usize, class: SizeClass) -> usize {
        Pool::most_groups(limit_bytes, class) * class.group_bytes()
    }

    /// A place for an object of this length: where there is memory already, if need be as an object of a size a little larger, else
    /// in new pages. May allocate memory for its records.
    ///
    /// # Errors
    /// When the memory that it takes would be more than the pool may have, or lie out of the range of its class.
    pub fn allocate(&self, len: usize) -> Result<ObjectId, PoolFull> {
        let class = SizeClass::of(len);
        let near = class.index()..NR_CLASSES.min(class.index() + 1 + LARGER_CLASSES);
        let ready = near.map(SizeClass::from_index).find_map(|class| self.place(class, false).ok());
        ready.map_or_else(|| self.place(class, true), Ok)
    }

    /// A place for an object of this class, if there is one in pages that the pool has, or can get.
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

    /// Ends an object.
    ///
    /// # Panics
    /// When there is none.
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

    /// Takes memory for something else that counts as the pool's: whole pages, for good.
    ///
    /// # Errors
    /// When there is not so much.
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

    /// Takes out up to `most` groups without objects: nothing is put there until each has been passed to [`Pool::gave_back`].
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

    /// The group's memory is gone; it may be used again.
    pub fn gave_back(&self, group: EmptyGroup) {
        let mut groups = lock(&self.classes[group.class.index()]);
        groups.groups[group.index] = Group::default();
        groups.note(group.class, group.index);
        self.nr_pages.fetch_sub(group.nr_pages as u64, Ordering::Relaxed);
    }

    /// Bytes that it may have.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_pages as usize * PAGE_SIZE
    }

    /// Bytes that it has.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.nr_pages.load(Ordering::Relaxed) as usize * PAGE_SIZE
    }

    /// Bytes of the objects that are there, rounded up to their sizes.
    #[must_use]
    pub fn object_bytes(&self) -> usize {
        self.object_bytes.load(Ordering::Relaxed) as usize
    }

    /// Bytes of groups without objects, which it has and could give back.
    #[must_use]
    pub fn empty_bytes(&self) -> usize {
        self.nr_empty_pages.load(Ordering::Relaxed) as usize * PAGE_SIZE
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("used_bytes", &self.used_bytes())
            .field("limit_bytes", &self.limit_bytes())
            .finish()
    }
}
