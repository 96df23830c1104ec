//! The record of one folio: where its content is, and notes of the policies.

use crate::id::{FrameId, SlotId};
use crate::order::Order;
use crate::packed::Packed;
use crate::policy::drop_behind::Stay;

/// In place of a frame: not in RAM. From `OUT` on, the rest says when it left, in units of 64 evicted pages.
const NONE: u32 = u32::MAX;
const OUT: u32 = 0xFF00_0000;
const LEFT_SHIFT: u32 = 6;

/// Where the content of a folio is.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum State {
    /// Never touched, dropped, or all zero: reads as zero and has neither frame nor slot.
    Empty,
    /// In its slots only; this is the first slot.
    Swapped(SlotId),
    /// In RAM and mapped; this is the first of its home frames.
    Resident(FrameId),
    /// In RAM at its frames' own address, not mapped.
    Standby(FrameId),
}

/// What is being done with the content of a folio.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Content {
    /// Nothing.
    Rests,
    /// It is mapped.
    Mapped,
    /// It is being written to its slots, which hold nothing valid yet.
    Written,
}

/// What a folio was read for before it was touched.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Ahead {
    /// It was touched, or it is mapped.
    #[default]
    No,
    /// The first folio of a readahead window.
    Marker,
    /// A neighbour of a page that was touched.
    Neighbour,
}

/// The table entry of one folio.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct Folio {
    frame: u32,
    slot: Packed,
    content: Content,
    /// Why it is in RAM and not mapped, so that its first touch is noticed.
    pub ahead: Ahead,
    /// Whether a stream that passes it drops it, or has dropped it.
    pub stay: Stay,
}

const _: () = assert!(size_of::<Folio>() == 12, "a folio's entry takes 12 bytes");

impl Folio {
    pub(super) const EMPTY: Folio =
        Folio { frame: NONE, slot: Packed::NONE, content: Content::Rests, ahead: Ahead::No, stay: Stay::Kept };

    /// Where its content is.
    pub fn state(&self) -> State {
        match (self.frame, self.slot.get()) {
            (OUT.., None) => State::Empty,
            (OUT.., Some(slot)) => {
                assert!(self.content != Content::Written, "a folio leaves RAM once a device holds it");
                State::Swapped(SlotId::new(slot))
            }
            (frame, _) if self.content == Content::Mapped => State::Resident(FrameId::new(frame)),
            (frame, _) => State::Standby(FrameId::new(frame)),
        }
    }

    /// Its first frame, if it is in RAM.
    pub fn frame(&self) -> Option<FrameId> {
        (self.frame < OUT).then(|| FrameId::new(self.frame))
    }

    /// The first of the slots that hold its last written content.
    pub fn slot(&self) -> Option<SlotId> {
        if self.content == Content::Written { None } else { self.slot.get().map(SlotId::new) }
    }

    /// The slots to which its current content is being written, unless it changed since.
    pub fn writing_to(&self) -> Option<SlotId> {
        if self.content == Content::Written { self.slot.get().map(SlotId::new) } else { None }
    }

    /// Starts a write of its content to these slots. The next change of its state cancels the write.
    pub fn begin_write(&mut self, slot: SlotId) {
        assert!(self.frame < OUT && self.content != Content::Mapped && self.slot().is_none());
        (self.slot, self.content) = (Packed::new(slot.get()), Content::Written);
    }

    /// Invalidates the write in progress, if any.
    pub fn cancel_write(&mut self) {
        if self.content == Content::Written {
            (self.slot, self.content) = (Packed::NONE, Content::Rests);
        }
    }

    /// Sets the slots that hold its last written content.
    pub fn set_slot(&mut self, slot: Option<SlotId>) {
        self.cancel_write();
        self.slot = slot.map_or(Packed::NONE, |slot| Packed::new(slot.get()));
    }

    /// Puts it in RAM, in these frames, mapped or not; its slots stay.
    pub fn set_in_ram(&mut self, frame: FrameId, mapped: bool) {
        assert!(frame.get() < OUT, "RAM has fewer frames");
        self.cancel_write();
        (self.frame, self.content) = (frame.get(), if mapped { Content::Mapped } else { Content::Rests });
    }

    /// Takes it out of RAM: swapped, or empty if it has no slot.
    pub fn set_out(&mut self) {
        self.cancel_write();
        (self.frame, self.content) = (NONE, Content::Rests);
        if self.ahead == Ahead::Neighbour {
            self.ahead = Ahead::No; // it was not used
        }
    }

    /// Takes it out of RAM, where so many pages have been evicted until now.
    pub fn set_evicted(&mut self, nr_evictions: u32) {
        self.set_out();
        self.frame = (OUT | nr_evictions >> LEFT_SHIFT & !OUT).min(NONE - 1);
    }

    /// Pages evicted since it was, of so many until now, within 64 and modulo 2^30. `None`: it was not evicted.
    pub fn nr_evicted_since(&self, nr_evictions: u32) -> Option<u32> {
        let since = |left| ((nr_evictions >> LEFT_SHIFT).wrapping_sub(left) & !OUT) << LEFT_SHIFT;
        (OUT..NONE).contains(&self.frame).then(|| since(self.frame))
    }

    /// Makes it read as zero.
    pub fn set_empty(&mut self) {
        *self = Folio::EMPTY;
    }

    /// The `index`th of the folios of `order` that this folio consists of.
    pub(super) fn part(&self, index: usize, order: Order) -> Folio {
        let (mut part, first) = (*self, index * order.nr_pages());
        part.cancel_write();
        if part.frame < OUT {
            part.frame += first as u32;
        }
        let ahead = if index == 0 { self.ahead } else { Ahead::No };
        Folio { slot: part.slot.plus(first), ahead, ..part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_good_for_nothing_once_the_folio_changed() {
        let (frame, slot) = (FrameId::new(512), SlotId::new(7));
        let changes: [fn(&mut Folio); 5] = [
            |folio| folio.set_in_ram(FrameId::new(512), true),
            |folio| folio.set_slot(Some(SlotId::new(9))),
            |folio| folio.set_empty(),
            |folio| folio.cancel_write(),
            |folio| folio.begin_write(SlotId::new(8)),
        ];
        for change in changes {
            let mut folio = Folio::EMPTY;
            folio.set_in_ram(frame, false);
            folio.begin_write(slot);
            assert_eq!((folio.slot(), folio.writing_to(), folio.state()), (None, Some(slot), State::Standby(frame)));
            assert_eq!(folio.part(1, Order::PAGE).writing_to(), None);
            change(&mut folio);
            assert_ne!(folio.writing_to(), Some(slot));
        }
    }
}
