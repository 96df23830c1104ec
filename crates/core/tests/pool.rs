//! The pool against a plain model, and its memory overhead.

mod seeded;

use fastrand::Rng;
use folioswap_core::PAGE_SIZE;
use folioswap_core::pool::{EmptyGroup, MAX_OBJECT_BYTES, ObjectId, Pool, PoolFull, SizeClass};
use std::collections::{HashMap, HashSet};

/// The objects, and how many pages of each group were used.
#[derive(Default)]
struct Model {
    objects: Vec<(ObjectId, usize)>,
    places: HashSet<ObjectId>,
    /// Pages used of each group since its memory was last given back.
    pages: HashMap<(SizeClass, usize), usize>,
}

impl Model {
    fn group(object: ObjectId) -> (SizeClass, usize) {
        (object.class, object.offset_bytes() / object.class.group_bytes())
    }

    fn add(&mut self, object: ObjectId, len: usize) {
        let classes = SizeClass::of(len).index()..SizeClass::of(len).index() + 2;
        assert!(classes.contains(&object.class.index()), "{len} in {object:?}");
        assert!(self.places.insert(object), "{object:?} is there twice");
        let end = object.offset_bytes() % object.class.group_bytes() + object.class.object_bytes();
        let pages = self.pages.entry(Model::group(object)).or_default();
        *pages = (*pages).max(end.div_ceil(PAGE_SIZE));
        self.objects.push((object, len));
    }

    fn is_empty(&self, group: (SizeClass, usize)) -> bool {
        !self.places.iter().any(|&object| Model::group(object) == group)
    }

    fn gave_back(&mut self, group: EmptyGroup) {
        let key = (group.class, group.offset_bytes() / group.class.group_bytes());
        assert!(self.is_empty(key));
        assert_eq!(self.pages.remove(&key).unwrap() * PAGE_SIZE, group.len_bytes());
    }

    /// Whether an object of this class would fit into pages that the pool has.
    fn has_place(&self, class: SizeClass) -> bool {
        let nr_objects = class.group_objects();
        let fits = |group: usize, pages: usize, place: usize| {
            let object = ObjectId { class, index: (group * nr_objects + place) as u32 };
            !self.places.contains(&object) && (place + 1) * class.object_bytes() <= pages * PAGE_SIZE
        };
        let groups = self.pages.iter().filter(|((of, _), _)| *of == class);
        groups.into_iter().any(|(&(_, group), &pages)| (0..nr_objects).any(|place| fits(group, pages, place)))
    }

    fn check(&self, pool: &Pool) {
        assert_eq!(pool.object_bytes(), self.places.iter().map(|object| object.class.object_bytes()).sum::<usize>());
        assert_eq!(pool.used_bytes(), self.pages.values().sum::<usize>() * PAGE_SIZE);
        let used: HashSet<_> = self.places.iter().copied().map(Model::group).collect();
        let empty = self.pages.iter().filter(|(group, _)| !used.contains(group));
        assert_eq!(pool.empty_bytes(), empty.map(|(_, pages)| pages).sum::<usize>() * PAGE_SIZE);
    }
}

fn one_run(seed: u64) {
    let _seed = seeded::Seed(seed);
    let mut random = seeded::rng(seed);
    let limit = 1 << (20 + random.usize(..4));
    let pool = Pool::new(limit);
    let mut model = Model::default();
    let largest = [200, 5000, MAX_OBJECT_BYTES][random.usize(..3)];
    for step in 0..2000 {
        let grows = random.usize(..100) < if step % 1000 < 500 { 70 } else { 25 };
        if grows {
            let len = 1 + random.usize(..largest);
            match pool.allocate(len) {
                Ok(object) => {
                    assert!(object.offset_bytes() + len <= Pool::range_bytes(limit, object.class));
                    model.add(object, len);
                }
                Err(PoolFull) => {
                    let pages = SizeClass::of(len).object_bytes().div_ceil(PAGE_SIZE) + 1;
                    let left = limit - pool.used_bytes();
                    assert!(left < pages * PAGE_SIZE, "{left} bytes are left, and {len} found no place");
                    assert!(!model.has_place(SizeClass::of(len)), "there is a place for {len} in pages that are there");
                }
            }
        } else if !model.objects.is_empty() {
            let (object, _) = model.objects.swap_remove(random.usize(..model.objects.len()));
            model.places.remove(&object);
            pool.free(object);
        }
        if random.usize(..100) == 0 {
            let groups = pool.take_empty(1 + random.usize(..5));
            assert!(groups.len() < 6);
            for group in groups {
                model.gave_back(group);
                pool.gave_back(group);
            }
        }
        assert!(pool.used_bytes() <= limit);
        if step % 50 == 0 {
            model.check(&pool);
        }
    }
    model.check(&pool);
    for (object, _) in model.objects.drain(..) {
        pool.free(object);
    }
    assert_eq!(pool.empty_bytes(), pool.used_bytes());
    pool.take_empty(usize::MAX).into_iter().for_each(|group| pool.gave_back(group));
    assert_eq!((pool.used_bytes(), pool.empty_bytes()), (0, 0));
}

#[test]
fn it_does_what_the_model_does() {
    for seed in 0..60 {
        let run = std::panic::catch_unwind(|| one_run(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}

/// The share of the memory that objects do not use, after many frees and allocations.
fn waste(seed: u64, bytes: usize, mut len: impl FnMut(&mut Rng) -> usize) -> f64 {
    let pool = Pool::new(2 * bytes);
    let mut random = seeded::rng(seed);
    let mut objects = Vec::new();
    let mut held = 0;
    while held < bytes {
        let len = len(&mut random);
        objects.push((pool.allocate(len).unwrap(), len));
        held += len;
    }
    for _ in 0..4 * objects.len() {
        let at = random.usize(..objects.len());
        pool.free(objects[at].0);
        let len = len(&mut random);
        held = held - objects[at].1 + len;
        objects[at] = (pool.allocate(len).unwrap(), len);
    }
    1.0 - held as f64 / pool.used_bytes() as f64
}

#[test]
fn little_is_wasted_after_much_has_come_and_gone() {
    // Pages that compress to about a third; pieces of 32 and 64 KiB; badly and well compressible pages mixed.
    let pages = waste(1, 64 << 20, |random| 900 + random.usize(..900));
    let pieces = waste(2, 64 << 20, |random| 12_000 + random.usize(..20_000));
    let uneven = waste(3, 64 << 20, |random| if random.usize(..4) == 0 { 4096 } else { 64 + random.usize(..300) });
    // Objects of all sizes, few of each: the waste shrinks with the amount of memory.
    let any = waste(4, 512 << 20, |random| 1 + random.usize(..MAX_OBJECT_BYTES));
    for (what, waste) in [("pages", pages), ("pieces", pieces), ("uneven", uneven), ("any", any)] {
        println!("{what}: {:.1} % wasted", 100.0 * waste);
        assert!(waste <= 0.12, "{what}: {waste}");
    }
}

#[test]
fn what_counts_as_its_own_is_missing_to_objects() {
    let pool = Pool::new(64 << 10);
    pool.charge(60 << 10).unwrap();
    let object = pool.allocate(4096).unwrap();
    assert_eq!(pool.allocate(4096), Err(PoolFull));
    assert_eq!(pool.charge(1), Err(PoolFull));
    pool.free(object);
    assert_eq!(pool.allocate(64), Err(PoolFull), "the memory is of another class");
    let empty = pool.take_empty(1);
    assert_eq!((empty.len(), pool.allocate(64)), (1, Err(PoolFull)), "and still taken");
    empty.into_iter().for_each(|group| pool.gave_back(group));
    assert!(pool.allocate(64).is_ok());
}

#[test]
#[should_panic(expected = "was not taken")]
fn what_is_not_there_is_not_freed() {
    let pool = Pool::new(1 << 20);
    let object = pool.allocate(100).unwrap();
    pool.free(object);
    pool.free(object);
}
