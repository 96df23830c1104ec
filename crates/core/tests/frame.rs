//! The zone with mixed orders against a plain model that knows the state of every frame, on random sequences of calls.
//! A failure prints its seed.
#![cfg(not(loom))]

mod seeded;

use fastrand::Rng;
use folioswap_core::frame::{List, ListCounts, Memory, Oldest, Size, Taken, Watermarks, Zone, ZoneCounts};
use folioswap_core::{CpuId, FolioId, FrameId, MAX_ORDER, Order, PIECE};
use seeded::Seed;
use std::collections::{BTreeMap, VecDeque};

const NR_BLOCKS: usize = 7;
const NR_CPUS: usize = 2;
const BLOCK: usize = 512;
const LISTS: [List; 4] = [List::Active, List::Inactive, List::Laundry, List::Clean];

fn order(k: usize) -> Order {
    Order::new(k as u8).unwrap()
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum At {
    Free,
    Taken,
    Isolated,
    Leaving,
    /// On a CPU's list.
    Listed,
}

/// The orders for which CPUs have lists.
const LISTED: [Order; 2] = [Order::PAGE, PIECE];

#[derive(Copy, Clone, Debug)]
struct Folio {
    order: Order,
    owner: Option<u64>,
    list: Option<List>,
}

/// A zone without links and counters: the state of every frame, and queues with the oldest in front.
struct Model {
    limit: usize,
    largest_limit: usize,
    memory: [Memory; NR_BLOCKS],
    frames: Vec<At>,
    folios: BTreeMap<u32, Folio>,
    /// Parts of isolated runs.
    isolated: Vec<(u32, Order)>,
    /// Frames on each CPU's list of each order, the most recent last.
    listed: [[Vec<u32>; 2]; NR_CPUS],
    /// The greatest length of a list of each order, and how often frames came from one.
    longest: [usize; 2],
    nr_from_lists: [usize; 2],
    /// Heads and their stamps.
    lists: [[VecDeque<(u32, u64)>; 4]; 2],
    clock: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            limit: 0,
            largest_limit: 0,
            memory: [Memory::Absent; NR_BLOCKS],
            frames: vec![At::Free; NR_BLOCKS * BLOCK],
            folios: BTreeMap::new(),
            isolated: Vec::new(),
            listed: Default::default(),
            longest: [0; 2],
            nr_from_lists: [0; 2],
            lists: Default::default(),
            clock: 0,
        }
    }

    fn count(&self, at: At) -> usize {
        let has_memory = |frame: usize| self.memory[frame / BLOCK] != Memory::Absent;
        (0..self.frames.len()).filter(|&frame| self.frames[frame] == at && has_memory(frame)).count()
    }

    fn populated(&self) -> usize {
        self.memory.iter().filter(|&&memory| memory != Memory::Absent).count() * BLOCK
    }

    fn absent(&self) -> usize {
        self.limit.saturating_sub(self.populated())
    }

    fn free(&self) -> usize {
        self.limit
            .saturating_sub(self.count(At::Taken) + self.count(At::Isolated))
            .min(self.count(At::Free) + self.count(At::Listed) + self.absent())
    }

    fn surplus(&self) -> usize {
        (self.populated() - self.count(At::Leaving)).saturating_sub(self.limit)
    }

    /// The largest aligned free runs, by order, of pageblocks with this memory.
    fn runs(&self, memory: Memory) -> Vec<Vec<u32>> {
        let mut found = vec![Vec::new(); MAX_ORDER as usize + 1];
        for block in (0..NR_BLOCKS).filter(|&block| self.memory[block] == memory) {
            self.runs_within(block * BLOCK, MAX_ORDER as usize, &mut found);
        }
        found
    }

    fn runs_within(&self, start: usize, k: usize, found: &mut Vec<Vec<u32>>) {
        if self.frames[start..start + (1 << k)].iter().all(|&at| at == At::Free) {
            found[k].push(start as u32);
        } else if k > 0 {
            self.runs_within(start, k - 1, found);
            self.runs_within(start + (1 << (k - 1)), k - 1, found);
        }
    }

    fn free_runs(&self, order: Order) -> usize {
        let of = |memory| self.runs(memory)[order.exponent() as usize..].iter().map(Vec::len).sum::<usize>();
        of(Memory::Small) + of(Memory::Huge) + self.absent() / BLOCK
    }

    /// What a take may return: the order, the memory, and the heads of all equally good runs.
    fn candidates(&self, order: Order, reserve: usize) -> Option<(Order, Memory, Vec<u32>)> {
        if self.free() < reserve + order.nr_pages() {
            return None;
        }
        let whole = |memory: Memory| {
            let allowed = memory != Memory::Absent || self.absent() > 0;
            let heads = self.runs(memory).swap_remove(MAX_ORDER as usize);
            (allowed && !heads.is_empty()).then_some((Order::HUGE, memory, heads))
        };
        if order == Order::HUGE {
            return [Memory::Huge, Memory::Absent, Memory::Small].into_iter().find_map(whole);
        }
        let parts = self.runs(Memory::Small).into_iter().skip(order.exponent() as usize);
        let best = parts.filter(|heads| !heads.is_empty()).map(|heads| (order, Memory::Small, heads)).next();
        best.or_else(|| [Memory::Absent, Memory::Huge].into_iter().find_map(whole))
    }

    /// The same without the frames on CPU lists.
    fn candidates_beside_lists(&self, order: Order, reserve: usize) -> Option<(Order, Memory, Vec<u32>)> {
        let left = self.limit.saturating_sub(self.populated() - self.count(At::Free) - self.count(At::Leaving));
        let free = left.min(self.count(At::Free) + self.absent());
        if free < reserve + order.nr_pages() { None } else { self.candidates(order, reserve) }
    }

    fn mark(&mut self, head: u32, order: Order, at: At) {
        self.frames[head as usize..head as usize + order.nr_pages()].fill(at);
    }

    fn took(&mut self, head: u32, order: Order) {
        assert!(self.frames[head as usize..head as usize + order.nr_pages()].iter().all(|&at| at == At::Free));
        self.mark(head, order, At::Taken);
        if order == Order::HUGE {
            self.memory[head as usize / BLOCK] = Memory::Huge;
        }
        self.folios.insert(head, Folio { order, owner: None, list: None });
    }

    fn carve(&mut self, head: u32, order: Order) {
        self.mark(head, Order::HUGE, At::Free);
        self.mark(head, order, At::Taken);
        self.memory[head as usize / BLOCK] = Memory::Small;
        self.folios.get_mut(&head).unwrap().order = order;
    }

    fn queue(&mut self, order: Order, list: List) -> &mut VecDeque<(u32, u64)> {
        &mut self.lists[Size::of(order) as usize][list as usize]
    }

    fn remove(&mut self, head: u32) -> Option<List> {
        let Folio { order, list, .. } = self.folios[&head];
        self.queue(order, list?).retain(|&(at, _)| at != head);
        self.folios.get_mut(&head).unwrap().list = None;
        list
    }

    fn insert(&mut self, head: u32, list: List) {
        self.remove(head);
        let order = self.folios[&head].order;
        self.clock += order.nr_pages() as u64;
        let stamp = self.clock;
        self.queue(order, list).push_back((head, stamp));
        self.folios.get_mut(&head).unwrap().list = Some(list);
    }

    fn insert_tail(&mut self, head: u32, list: List) {
        self.remove(head);
        let order = self.folios[&head].order;
        let stamps = self.lists.iter().filter_map(|class| class[list as usize].front()).map(|&(_, stamp)| stamp);
        let stamp = stamps.min().unwrap_or(self.clock);
        self.queue(order, list).push_front((head, stamp));
        self.folios.get_mut(&head).unwrap().list = Some(list);
    }

    fn disown(&mut self, head: u32) {
        self.remove(head);
        self.folios.get_mut(&head).unwrap().owner = None;
    }

    fn give(&mut self, head: u32) {
        self.remove(head);
        let order = self.folios.remove(&head).unwrap().order;
        self.mark(head, order, At::Free);
    }

    fn give_unpopulated(&mut self, head: u32) {
        if self.folios.contains_key(&head) {
            self.give(head);
        }
        self.mark(head, Order::HUGE, At::Free);
        self.memory[head as usize / BLOCK] = Memory::Absent;
    }

    fn split(&mut self, head: u32, order: Order) {
        let whole = self.folios[&head];
        let place = whole.list.map(|list| {
            let queue = self.queue(whole.order, list);
            let at = queue.iter().position(|&(at, _)| at == head).unwrap();
            (list, at, queue.remove(at).unwrap().1)
        });
        self.memory[head as usize / BLOCK] = Memory::Small;
        let parts = (0..whole.order.nr_pages() as u32).step_by(order.nr_pages());
        for at in parts.clone() {
            let owner = whole.owner.map(|owner| owner + u64::from(at));
            self.folios.insert(head + at, Folio { order, owner, list: whole.list });
        }
        let Some((list, mut index, stamp)) = place else { return };
        if whole.order == Order::HUGE {
            let queue = self.queue(order, list);
            if queue.front().is_some_and(|&(_, oldest)| oldest < stamp) {
                for at in parts {
                    self.clock += order.nr_pages() as u64;
                    let stamp = self.clock;
                    self.queue(order, list).push_back((head + at, stamp));
                }
                return;
            }
            index = 0;
        }
        for (nr, at) in parts.enumerate() {
            self.queue(order, list).insert(index + nr, (head + at, stamp));
        }
    }

    /// Follows the CPU lists of the zone. A head that left a list is free, unless a take marked it; a new head was free
    /// before, or was just given.
    fn follow_lists(&mut self, zone: &Zone) {
        for (cpu, class) in (0..NR_CPUS).flat_map(|cpu| [(cpu, 0), (cpu, 1)]) {
            let order = LISTED[class];
            let now: Vec<_> = zone.listed_on(CpuId::from_index(cpu), order).into_iter().map(FrameId::get).collect();
            let before = std::mem::replace(&mut self.listed[cpu][class], now.clone());
            self.longest[class] = self.longest[class].max(now.len());
            self.nr_from_lists[class] += usize::from(now.len() + 1 == before.len());
            for &head in before.iter().filter(|head| !now.contains(head)) {
                if self.frames[head as usize] == At::Listed {
                    self.mark(head, order, At::Free);
                }
            }
            for &head in now.iter().filter(|head| !before.contains(head)) {
                assert_eq!(self.memory[head as usize / BLOCK], Memory::Small);
                assert!(self.frames[head as usize..][..order.nr_pages()].iter().all(|&at| at == At::Free));
                self.mark(head, order, At::Listed);
            }
        }
    }

    /// Empties all lists.
    fn drained(&mut self) {
        for (cpu, class) in (0..NR_CPUS).flat_map(|cpu| [(cpu, 0), (cpu, 1)]) {
            for head in std::mem::take(&mut self.listed[cpu][class]) {
                self.mark(head, LISTED[class], At::Free);
            }
        }
    }

    /// The runs of a pageblock that may be isolated, by their first frames.
    fn isolatable(&self, block: usize) -> BTreeMap<u32, Order> {
        let in_use = self.frames[block * BLOCK..][..BLOCK].iter().any(|at| matches!(at, At::Taken | At::Listed));
        if self.memory[block] != Memory::Small || !in_use {
            return BTreeMap::new();
        }
        let mut runs = vec![Vec::new(); MAX_ORDER as usize + 1];
        self.runs_within(block * BLOCK, MAX_ORDER as usize, &mut runs);
        runs.iter().enumerate().flat_map(|(k, heads)| heads.iter().map(move |&head| (head, order(k)))).collect()
    }

    fn may_isolate(&self, order: Order) -> bool {
        let in_use = self.count(At::Taken) + self.count(At::Isolated) + self.count(At::Listed);
        in_use + order.nr_pages() <= self.limit
    }

    fn isolate(&mut self, head: u32, order: Order) {
        assert!(self.may_isolate(order), "the limit holds");
        assert!(self.frames[head as usize..][..order.nr_pages()].iter().all(|&at| at == At::Free));
        self.mark(head, order, At::Isolated);
        self.isolated.push((head, order));
    }

    /// A random aligned part of an isolated run, of at least the wanted order; the rest stays isolated.
    fn part(&mut self, random: &mut Rng, wanted: Option<Order>) -> Option<(u32, Order)> {
        let large = |&at: &usize| wanted.is_none_or(|wanted| self.isolated[at].1 >= wanted);
        let found: Vec<_> = (0..self.isolated.len()).filter(large).collect();
        let &at = found.get(random.usize(..found.len().max(1)))?;
        let (mut head, whole) = self.isolated.swap_remove(at);
        let part = wanted.unwrap_or_else(|| order(random.usize(..whole.exponent() as usize + 1)));
        for k in (part.exponent()..whole.exponent()).rev() {
            let halves = [head, head + (1 << k)];
            let used = random.usize(..2);
            self.isolated.push((halves[1 - used], order(k as usize)));
            head = halves[used];
        }
        Some((head, part))
    }

    /// Moves the folio at `from` to `to`, in the same place of its list; `from` then has no owner.
    fn occupy(&mut self, to: u32, from: u32) {
        let folio = self.folios[&from];
        if let Some(list) = folio.list {
            let queue = self.queue(folio.order, list);
            queue.iter_mut().find(|(head, _)| *head == from).unwrap().0 = to;
        }
        self.mark(to, folio.order, At::Taken);
        self.folios.insert(to, folio);
        self.folios.insert(from, Folio { order: folio.order, owner: None, list: None });
    }

    fn balance(&mut self, size: Size) {
        loop {
            let [active, inactive, ..] = &self.lists[size as usize];
            if inactive.len() >= (active.len() + inactive.len()).div_ceil(3) {
                return;
            }
            let head = active[0].0;
            self.insert(head, List::Inactive);
        }
    }

    fn list_counts(&self, size: Size) -> ListCounts {
        let of = |list: List| {
            let queue = &self.lists[size as usize][list as usize];
            queue.iter().map(|(head, _)| self.folios[head].order.nr_pages()).sum()
        };
        let [active, inactive, laundry, clean] = LISTS.map(of);
        ListCounts { active, inactive, laundry, clean }
    }

    fn oldest(&self, size: Size, list: List) -> Option<Oldest> {
        let &(head, stamp) = self.lists[size as usize][list as usize].front()?;
        let Folio { order, owner, .. } = self.folios[&head];
        let folio = FolioId::new(owner.unwrap());
        Some(Oldest { frame: FrameId::new(head), folio, order, age: (self.clock - stamp) as u32 })
    }

    fn emptiest(&self) -> Option<usize> {
        let taken = |block: usize| {
            self.frames[block * BLOCK..][..BLOCK].iter().filter(|at| matches!(at, At::Taken | At::Listed)).count()
        };
        let whole = |block: usize| self.folios.get(&((block * BLOCK) as u32)).is_some_and(|f| f.order == Order::HUGE);
        let small = (0..NR_BLOCKS).filter(|&block| self.memory[block] == Memory::Small && !whole(block));
        small.map(taken).filter(|&nr_taken| nr_taken > 0).min()
    }

    fn owned(&self) -> Vec<(FrameId, FolioId, Order)> {
        let owned = self.folios.iter().filter_map(|(&head, folio)| Some((head, folio.owner?, folio.order)));
        owned.map(|(head, owner, order)| (FrameId::new(head), FolioId::new(owner), order)).collect()
    }
}

fn compare(zone: &Zone, model: &Model) {
    zone.verify();
    for (cpu, class) in (0..NR_CPUS).flat_map(|cpu| [(cpu, 0), (cpu, 1)]) {
        let listed = zone.listed_on(CpuId::from_index(cpu), LISTED[class]);
        assert!(listed.iter().map(|frame| frame.get()).eq(model.listed[cpu][class].iter().copied()), "the lists");
    }
    let [whole, small] = Size::ALL.map(|size| model.list_counts(size));
    let lists = ListCounts {
        active: whole.active + small.active,
        inactive: whole.inactive + small.inactive,
        laundry: whole.laundry + small.laundry,
        clean: whole.clean + small.clean,
    };
    let in_use = model.count(At::Taken);
    let needs_little = small.in_use().min(model.limit) * 7 / 8;
    let expected = ZoneCounts {
        free: model.free(),
        lists,
        small,
        in_use,
        isolated: model.count(At::Isolated),
        limit: model.limit,
        excess: in_use.saturating_sub(model.limit),
        populated: model.populated(),
        surplus: model.surplus(),
        kept_whole: 0,
        watermarks: Watermarks::for_pageblocks((model.limit - needs_little) / BLOCK).with_small(needs_little),
    };
    assert_eq!(zone.counts(), expected);
    assert!(zone.pageblocks().nr_used() * BLOCK <= model.largest_limit, "a new pageblock is used last");
    for (size, list) in Size::ALL.into_iter().flat_map(|size| LISTS.map(|list| (size, list))) {
        assert_eq!(zone.oldest(size, list), model.oldest(size, list), "{size:?} {list:?}");
    }
    for k in 0..=MAX_ORDER as usize {
        assert_eq!(zone.free_runs(order(k)), model.free_runs(order(k)), "free runs of order {k}");
    }
    for frame in 0..model.frames.len() as u32 {
        let (id, folio) = (FrameId::new(frame), model.folios.get(&frame));
        assert_eq!(zone.order(id), folio.map(|folio| folio.order), "the order of frame {frame}");
        assert_eq!(zone.owner(id).map(FolioId::get), folio.and_then(|folio| folio.owner), "the owner of {frame}");
        assert_eq!(zone.list(id), folio.and_then(|folio| folio.list), "the list of frame {frame}");
    }
    let emptiest = zone.pageblocks().emptiest();
    let nr_taken = emptiest.map(|block| {
        assert_eq!(model.memory[block.index() / BLOCK], Memory::Small);
        model.frames[block.index()..][..BLOCK].iter().filter(|at| matches!(at, At::Taken | At::Listed)).count()
    });
    assert_eq!(nr_taken, model.emptiest());
    assert_eq!(zone.pageblocks().all_folios().collect::<Vec<_>>(), model.owned());
    let mut by_block = Vec::new();
    for block in 0..NR_BLOCKS {
        // The callback runs without the lock, so it may use the zone.
        zone.pageblocks().folios_in(FrameId::from_index(block * BLOCK), &mut |frame, folio, order| {
            assert_eq!(zone.order(frame), Some(order));
            by_block.push((frame, folio, order));
        });
    }
    assert_eq!(by_block, model.owned());
}

fn pick(model: &Model, random: &mut Rng, wanted: impl Fn(&Folio) -> bool) -> Option<(FrameId, Folio)> {
    let found: Vec<_> = model.folios.iter().filter(|(_, folio)| wanted(folio)).collect();
    let &(&head, &folio) = found.get(random.usize(..found.len().max(1)))?;
    Some((FrameId::new(head), folio))
}

fn take(zone: &Zone, model: &mut Model, random: &mut Rng) {
    let k = [0, 0, 0, 9, random.usize(..10), random.usize(..10)][random.usize(..6)];
    let reserve = [0, 0, random.usize(..NR_BLOCKS * BLOCK)][random.usize(..3)];
    let (taken, mut expected) = (zone.take(order(k), reserve), None);
    for drains in [false, true] {
        if drains && expected.is_none() {
            model.drained();
        }
        expected = expected.or_else(|| model.candidates_beside_lists(order(k), reserve));
    }
    let Some(Taken { frame, order: got, memory }) = taken else {
        assert!(expected.is_none(), "order {k} could be had: {expected:?}");
        return;
    };
    let (best, kind, heads) = expected.expect("the model has no frames");
    assert_eq!((got, memory), (best, kind));
    assert!(heads.contains(&frame.get()), "{frame:?} is none of {heads:?}");
    model.took(frame.get(), got);
    if (k as u8) < MAX_ORDER && got == Order::HUGE && random.usize(..4) > 0 {
        assert_eq!(zone.carve(frame, order(k)), frame);
        model.carve(frame.get(), order(k));
    }
}

/// The same on a CPU.
fn take_on(zone: &Zone, model: &mut Model, random: &mut Rng, (cpu, class): (usize, usize)) -> Option<FrameId> {
    let (id, order) = (CpuId::from_index(cpu), LISTED[class]);
    let last = model.listed[cpu][class].last().copied();
    if random.usize(..2) == 0 {
        assert_eq!(zone.take_listed(id, order).map(|taken| taken.frame.get()), last);
        model.mark(last?, order, At::Free);
        model.took(last?, order);
        model.follow_lists(zone);
        return last.map(FrameId::new);
    }
    let taken = zone.take_on(id, order);
    let expected = match last {
        Some(head) => {
            model.mark(head, order, At::Free);
            Some((order, Memory::Small, vec![head]))
        }
        None => model.candidates_beside_lists(order, 0).or_else(|| {
            model.drained();
            model.candidates(order, 0)
        }),
    };
    assert_eq!(taken.is_some(), expected.is_some());
    let (taken, (best, kind, heads)) = (taken?, expected?);
    assert_eq!((taken.order, taken.memory), (best, kind));
    assert!(heads.contains(&taken.frame.get()), "{taken:?} is none of {heads:?}");
    model.took(taken.frame.get(), taken.order);
    model.follow_lists(zone);
    if taken.order == Order::HUGE {
        zone.carve(taken.frame, order);
        model.carve(taken.frame.get(), order);
    }
    Some(taken.frame)
}

fn give_on(zone: &Zone, model: &mut Model, cpu: usize, frame: FrameId) {
    zone.give_on(CpuId::from_index(cpu), frame);
    model.give(frame.get());
    model.follow_lists(zone);
}

/// One CPU takes frames; another or the same gives them back, most of them without having had an owner.
fn burst(zone: &Zone, model: &mut Model, random: &mut Rng) {
    let (from, to, class) = (random.usize(..NR_CPUS), random.usize(..NR_CPUS), random.usize(..2));
    let frames: Vec<_> = (0..random.usize(..50)).filter_map(|_| take_on(zone, model, random, (from, class))).collect();
    for frame in frames {
        if random.usize(..8) == 0 {
            zone.set_owner(frame, FolioId::new(512));
            zone.insert(frame, List::Active);
            model.folios.get_mut(&frame.get()).unwrap().owner = Some(512);
            model.insert(frame.get(), List::Active);
        }
        give_on(zone, model, to, frame);
    }
}

/// One call that needs no folio, or changes the limit.
fn whole_zone_call(zone: &Zone, model: &mut Model, random: &mut Rng) {
    match random.usize(..9) {
        7..=8 => burst(zone, model, random),
        5 => {
            zone.drain();
            model.drained();
        }
        6 if random.usize(..4) == 0 => {
            let paused = zone.pause_cpus();
            model.drained();
            for _ in 0..4 {
                burst(zone, model, random);
                folio_call(zone, model, random);
                compare(zone, model);
            }
            drop(paused);
        }
        0 if random.usize(..2) == 0 => {
            let nr_frames = random.usize(..NR_BLOCKS * BLOCK + 1).max(random.usize(..NR_BLOCKS * BLOCK + 1));
            zone.set_limit(nr_frames);
            model.limit = nr_frames / BLOCK * BLOCK;
            model.largest_limit = model.largest_limit.max(model.limit);
            model.drained();
        }
        1 => {
            let size = Size::ALL[random.usize(..2)];
            zone.balance(size);
            model.balance(size);
        }
        2 => {
            // Wholly free pageblocks would be rare otherwise.
            let block = random.usize(..NR_BLOCKS);
            let within = |head: &u32| *head as usize / BLOCK == block;
            for head in model.folios.keys().copied().filter(within).collect::<Vec<_>>() {
                zone.give(FrameId::new(head));
                model.give(head);
            }
        }
        _ => {
            let whole = [Memory::Small, Memory::Huge].into_iter().find_map(|memory| {
                let heads = model.runs(memory).swap_remove(MAX_ORDER as usize);
                (model.surplus() > 0 && !heads.is_empty()).then_some(heads)
            });
            let found = zone.pageblocks().take_surplus();
            assert_eq!(found.is_some(), whole.is_some());
            let Some(frame) = found else { return };
            assert!(whole.unwrap().contains(&frame.get()));
            model.mark(frame.get(), Order::HUGE, At::Leaving);
        }
    }
}

/// One call on a taken folio or a leaving pageblock.
fn folio_call(zone: &Zone, model: &mut Model, random: &mut Rng) {
    let list = LISTS[random.usize(..4)];
    let call = random.usize(..16);
    if call == 0 {
        let leaving = (0..NR_BLOCKS).find(|&block| model.frames[block * BLOCK] == At::Leaving);
        let head = leaving.map(|block| FrameId::from_index(block * BLOCK));
        let whole = || pick(model, random, |folio| folio.order == Order::HUGE).map(|(frame, _)| frame);
        if let Some(frame) = head.or_else(whole) {
            zone.pageblocks().give_unpopulated(frame);
            model.give_unpopulated(frame.get());
        }
        return;
    }
    if call == 1 {
        let whole = |folio: &Folio| folio.order == Order::HUGE && folio.list.is_none();
        if let Some((frame, _)) = pick(model, random, whole) {
            let part = order(random.usize(..10));
            zone.carve(frame, part);
            model.carve(frame.get(), part);
        }
        return;
    }
    let Some((frame, folio)) = pick(model, random, |_| true) else { return };
    let head = frame.get();
    match call {
        2 => {
            zone.give(frame);
            model.give(head);
        }
        3 => {
            give_on(zone, model, random.usize(..NR_CPUS + 1), frame);
        }
        4 if folio.order > Order::PAGE => {
            let part = order(random.usize(..folio.order.exponent() as usize));
            zone.split(frame, part);
            model.split(head, part);
        }
        4..=5 => {
            zone.disown(frame);
            model.disown(head);
        }
        6 => assert_eq!(zone.remove(frame), model.remove(head)),
        7 => {
            zone.rotate(frame, list);
            if folio.list == Some(list) {
                model.insert(head, list);
            }
        }
        _ => {
            if folio.owner.is_none() || call == 8 {
                let owner = random.usize(..1 << 25) as u64 * 512;
                zone.set_owner(frame, FolioId::new(owner));
                model.folios.get_mut(&head).unwrap().owner = Some(owner);
            }
            if call == 9 {
                zone.insert_tail(frame, list);
                model.insert_tail(head, list);
            } else if call > 9 {
                zone.insert(frame, list);
                model.insert(head, list);
            }
        }
    }
}

/// One call as compaction makes them.
fn compaction_call(zone: &Zone, model: &mut Model, random: &mut Rng) {
    match random.usize(..6) {
        0 => {
            let (block, enough) = (random.usize(..NR_BLOCKS), 1 + random.usize(..BLOCK));
            let expected = model.isolatable(block);
            let (mut nr_frames, mut last) = (0, None);
            zone.pageblocks().isolate_in(FrameId::from_index(block * BLOCK), enough, &mut |frame, order| {
                assert!(nr_frames < enough && Some(frame) > last, "no more than needed, in turn");
                assert_eq!(expected.get(&frame.get()), Some(&order));
                model.isolate(frame.get(), order);
                (nr_frames, last) = (nr_frames + order.nr_pages(), Some(frame));
            });
            let left = model.isolatable(block).into_values().any(|order| model.may_isolate(order));
            assert!(nr_frames >= enough || !left, "what was there and allowed was isolated");
        }
        1 => {
            let (least, most, from) = (random.usize(..10), random.usize(..10), random.usize(..NR_BLOCKS * BLOCK));
            let fits = |run: &(u32, Order)| {
                (order(least)..=order(most)).contains(&run.1) && run.0 as usize >= from && model.may_isolate(run.1)
            };
            let runs = (0..NR_BLOCKS).flat_map(|block| model.isolatable(block)).filter(fits);
            let expected: Vec<_> = runs.collect();
            let found = zone.pageblocks().isolate_listed(order(least), order(most), FrameId::from_index(from));
            if let Some((frame, order)) = found {
                assert!(expected.contains(&(frame.get(), order)));
                model.isolate(frame.get(), order);
            } else {
                // It examines the first 32 of each order.
                let short = |run: &&(u32, Order)| model.runs(Memory::Small)[run.1.exponent() as usize].len() <= 32;
                assert_eq!(expected.iter().find(short), None);
            }
        }
        2..=3 => {
            if let Some((head, order)) = model.part(random, None) {
                zone.put_back(FrameId::new(head), order);
                model.mark(head, order, At::Free);
            }
        }
        _ => {
            let Some((from, folio)) = pick(model, random, |folio| folio.order < Order::HUGE) else { return };
            let Some((to, _)) = model.part(random, Some(folio.order)) else { return };
            zone.occupy(FrameId::new(to), from);
            model.occupy(to, from.get());
        }
    }
}

/// Removes folios from the tails of all lists, which checks the order of every list.
fn drain(zone: &Zone, model: &mut Model) {
    for (size, list) in Size::ALL.into_iter().flat_map(|size| LISTS.map(|list| (size, list))) {
        let mut age = u32::MAX;
        loop {
            let oldest = zone.oldest(size, list);
            assert_eq!(oldest, model.oldest(size, list));
            let Some(oldest) = oldest else { break };
            assert!(oldest.age <= age, "a list is in the order of its ages");
            age = oldest.age;
            assert_eq!(zone.remove(oldest.frame), Some(list));
            model.remove(oldest.frame.get());
        }
    }
    for head in model.folios.keys().copied().collect::<Vec<_>>() {
        zone.give(FrameId::new(head));
        model.give(head);
    }
    for (head, order) in std::mem::take(&mut model.isolated) {
        zone.put_back(FrameId::new(head), order);
        model.mark(head, order, At::Free);
    }
    zone.drain();
    model.drained();
    compare(zone, model);
    let counts = zone.counts();
    let leaving = model.count(At::Leaving);
    assert_eq!(
        (counts.in_use, zone.free_runs(Order::HUGE)),
        (0, (counts.populated - leaving + model.absent()) / BLOCK)
    );
}

#[test]
fn the_zone_does_what_the_model_does() {
    let (mut longest, mut nr_from_lists) = ([0; 2], [0; 2]);
    for seed in 0..24 {
        let _seed = Seed(seed);
        let (zone, mut model, mut random) = (Zone::new(0..NR_BLOCKS, NR_CPUS, 4), Model::new(), seeded::rng(seed));
        zone.set_limit(4 * BLOCK);
        (model.limit, model.largest_limit) = (4 * BLOCK, 4 * BLOCK);
        for step in 0..1500 {
            // Alternates between filling and emptying, to cover the whole range.
            let takes = if (step / 250) % 2 == 0 { 8 } else { 1 };
            match random.usize(..takes + 11) {
                0 => whole_zone_call(&zone, &mut model, &mut random),
                1..=2 => compaction_call(&zone, &mut model, &mut random),
                3..=10 => folio_call(&zone, &mut model, &mut random),
                _ if random.usize(..2) == 0 => {
                    let list = (random.usize(..NR_CPUS), random.usize(..2));
                    take_on(&zone, &mut model, &mut random, list);
                }
                _ => take(&zone, &mut model, &mut random),
            }
            if step % 8 == 0 {
                compare(&zone, &model);
            }
        }
        compare(&zone, &model);
        drain(&zone, &mut model);
        for class in 0..2 {
            longest[class] = longest[class].max(model.longest[class]);
            nr_from_lists[class] += model.nr_from_lists[class];
        }
    }
    println!("{longest:?} {nr_from_lists:?}");
    assert!(longest == [32, 8] && nr_from_lists.iter().all(|&nr| nr > 1000), "lists were hardly used");
}
