//! The choice of an order never thrashes: on the same accesses, with the same RAM, it moves at most four times the
//! bytes that single pages move. A machine of blocks in RAM and on a device runs both ways, in the same order of age.
#![cfg(not(loom))]

use fastrand::Rng;
use folioswap_core::policy::readahead::FIRST_WINDOW;
use folioswap_core::*;
use seeded::{Seed, rng};
use std::collections::BTreeMap;
use std::ops::Range;

mod seeded;

/// Blocks that RAM holds.
const RAM: usize = 40;
const PAGES: usize = BLOCK_PAGES;
const THREAD: u64 = 1;
/// Streams read no more than this at once.
const WINDOW: usize = 8;

/// Touches are this far apart in age, so that the parts of a folio that is split keep its place.
const MOMENT: u64 = 1 << 10;

/// A folio of the machine. It is in RAM while it has an age.
#[derive(Copy, Clone, Default)]
struct Folio {
    age: Option<u64>,
    /// It was read as a neighbour and not touched since.
    is_unused: bool,
    /// Pages that had left RAM when it left.
    left_at: Option<usize>,
}

/// A block of the machine.
struct Block {
    history: History,
    order: Order,
    folios: Vec<Folio>,
    is_marker: bool,
    left_at: usize,
}

#[derive(Default)]
struct Policies {
    choice: OrderChoice,
    streams: Streams,
    neighbours: Neighbours,
}

/// A machine that reads by pages, or as the policies say.
struct Machine {
    policies: Option<Policies>,
    blocks: Vec<Block>,
    /// What is in RAM, by age: a folio of a block.
    by_age: BTreeMap<u64, (usize, usize)>,
    now: u64,
    nr_resident: usize,
    nr_left: usize,
    nr_moved: usize,
    /// Touches that had to wait for a device.
    nr_waits: usize,
    /// Pages that came back soon after they had left by themselves.
    nr_soon: usize,
}

impl Machine {
    fn new(nr_blocks: usize, by_policy: bool) -> Self {
        let order = if by_policy { Order::HUGE } else { Order::PAGE };
        let block = || Block {
            history: History::default(),
            order,
            folios: vec![Folio::default(); PAGES / order.nr_pages()],
            is_marker: false,
            left_at: 0,
        };
        Machine {
            policies: by_policy.then(Policies::default),
            blocks: (0..nr_blocks).map(|_| block()).collect(),
            by_age: BTreeMap::new(),
            now: 0,
            nr_resident: 0,
            nr_left: RAM * PAGES,
            nr_moved: 0,
            nr_waits: 0,
            nr_soon: 0,
        }
    }

    fn fork(&mut self) {
        if let Some(policies) = &self.policies {
            policies.choice.forget();
            policies.streams.forget_all();
            policies.neighbours.forget();
        }
    }

    fn is_in_ram(&self, block: usize, index: usize) -> bool {
        self.blocks[block].folios[index].age.is_some()
    }

    /// Makes a folio the youngest in RAM.
    fn renew(&mut self, block: usize, index: usize) {
        self.now += MOMENT;
        let of = &mut self.blocks[block];
        match of.folios[index].age.replace(self.now) {
            Some(old) => _ = self.by_age.remove(&old),
            None => self.nr_resident += of.order.nr_pages(),
        }
        self.by_age.insert(self.now, (block, index));
    }

    fn take_out(&mut self, block: usize, index: usize) {
        let of = &mut self.blocks[block];
        let Some(age) = of.folios[index].age.take() else { return };
        self.by_age.remove(&age);
        self.nr_resident -= of.order.nr_pages();
        if std::mem::take(&mut of.folios[index].is_unused) {
            self.policies.iter().for_each(|policies| policies.neighbours.unused(BlockId::from_index(block)));
        }
    }

    fn read(&mut self, block: usize, index: usize) {
        if !self.is_in_ram(block, index) {
            self.nr_moved += self.blocks[block].order.nr_pages();
            self.renew(block, index);
        }
    }

    fn read_whole(&mut self, block: usize) {
        let order = self.blocks[block].order;
        let nr_unused = self.blocks[block].folios.iter().filter(|folio| folio.is_unused).count();
        let id = BlockId::from_index(block);
        self.policies.iter().for_each(|policies| policies.neighbours.withdraw(id, nr_unused));
        for index in 0..self.blocks[block].folios.len() {
            self.nr_moved += if self.is_in_ram(block, index) { 0 } else { order.nr_pages() };
            if order < Order::HUGE {
                self.blocks[block].folios[index].is_unused = false;
                self.take_out(block, index);
            }
        }
        if order < Order::HUGE {
            (self.blocks[block].order, self.blocks[block].folios) = (Order::HUGE, vec![Folio::default()]);
        }
        self.renew(block, 0);
    }

    /// Makes a block's folios smaller; their parts keep their ages.
    fn split(&mut self, block: usize, order: Order) {
        let of = &mut self.blocks[block];
        let each = of.order.nr_pages() / order.nr_pages();
        let mut parts = Vec::new();
        for folio in &of.folios {
            folio.age.iter().for_each(|age| _ = self.by_age.remove(age));
            for part in 0..each {
                let age = folio.age.map(|age| age + part as u64);
                age.iter().for_each(|&age| _ = self.by_age.insert(age, (block, parts.len())));
                parts.push(Folio { age, ..*folio });
            }
        }
        (of.order, of.folios) = (order, parts);
    }

    fn divide_oldest_whole(&mut self) {
        let whole = |(id, of): (usize, &Block)| Some((of.folios[0].age.filter(|_| of.order == Order::HUGE)?, id));
        let Some((_, block)) = self.blocks.iter().enumerate().filter_map(whole).min() else { return };
        self.blocks[block].history.doubt();
        self.split(block, Order::PAGE);
    }

    /// Keeps to the RAM. What leaves is written: all is dirty.
    fn settle(&mut self) {
        while self.nr_resident > RAM * PAGES {
            if self.nr_soon >= PAGES {
                self.nr_soon = 0;
                self.divide_oldest_whole();
            }
            let Some((_, &(block, index))) = self.by_age.first_key_value() else { return };
            self.take_out(block, index);
            let nr_pages = self.blocks[block].order.nr_pages();
            self.nr_left += nr_pages;
            self.nr_moved += nr_pages;
            self.blocks[block].left_at = self.nr_left;
            self.blocks[block].folios[index].left_at = Some(self.nr_left);
        }
    }

    fn touch(&mut self, at: usize) {
        let (block, page) = (at / PAGES, at % PAGES);
        let index = page / self.blocks[block].order.nr_pages();
        if self.policies.is_none() {
            self.nr_waits += usize::from(!self.is_in_ram(block, index));
            self.read(block, index);
            self.renew(block, index);
            return self.settle();
        }
        let is_marker = std::mem::take(&mut self.blocks[block].is_marker);
        if self.is_in_ram(block, index) {
            let is_in_pieces = |policies: &Policies| policies.neighbours.in_pieces(BlockId::from_index(block));
            if self.blocks[block].order == PIECE && !self.policies.as_ref().is_some_and(is_in_pieces) {
                self.split(block, Order::PAGE);
                return self.renew(block, page);
            }
            self.renew(block, index);
            if std::mem::take(&mut self.blocks[block].folios[index].is_unused) {
                self.use_neighbour(block, page);
            }
            if is_marker && self.blocks[block].order == Order::HUGE {
                self.follow(block);
            }
            return self.settle();
        }
        self.nr_waits += 1;
        let in_row = self.fault(block, page);
        let at_edge = !(16..PAGES - 16).contains(&page);
        if in_row || (self.blocks[block].order == Order::HUGE && at_edge) {
            self.follow(block);
        }
        self.settle();
    }

    fn used_of_folio(&self, block: usize) -> usize {
        let order = self.blocks[block].order;
        let of = |policies: &Policies| policies.neighbours.used_of_folio(BlockId::from_index(block), order);
        self.policies.as_ref().map_or(1, of)
    }

    fn choose(&mut self, block: usize, page: usize) -> Choice {
        let used_of_folio = self.used_of_folio(block);
        let Some(Policies { choice, neighbours, .. }) = &self.policies else {
            unreachable!("pages come by themselves")
        };
        let (of, id) = (&mut self.blocks[block], BlockId::from_index(block));
        let index = page / of.order.nr_pages();
        if of.folios.len() > 1
            && let Some(left_at) = of.folios[index].left_at
        {
            neighbours.came_back(id, self.nr_left - left_at, RAM * PAGES);
            self.nr_soon += usize::from(Pressure::is_soon(self.nr_left - left_at, RAM * PAGES));
        }
        let folio_left_since = of.folios[index].left_at.map(|left_at| self.nr_left - left_at);
        let nr_left_since = self.nr_left - of.left_at;
        let pressure = Pressure { budget_blocks: RAM, nr_left_since, folio_left_since, used_of_folio };
        match choice.choose(id, &mut of.history, of.folios.len(), index, pressure) {
            Choice::Part(most) if most > Order::PAGE => Choice::Part(neighbours.part(id, of.order)),
            choice => choice,
        }
    }

    /// The first touch of a page that was read as a neighbour.
    fn use_neighbour(&mut self, block: usize, page: usize) {
        self.policies.iter().for_each(|policies| policies.neighbours.used(BlockId::from_index(block)));
        let history = &mut self.blocks[block].history;
        history.note_neighbour();
        history.note(page, PAGES, 1);
    }

    /// Reads the group of a page that was read.
    fn read_neighbours(&mut self, block: usize, page: usize) {
        let Some(policies) = &self.policies else { return };
        let nr_pages = policies.neighbours.group(BlockId::from_index(block)).nr_pages();
        let first = page / nr_pages * nr_pages;
        let out: Vec<_> = (first..first + nr_pages).filter(|&page| !self.is_in_ram(block, page)).collect();
        policies.neighbours.read(BlockId::from_index(block), out.len(), RAM * PAGES);
        for page in out {
            self.read(block, page);
            self.blocks[block].folios[page].is_unused = true;
        }
    }

    /// Brings a page in. Returns whether it is one of many in a row.
    fn fault(&mut self, block: usize, page: usize) -> bool {
        let (nr_folios, used_of_folio) = (self.blocks[block].folios.len(), self.used_of_folio(block));
        match self.choose(block, page) {
            Choice::Whole => {
                self.read_whole(block);
                return self.blocks[block].history.note(page / (PAGES / nr_folios), nr_folios, used_of_folio);
            }
            Choice::Part(order) if order < self.blocks[block].order => self.split(block, order),
            Choice::Part(_) => {}
        }
        let used_of_folio = self.used_of_folio(block);
        let of = &mut self.blocks[block];
        let (nr_folios, index) = (of.folios.len(), page / of.order.nr_pages());
        let ahead = of.history.ahead(index, nr_folios);
        let in_row = of.history.note(index, nr_folios, used_of_folio);
        of.history.note_ahead(ahead);
        self.read(block, index);
        if self.blocks[block].order == PIECE {
            let nr_pages = (1 + ahead.len()) * PIECE.nr_pages();
            self.policies.iter().for_each(|policies| policies.neighbours.read_pieces(nr_pages, RAM * PAGES));
        } else {
            match (ahead.is_empty(), &self.policies) {
                (false, Some(policies)) => policies.neighbours.read_row(BlockId::from_index(block), ahead),
                _ => self.read_neighbours(block, page),
            }
        }
        ahead.iter().for_each(|index| self.read(block, index));
        in_row
    }

    fn follow(&mut self, block: usize) {
        let Some(Policies { choice, streams, .. }) = &self.policies else { return };
        let longest = if choice.trusts_streams() { WINDOW } else { FIRST_WINDOW };
        let room = Room { max_window: longest.min(RAM / 16), max_total: RAM / 4 };
        let id = BlockId::from_index(block);
        let Some(advice) = streams.observe(THREAD, id, room) else { return };
        if !choice.streamed(advice.behind.clone()) {
            return streams.forget_blocks(id..BlockId::from_index(block + 1));
        }
        for window in advice.windows.iter() {
            let marker = advice.marker(window).index();
            for block in BlockId::each(window.clone()).map(BlockId::index) {
                let Some(of) = self.blocks.get(block) else { continue };
                let is_out = of.folios.iter().any(|folio| folio.age.is_none());
                let probes = |choice: &OrderChoice| choice.probes(BlockId::from_index(block));
                if is_out
                    && (block == marker || !self.policies.as_ref().is_some_and(|policies| probes(&policies.choice)))
                {
                    self.read_whole(block);
                }
                self.blocks[block].is_marker = block == marker;
            }
        }
    }
}

/// What is done: touches of pages, and forks after which the child goes on.
enum Step {
    Touch(usize),
    Fork,
}

/// Runs the machine with the policies, and the one by pages.
fn run(nr_blocks: usize, steps: impl IntoIterator<Item = Step>) -> (Machine, Machine) {
    let (mut auto, mut pages) = (Machine::new(nr_blocks, true), Machine::new(nr_blocks, false));
    for step in steps {
        match step {
            Step::Touch(at) => [&mut auto, &mut pages].map(|machine| machine.touch(at)),
            Step::Fork => [&mut auto, &mut pages].map(Machine::fork),
        };
    }
    (auto, pages)
}

/// Fails if the policies move more than four times as much as single pages do, and what RAM holds.
fn check(name: &str, nr_blocks: usize, steps: impl IntoIterator<Item = Step>) -> f64 {
    let (auto, pages) = run(nr_blocks, steps);
    let (auto, pages) = (auto.nr_moved, pages.nr_moved);
    let ratio = auto as f64 / pages.max(1) as f64;
    println!("{name:40} auto {auto:9} pages {pages:9} {ratio:6.2}");
    assert!(auto <= 4 * pages + RAM / 2 * PAGES, "{name}: {auto} pages moved, {pages} by single pages");
    ratio
}

fn touches(pages: impl Iterator<Item = usize>) -> impl Iterator<Item = Step> {
    pages.map(Step::Touch)
}

fn random(rng: &mut Rng, pages: Range<usize>, nr: usize) -> Vec<Step> {
    (0..nr).map(|_| Step::Touch(rng.usize(pages.clone()))).collect()
}

/// Pages in order, each a fixed distance after the last, and around.
fn strided(nr_pages: usize, hundredths: usize, nr: usize) -> impl Iterator<Item = Step> {
    touches((0..nr).map(move |at| at * hundredths / 100 % nr_pages))
}

/// Page numbers by a power law, scattered over all blocks.
fn zipf(rng: &mut Rng, nr_pages: usize, nr: usize) -> Vec<Step> {
    let rank = |uniform: f64| ((nr_pages as f64).powf(uniform) as usize).min(nr_pages - 1);
    (0..nr).map(|_| Step::Touch(rank(rng.f64()) * 7919 % nr_pages)).collect()
}

#[test]
fn random_pages() {
    for seed in 0..3 {
        let _seed = Seed(seed);
        let mut rng = rng(seed);
        for blocks in [RAM * 5 / 4, RAM * 3, RAM * 20] {
            check("random", blocks, random(&mut rng, 0..blocks * PAGES, 40_000));
            check("zipf", blocks, zipf(&mut rng, blocks * PAGES, 40_000));
        }
    }
}

#[test]
fn a_scattered_working_set_that_fits() {
    let mut rng = rng(5);
    let set: Vec<usize> = (0..RAM * PAGES * 8 / 10).map(|_| rng.usize(..RAM * 4 * PAGES)).collect();
    let steps: Vec<Step> = (0..200_000).map(|_| Step::Touch(set[rng.usize(..set.len())])).collect();
    check("a set that fits", RAM * 4, steps);
}

/// Blocks of which most pages are in use, and fit RAM, but not together with the others.
#[test]
fn a_dense_working_set_that_fits() {
    for (blocks, hundredths) in
        [(21, 90), (22, 80), (24, 80), (26, 70), (28, 65), (30, 60), (32, 55), (36, 50)].map(|(b, h)| (b * RAM / 20, h))
    {
        let mut rng = rng(blocks as u64);
        let all = blocks * PAGES;
        let set: Vec<usize> = (0..all).filter(|_| rng.usize(..100) < hundredths).collect();
        let used = (0..300_000).map(|_| Step::Touch(set[rng.usize(..set.len())])).collect::<Vec<_>>();
        check(&format!("{hundredths} % of {blocks} blocks"), blocks, touches(0..all).chain(used));
    }
}

#[test]
fn strides() {
    // Not three or four times the RAM: every third or fourth page would just fit, and one page more moves all of them.
    for blocks in [RAM * 7 / 5, RAM * 9 / 5, RAM * 14 / 5, RAM * 9 / 2] {
        let nr_pages = blocks * PAGES;
        for hundredths in
            [100, 150, 200, 300, 400, 500, 700, 800, 1547, 1600, 3200, 6400, 51_100, 51_200, 51_300, 102_400]
        {
            let nr = (nr_pages * 100 / hundredths * 8).max(10_000);
            check(&format!("stride {hundredths}/100, {blocks} blocks"), blocks, strided(nr_pages, hundredths, nr));
        }
    }
}

/// A picture is worked on by lines, then by columns, by threads that have half of them each. A page holds a piece of a
/// line, so one page in so many is in use for long, and these fit RAM.
#[test]
fn columns_of_a_picture_that_was_filled_by_lines() {
    for (step, blocks) in [(2, RAM * 6 / 5), (3, RAM * 6 / 5), (4, RAM * 6 / 5), (4, RAM * 2), (8, RAM * 2)] {
        let nr_pages = blocks * PAGES;
        let lines = touches((0..2 * nr_pages).map(|at| at % nr_pages));
        let column = move |_| touches((0..nr_pages / 2).step_by(step).flat_map(move |at| [at, at + nr_pages / 2]));
        check(&format!("columns, 1 in {step}, {blocks} blocks"), blocks, lines.chain((0..200).flat_map(column)));
    }
}

/// A matrix is read by lines of pages and written by columns, so each block of the other one fills slowly.
#[test]
fn a_transpose_by_pages() {
    const LINE: usize = 64;
    let half = RAM * 2 * PAGES;
    let nr_lines = half / LINE;
    let steps = (0..nr_lines).flat_map(move |line| {
        (0..LINE).flat_map(move |column| [line * LINE + column, half + column * nr_lines + line])
    });
    check("transpose", RAM * 4, touches(steps));
}

#[test]
fn rows_of_every_length_at_random_places() {
    let mut rng = rng(9);
    let blocks = RAM * 4;
    for len in [2, 4, 5, 8, 9, 16, 32, 64, 100, 130, 200, 300, 512] {
        let nr_rows = 60_000 / len;
        let mut steps = Vec::new();
        for _ in 0..nr_rows {
            let start = rng.usize(..blocks * PAGES - len);
            steps.extend(touches(start..start + len));
        }
        check(&format!("rows of {len}"), blocks, steps);
    }
}

/// Pieces of 64 KiB at random places, whose pages are used in any order.
#[test]
fn pages_used_near_each_other_come_together() {
    const PIECE_PAGES: usize = 16;
    let mut rng = rng(15);
    let blocks = RAM * 4;
    let mut steps = Vec::new();
    for _ in 0..4000 {
        let first = rng.usize(..blocks * PAGES / PIECE_PAGES) * PIECE_PAGES;
        let mut pages: Vec<usize> = (first..first + PIECE_PAGES).collect();
        rng.shuffle(&mut pages);
        steps.extend(pages);
    }
    let (auto, pages) = run(blocks, touches(steps.into_iter()));
    assert!(auto.nr_waits * 3 <= pages.nr_waits, "{} waits, {} by single pages", auto.nr_waits, pages.nr_waits);
    assert!(auto.nr_moved <= pages.nr_moved * 3 / 2, "{} pages, {} by single pages", auto.nr_moved, pages.nr_moved);
}

#[test]
fn phases_that_change() {
    let mut rng = rng(11);
    for blocks in [RAM * 2, RAM * 4] {
        let all = 0..blocks * PAGES;
        let mut steps = Vec::new();
        for round in 0..6 {
            match round % 2 {
                0 => steps.extend(touches(all.clone())),
                _ => steps.extend(random(&mut rng, all.clone(), 10_000)),
            }
        }
        check("sequential, then random, and again", blocks, steps);
        let mut steps: Vec<Step> = touches(all.clone().rev()).collect();
        steps.extend(strided(blocks * PAGES, 51_200, 5_000));
        steps.extend(touches(all.clone()));
        check("backwards, strided, sequential", blocks, steps);
    }
}

#[test]
fn a_forked_child_that_does_something_else() {
    let mut rng = rng(13);
    let blocks = RAM * 3;
    let all = 0..blocks * PAGES;
    for _ in 0..2 {
        let mut steps: Vec<Step> = touches(all.clone()).chain(touches(all.clone())).collect();
        steps.push(Step::Fork);
        steps.extend(random(&mut rng, all.clone(), 10_000));
        check("a forked child", blocks, steps);
    }
}

/// What is used in order comes whole, and moves hardly more than by pages.
#[test]
fn streams_still_come_whole() {
    let blocks = RAM * 4;
    let steps = || (0..4).flat_map(move |_| touches(0..blocks * PAGES));
    assert!(check("four rounds", blocks, steps()) < 1.1);
    let mut machine = Machine::new(blocks, true);
    let mut nr_faults = 0;
    for step in steps() {
        let Step::Touch(at) = step else { continue };
        let before = machine.nr_moved;
        machine.touch(at);
        nr_faults += usize::from(machine.nr_moved != before);
    }
    assert!(nr_faults < 4 * blocks * 2, "{nr_faults} reads for {} blocks", 4 * blocks);
}
