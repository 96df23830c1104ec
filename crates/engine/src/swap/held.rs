//! Slots that forked children may still read: they are not used again before those children are gone.
//!
//! A fork notes which slots are in use. If such a slot is freed later, it is only marked, and freed for good once no
//! descendant of a fork that noted it is left. Never allocates while slots are freed, because faults free slots.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use folioswap_core::{Order, SlotId};

/// A bit for each slot.
type Bits = Vec<u64>;

const BITS: usize = u64::BITS as usize;

#[derive(Default)]
pub(crate) struct HeldSlots {
    any: AtomicBool,
    /// Some of them were freed.
    any_freed: AtomicBool,
    held: Mutex<Held>,
}

/// What forks noted between which no slot was taken or freed.
struct Note {
    /// Their numbers.
    forks: Vec<u64>,
    bits: Bits,
}

#[derive(Default)]
struct Held {
    notes: Vec<Note>,
    /// Those that any fork noted.
    noted: Bits,
    /// Those of them that were freed.
    freed: Bits,
}

impl Held {
    fn note_anew(&mut self) {
        let len = self.notes.iter().map(|note| note.bits.len()).max().unwrap_or(0);
        self.noted = vec![0; len];
        for note in &self.notes {
            self.noted.iter_mut().zip(&note.bits).for_each(|(all, bits)| *all |= bits);
        }
    }

    fn notes(&self, slot: SlotId, order: Order) -> bool {
        let is_noted = |at: usize| self.noted.get(at / BITS).is_some_and(|word| word >> (at % BITS) & 1 == 1);
        (slot.index()..slot.index() + order.nr_pages()).any(is_noted)
    }

    /// Takes the freed slots that no fork needs any more.
    fn take_over(&mut self) -> Bits {
        let still = |index: usize| self.noted.get(index).copied().unwrap_or(0);
        let over = self.freed.iter().enumerate().map(|(index, freed)| freed & !still(index)).collect();
        self.freed.truncate(self.noted.len());
        self.freed.iter_mut().zip(&self.noted).for_each(|(freed, noted)| *freed &= noted);
        over
    }
}

impl HeldSlots {
    /// Whether a fork holds any.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether some of them were freed meanwhile.
    pub fn any_freed(&self) -> bool {
        self.any_freed.load(Ordering::Relaxed)
    }

    /// How many of them were freed.
    pub fn nr_freed(&self) -> usize {
        let held = self.held.lock().expect("nothing panics under this lock");
        held.freed.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn hold(&self, fork: u64, mut in_use: Bits) {
        let mut held = self.held.lock().expect("nothing panics under this lock");
        // What was freed looks in use, but is nobody's.
        in_use.iter_mut().zip(&held.freed).for_each(|(bits, freed)| *bits &= !freed);
        if let Some(last) = held.notes.last_mut().filter(|last| last.bits == in_use) {
            last.forks.push(fork);
            return;
        }
        let len = in_use.len().max(held.noted.len());
        held.noted.resize(len, 0);
        held.noted.iter_mut().zip(&in_use).for_each(|(all, bits)| *all |= bits);
        held.freed.resize(len, 0);
        held.notes.push(Note { forks: vec![fork], bits: in_use });
        self.any.store(true, Ordering::Relaxed);
    }

    /// Keeps a run of slots that is being freed, if a fork holds any of it.
    pub fn keeps(&self, slot: SlotId, order: Order) -> bool {
        if !self.any() {
            return false;
        }
        let mut held = self.held.lock().expect("nothing panics under this lock");
        if !held.notes(slot, order) {
            return false;
        }
        // A run lies in one cluster, and the bits of a fork cover whole clusters.
        let slots = slot.index()..slot.index() + order.nr_pages();
        slots.for_each(|at| held.freed[at / BITS] |= 1 << (at % BITS));
        self.any_freed.store(true, Ordering::Relaxed);
        true
    }

    /// Whether a fork holds any of a run of slots.
    pub fn has(&self, slot: SlotId, order: Order) -> bool {
        self.any() && self.held.lock().expect("nothing panics under this lock").notes(slot, order)
    }

    /// The forks that hold some.
    pub fn forks(&self) -> Vec<u64> {
        let held = self.held.lock().expect("nothing panics under this lock");
        held.notes.iter().flat_map(|note| &note.forks).copied().collect()
    }

    /// Releases the slots of forks that are over, and frees those that were freed meanwhile, in aligned runs.
    pub fn end(&self, over: impl Fn(u64) -> bool, free: impl Fn(SlotId, Order)) {
        let freed = {
            let mut held = self.held.lock().expect("nothing panics under this lock");
            let before = held.notes.len();
            held.notes.iter_mut().for_each(|note| note.forks.retain(|&fork| !over(fork)));
            held.notes.retain(|note| !note.forks.is_empty());
            self.any.store(!held.notes.is_empty(), Ordering::Relaxed);
            if held.notes.len() == before {
                return;
            }
            held.note_anew();
            let over = held.take_over();
            self.any_freed.store(held.freed.iter().any(|&word| word != 0), Ordering::Relaxed);
            over
        };
        let word_order = Order::new(BITS.trailing_zeros() as u8).expect("smaller than a block");
        for (index, word) in freed.into_iter().enumerate() {
            if word == u64::MAX {
                free(SlotId::from_index(index * BITS), word_order);
            } else {
                let set = (0..BITS).filter(|bit| word >> bit & 1 == 1);
                set.for_each(|bit| free(SlotId::from_index(index * BITS + bit), Order::PAGE));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn slot(index: usize) -> SlotId {
        SlotId::from_index(index)
    }

    fn ended(held: &HeldSlots, over: &[u64]) -> Vec<(usize, usize)> {
        let freed = RefCell::new(Vec::new());
        held.end(|fork| over.contains(&fork), |slot, order| freed.borrow_mut().push((slot.index(), order.nr_pages())));
        freed.into_inner()
    }

    #[test]
    fn a_slot_is_free_when_the_last_fork_that_noted_it_is_over() {
        let held = HeldSlots::default();
        assert!(!held.any() && !held.keeps(slot(3), Order::PAGE));
        held.hold(1, vec![0b1000, 0]);
        held.hold(2, vec![0b11000, u64::MAX]);
        assert!(held.keeps(slot(3), Order::PAGE) && held.keeps(slot(4), Order::PAGE));
        assert!(!held.keeps(slot(5), Order::PAGE), "allocated after the forks");
        assert!(!held.keeps(slot(1000), Order::PAGE), "the device has grown since");
        assert!(held.keeps(slot(64), Order::new(6).unwrap()));
        assert_eq!((held.forks(), ended(&held, &[2])), (vec![1, 2], vec![(4, 1), (64, 64)]));
        assert!(held.any() && held.keeps(slot(3), Order::PAGE) && !held.keeps(slot(4), Order::PAGE));
        assert_eq!((ended(&held, &[1]), held.any()), (vec![(3, 1)], false));
        assert!(!held.keeps(slot(3), Order::PAGE));
    }

    #[test]
    fn forks_between_which_nothing_changed_share_a_note() {
        let held = HeldSlots::default();
        (1..=500).for_each(|fork| held.hold(fork, vec![0b11; 1000]));
        held.hold(501, vec![0b111; 1000]);
        assert_eq!((held.forks().len(), held.held.lock().unwrap().notes.len()), (501, 2));
        assert!(held.keeps(slot(1), Order::PAGE));
        let most: Vec<u64> = (2..=501).collect();
        assert_eq!((ended(&held, &most), held.forks()), (vec![], vec![1]), "the first one is there still");
        assert_eq!(ended(&held, &[1]), [(1, 1)]);
    }

    #[test]
    fn what_was_freed_is_not_held_for_later_forks() {
        let held = HeldSlots::default();
        held.hold(1, vec![0b111]);
        assert!(held.keeps(slot(1), Order::PAGE));
        held.hold(2, vec![0b111]);
        assert!(held.keeps(slot(2), Order::PAGE));
        assert_eq!(ended(&held, &[1]), [(1, 1)]);
        assert_eq!(ended(&held, &[2]), [(2, 1)]);
    }

    #[test]
    fn a_run_of_which_a_part_is_held_is_kept_as_a_whole() {
        let held = HeldSlots::default();
        held.hold(1, vec![0b100]);
        assert!(held.keeps(slot(0), Order::new(2).unwrap()));
        assert_eq!(ended(&held, &[1]), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    }
}
