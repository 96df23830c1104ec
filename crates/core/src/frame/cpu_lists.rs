//! The lists that the CPUs keep in front of a zone ([`super::percpu`]): taking, giving, refilling, draining, pausing.
//!
//! **Locking.** As in `percpu`. The zone's frames are locked where a function is given them.

use super::buddy::Taken;
use super::frames::Frames;
use super::lists::FrameState;
use super::percpu::{ASK, CLASSES, Cpu, FREE_SHARE, LEAST_BATCH, LISTED, LOOSE, Lists, Marks, class_of};
use crate::id::{CpuId, FrameId};
use crate::order::Order;
use crate::packed::Packed;
use crate::sync::{Mutex, MutexGuard, lock};

/// The lists of all CPUs, and the marks of the zone's frames.
pub(super) struct CpuLists {
    /// Empty: no frames are listed by CPU.
    cpus: Box<[Cpu]>,
    marks: Marks,
    /// The lists of all CPUs together hold at most 1/`share` of the limit.
    share: usize,
}

/// While this lives, no CPU lists frames: given frames are free at once, and merged with their buddies.
pub struct Paused<'a>(&'a CpuLists);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.cpus.iter().for_each(|cpu| lock(&cpu.lists).nr_pauses -= 1);
    }
}

impl CpuLists {
    /// For `nr_cpus` CPUs, and a zone of `nr_frames` frames at most, numbered from `first` on.
    pub(super) fn new(first: u32, nr_frames: usize, nr_cpus: usize, share: usize) -> CpuLists {
        CpuLists {
            cpus: (0..nr_cpus).map(|_| Cpu::new()).collect(),
            marks: Marks::new(first, if nr_cpus > 0 { nr_frames } else { 0 }),
            share,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.cpus) + self.marks.bytes()
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    fn cpu(&self, cpu: CpuId) -> Option<&Cpu> {
        let (cpus, index) = (&self.cpus, cpu.index());
        // Most callers pass a number in range, and a division would take as long as the rest of this function.
        cpus.get(if index < cpus.len() { index } else { index % cpus.len().max(1) })
    }

    /// Takes 2^order frames from this CPU's list. They are then held, without owner.
    pub(super) fn take(&self, cpu: CpuId, order: Order) -> Option<Taken> {
        let (class, cpu) = (class_of(order)?, self.cpu(cpu)?);
        cpu.take(&mut lock(&cpu.lists), class, &self.marks)
    }

    /// The same, or else from the zone, together with a batch for the list. `None` also if such runs are not listed.
    pub(super) fn take_or_refill(&self, cpu: CpuId, order: Order, frames: &Mutex<Frames>) -> Option<Taken> {
        let (class, cpu) = (class_of(order)?, self.cpu(cpu)?);
        let lists = &mut *lock(&cpu.lists);
        if let Some(taken) = cpu.take(lists, class, &self.marks) {
            return Some(taken);
        }
        let frames = &mut *lock(frames);
        let taken = frames.take_if_left(order, 0)?;
        if taken.order == order {
            self.marks.change(taken.frame.get(), ASK, LOOSE + class as u8);
            self.refill(cpu, lists, class, frames);
        }
        Some(taken)
    }

    /// Lists the rest of a batch of which one run was just taken. Breaks no whole pageblock for it.
    fn refill(&self, cpu: &Cpu, lists: &mut Lists, class: usize, frames: &mut Frames) {
        let order = CLASSES[class].0;
        let few = frames.free() / FREE_SHARE / self.cpus.len() / order.nr_pages();
        let listed = &mut lists.classes[class];
        for _ in 1..listed.batch.min(few) * usize::from(lists.nr_pauses == 0) {
            let Some(taken) = frames.buddy.take_part(&mut frames.records, order, false) else { break };
            self.marks.change(taken.frame.get(), ASK, LISTED);
            listed.push(taken.frame.get());
        }
        // The smallest runs, which the buddy handed out first, are to be taken first.
        listed.heads[..listed.len].reverse();
        cpu.note(lists);
    }

    /// Puts the frames on this CPU's list if it can. Frames with an owner lose it under the zone's lock, and are the
    /// zone's if the list has enough. `false`: nothing was done.
    pub(super) fn give(&self, cpu: CpuId, frame: FrameId, frames: &Mutex<Frames>) -> bool {
        let Some(cpu) = self.cpu(cpu) else { return false };
        let lists = &mut *lock(&cpu.lists);
        let mark = self.marks.of(frame.get());
        if mark < LOOSE {
            self.give_owned(cpu, lists, frame, &mut lock(frames));
            return true;
        }
        let class = usize::from(mark - LOOSE);
        let (batch, len) = (lists.batch(class), lists.classes[class].len);
        if batch == 0 {
            return false;
        }
        if len == 2 * batch {
            cpu.shorten(lists, class, batch, &mut lock(frames), &self.marks);
        }
        cpu.give(lists, class, frame.get(), &self.marks, mark);
        true
    }

    /// The zone is locked anyway, so these fill the list up to one batch only.
    fn give_owned(&self, cpu: &Cpu, lists: &mut Lists, frame: FrameId, frames: &mut Frames) {
        self.marks.claim(frame);
        frames.disown(frame);
        let order = frames.records[frame.get()].order;
        match class_of(order).filter(|&class| lists.classes[class].len < lists.batch(class)) {
            Some(class) => cpu.give(lists, class, frame.get(), &self.marks, ASK),
            None => frames.buddy.give(&mut frames.records, frame.get()),
        }
    }

    /// Gives the frames on all CPU lists back to the buddy, one CPU at a time.
    pub(super) fn drain(&self, frames: &Mutex<Frames>) {
        for cpu in self.cpus.iter().filter(|cpu| cpu.nr_frames() > 0) {
            let lists = &mut *lock(&cpu.lists);
            cpu.drain(lists, &mut lock(frames), &self.marks);
        }
    }

    /// Drains the lists and keeps them empty, for callers that want pageblocks to become whole.
    pub(super) fn pause(&self, frames: &Mutex<Frames>) -> Paused<'_> {
        for cpu in &self.cpus {
            let lists = &mut *lock(&cpu.lists);
            lists.nr_pauses += 1;
            cpu.drain(lists, &mut lock(frames), &self.marks);
        }
        Paused(self)
    }

    /// Drains the lists and sets their batches for a limit of this many frames.
    pub(super) fn resize(&self, limit: usize, frames: &Mutex<Frames>) {
        let nr_cpus = self.cpus.len();
        self.marks.ensure(limit);
        for cpu in &self.cpus {
            let lists = &mut *lock(&cpu.lists);
            cpu.drain(lists, &mut lock(frames), &self.marks);
            for (listed, (order, most)) in lists.classes.iter_mut().zip(CLASSES) {
                // Two batches of each class.
                let batch = limit / self.share / nr_cpus / (2 * CLASSES.len()) / order.nr_pages();
                listed.batch = if batch < LEAST_BATCH { 0 } else { batch.min(most) };
            }
        }
    }

    pub(super) fn nr_frames(&self) -> usize {
        self.cpus.iter().map(Cpu::nr_frames).sum()
    }

    /// The first frames of the runs on a CPU's list of an order, the next to be taken last.
    pub(super) fn listed_on(&self, cpu: CpuId, order: Order) -> Vec<FrameId> {
        let (Some(class), Some(cpu)) = (class_of(order), self.cpu(cpu)) else { return Vec::new() };
        lock(&cpu.lists).classes[class].all().iter().map(|&head| FrameId::new(head)).collect()
    }

    /// Locks the lists of all CPUs, by rising number.
    pub(super) fn lock_all(&self) -> Vec<MutexGuard<'_, Lists>> {
        self.cpus.iter().map(|cpu| lock(&cpu.lists)).collect()
    }

    /// Checks lists, marks and records against each other. The caller holds all locks.
    pub(super) fn verify(&self, lists: &[MutexGuard<'_, Lists>], frames: &Frames) {
        let mut nr_listed = 0;
        for (cpu, lists) in self.cpus.iter().zip(lists) {
            assert_eq!(cpu.nr_frames(), lists.nr_frames(), "frames that a CPU has listed");
            assert!(lists.nr_pauses == 0 || lists.nr_frames() == 0, "frames are listed during a pause");
            for (listed, (order, _)) in lists.classes.iter().zip(CLASSES) {
                assert!(listed.len <= 2 * listed.batch, "a list is too long");
                nr_listed += listed.len;
                for &head in listed.all() {
                    assert_eq!(self.marks.of(head), LISTED, "the mark of frame {head}");
                    assert_eq!(frames.records[head].order, order, "the order of frame {head}");
                }
            }
        }
        for head in self.marks.first()..frames.records.end() {
            let mark = self.marks.of(head);
            if mark != ASK {
                let record = &frames.records[head];
                assert_eq!(
                    (record.place, record.owner),
                    (FrameState::Held, Packed::NONE),
                    "frame {head}, whose mark is {mark}"
                );
            }
            // There are as many marks as listed runs, so no run is listed twice.
            nr_listed -= usize::from(mark == LISTED);
        }
        assert_eq!(nr_listed, 0, "listed frames have marks");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::Memory;
    use crate::frame::buddy::BLOCK;
    use crate::frame::percpu::SHARE;
    use crate::frame::{List, Zone, ZoneCounts};
    use crate::id::FolioId;

    const CPUS: [CpuId; 2] = [CpuId::new(0), CpuId::new(1)];

    fn zone(nr_blocks: usize) -> Zone {
        let zone = Zone::new(0..nr_blocks, CPUS.len(), SHARE);
        zone.set_limit(nr_blocks * BLOCK);
        zone
    }

    /// Takes frames as the engine does.
    fn take(zone: &Zone, cpu: CpuId, order: Order) -> FrameId {
        let taken = zone.take_on(cpu, order).unwrap();
        if taken.order == order { taken.frame } else { zone.carve(taken.frame, order) }
    }

    fn nr_listed(zone: &Zone) -> [[usize; 2]; 2] {
        zone.verify();
        CPUS.map(|cpu| CLASSES.map(|(order, _)| zone.listed_on(cpu, order).len()))
    }

    #[test]
    fn a_batch_comes_at_once_and_two_are_kept() {
        let zone = zone(1024);
        let mut held: Vec<_> = (0..50).map(|_| take(&zone, CPUS[0], Order::PAGE)).collect();
        // The first was carved; the others came in batches, lowest first.
        assert_eq!(nr_listed(&zone), [[15, 0], [0, 0]]);
        assert!(held.is_sorted() && zone.take_listed(CPUS[1], Order::PAGE).is_none());
        assert_eq!(zone.take_listed(CPUS[0], Order::PAGE).map(|taken| taken.frame), Some(FrameId::new(50)));
        held.push(FrameId::new(50));
        held.drain(..).for_each(|frame| zone.give_on(CPUS[1], frame));
        // At 32 listed frames the oldest 16 leave; that happens twice.
        assert_eq!(nr_listed(&zone)[1], [19, 0]);
        let counts = zone.counts();
        assert_eq!((counts.in_use, counts.free), (0, 1024 * BLOCK));
        assert_eq!(zone.free_runs(Order::HUGE), 1023);
        zone.drain();
        assert_eq!((nr_listed(&zone), zone.free_runs(Order::HUGE)), ([[0; 2]; 2], 1024));
    }

    #[test]
    fn owned_frames_are_listed_once_nobody_owns_them() {
        let zone = zone(1024);
        for order in CLASSES.map(|(order, _)| order) {
            let frame = take(&zone, CPUS[0], order);
            zone.set_owner(frame, FolioId::new(16));
            zone.insert(frame, List::Active);
            zone.give_on(CPUS[1], frame);
            assert_eq!((zone.owner(frame), zone.list(frame), zone.order(frame)), (None, None, None));
            assert_eq!(zone.listed_on(CPUS[1], order), [frame]);
            assert_eq!(take(&zone, CPUS[1], order), frame);
            assert_eq!(zone.order(frame), Some(order));
        }
        nr_listed(&zone);
        assert_eq!(zone.counts().in_use, 17);
    }

    #[test]
    fn few_frames_are_not_listed() {
        // 16 MiB.
        let zone = zone(8);
        let frame = take(&zone, CPUS[0], Order::PAGE);
        zone.give_on(CPUS[0], frame);
        let frames = [(); 20].map(|()| take(&zone, CPUS[0], Order::PAGE));
        assert_eq!(nr_listed(&zone), [[0; 2]; 2]);
        frames.into_iter().for_each(|frame| zone.give_on(CPUS[0], frame));
        assert_eq!((nr_listed(&zone), zone.free_runs(Order::HUGE)), ([[0; 2]; 2], 8));
    }

    #[test]
    fn what_is_listed_is_had_by_all_who_find_no_other() {
        let zone = zone(1024);
        let frames = [(); 2].map(|()| take(&zone, CPUS[0], Order::PAGE));
        let whole: Vec<_> = std::iter::from_fn(|| zone.take(Order::HUGE, 0)).collect();
        assert_eq!((whole.len(), nr_listed(&zone)[0][0]), (1023, 0), "the last one drained the lists");
        frames.into_iter().for_each(|frame| zone.give_on(CPUS[0], frame));
        let ZoneCounts { free, in_use, .. } = zone.counts();
        assert_eq!((nr_listed(&zone)[0][0], free, in_use, zone.counts().available()), (2, BLOCK, 1023 * BLOCK, BLOCK));
        assert_eq!(zone.take(Order::HUGE, 0).map(|taken| taken.memory), Some(Memory::Small));
        assert_eq!(nr_listed(&zone)[0][0], 0);
    }

    #[test]
    fn a_smaller_limit_and_a_pause_empty_the_lists() {
        let zone = zone(1024);
        let frames = [(); 10].map(|()| take(&zone, CPUS[0], Order::PAGE));
        zone.set_limit(512 * BLOCK);
        assert_eq!(nr_listed(&zone)[0][0], 0);
        let pauses = [zone.pause_cpus(), zone.pause_cpus()];
        for (nr, paused) in pauses.into_iter().enumerate() {
            zone.give_on(CPUS[1], frames[nr]);
            assert_eq!(nr_listed(&zone)[1][0], 0);
            drop(paused);
        }
        zone.give_on(CPUS[1], frames[2]);
        assert_eq!(nr_listed(&zone)[1][0], 1);
    }

    #[test]
    #[should_panic(expected = "not taken")]
    fn a_listed_frame_is_not_given_again() {
        let zone = zone(1024);
        let frames = [(); 2].map(|()| take(&zone, CPUS[0], Order::PAGE));
        zone.give_on(CPUS[0], frames[1]);
        zone.give_on(CPUS[1], frames[1]);
    }

    #[test]
    #[should_panic(expected = "not taken")]
    fn a_listed_frame_gets_no_owner() {
        let zone = zone(1024);
        let frames = [(); 2].map(|()| take(&zone, CPUS[0], Order::PAGE));
        zone.give_on(CPUS[0], frames[1]);
        zone.set_owner(frames[1], FolioId::new(0));
    }

    #[test]
    #[should_panic(expected = "not taken")]
    fn a_free_frame_is_not_listed() {
        let zone = zone(1024);
        let frame = take(&zone, CPUS[0], Order::PAGE);
        zone.give(frame);
        zone.give_on(CPUS[0], frame);
    }
}
