//! What a zone's mutex guards: the records of its frames, the free runs, and the lists of taken folios.

use super::buddy::{BLOCK, Buddy, Memory, PageblockId, Taken};
use super::counts::{ListCounts, Watermarks, ZoneCounts};
use super::lists::{FrameState, List, Lists, Record, Records, Size};
use crate::id::{FolioId, FrameId};
use crate::order::Order;
use crate::packed::Packed;

/// The state of a zone's frames.
pub(super) struct Frames {
    pub records: Records,
    pub buddy: Buddy,
    pub lists: Lists,
    /// In frames; a multiple of the pageblock size.
    pub limit: usize,
    /// Wholly free pageblocks that small folios may not break.
    pub kept_whole: usize,
    /// Index of the pageblock where `Pageblocks::emptiest` continues.
    pub cursor: usize,
}

impl Frames {
    /// Frames without memory that may be populated under the limit.
    pub(super) fn absent(&self) -> usize {
        self.limit.saturating_sub(self.buddy.populated())
    }

    /// Frames that the buddy can hand out.
    pub(super) fn free(&self) -> usize {
        self.free_with(0)
    }

    /// The same as if `nr_listed` of the frames on CPU lists were back in the buddy.
    pub(super) fn free_with(&self, nr_listed: usize) -> usize {
        let in_use = (self.buddy.taken + self.buddy.isolated).saturating_sub(nr_listed);
        self.limit.saturating_sub(in_use).min(self.buddy.free + nr_listed + self.absent())
    }

    pub(super) fn surplus(&self) -> usize {
        (self.buddy.populated() - self.buddy.leaving).saturating_sub(self.limit)
    }

    /// Whether folios smaller than a pageblock may break a wholly free one.
    pub(super) fn may_break(&self) -> bool {
        self.buddy.runs_from(Order::HUGE) + self.limit.saturating_sub(self.buddy.populated()) / BLOCK > self.kept_whole
    }

    /// Whether a run of this order exists. The caller checks the limit.
    pub(super) fn has_run(&self, order: Order) -> bool {
        let whole = || self.buddy.runs_from(Order::HUGE) > 0 || self.absent() > 0;
        self.buddy.has_part(order) || ((order == Order::HUGE || self.may_break()) && whole())
    }

    /// Takes frames if at least `reserve` free frames remain.
    pub(super) fn take_if_left(&mut self, order: Order, reserve: usize) -> Option<Taken> {
        if self.free() < reserve.saturating_add(order.nr_pages()) {
            return None;
        }
        let (absent, may_break) = (self.absent() > 0, self.may_break());
        let records = &mut self.records;
        if order == Order::HUGE {
            let from: &[Memory] = match absent {
                true => &[Memory::Huge, Memory::Absent, Memory::Small],
                false => &[Memory::Huge, Memory::Small],
            };
            return self.buddy.take_whole(records, from);
        }
        let from: &[Memory] = if absent { &[Memory::Absent, Memory::Huge] } else { &[Memory::Huge] };
        let part = self.buddy.take_part(records, order, may_break);
        if may_break { part.or_else(|| self.buddy.take_whole(records, from)) } else { part }
    }

    pub(super) fn set_owner(&mut self, frame: FrameId, folio: FolioId) {
        let record = self.records.taken(frame);
        record.owner = Packed::new(folio.get());
    }

    /// Moves a taken folio, which has an owner, to the head of a list.
    pub(super) fn move_to(&mut self, frame: FrameId, list: List) {
        self.records.taken(frame);
        self.lists.remove(&mut self.records, frame.get());
        self.lists.insert(&mut self.records, frame.get(), list);
    }

    /// Takes a taken folio off its list and clears its owner.
    pub(super) fn disown(&mut self, frame: FrameId) {
        self.records.taken(frame).owner = Packed::NONE;
        self.lists.remove(&mut self.records, frame.get());
    }

    /// The first head at or after this frame, in the same pageblock. It differs from `frame` only if `frame` is no
    /// head.
    pub(super) fn head_from(&self, frame: u32) -> Option<(u32, &Record)> {
        let end = PageblockId::of(frame).first_frame() + BLOCK as u32;
        (frame..end).map(|at| (at, &self.records[at])).find(|(_, record)| record.place != FrameState::Inner)
    }

    pub(super) fn counts(&self, nr_listed: usize) -> ZoneCounts {
        let frames_on = |size, list| self.lists.of(size, list).nr_frames;
        let [whole, small] = Size::ALL.map(|size| ListCounts {
            active: frames_on(size, List::Active),
            inactive: frames_on(size, List::Inactive),
            laundry: frames_on(size, List::Laundry),
            clean: frames_on(size, List::Clean),
        });
        let in_use = self.buddy.taken.saturating_sub(nr_listed);
        // Small folios are taken a few frames at a time, and a reserve is RAM that the program does not have.
        let needs_little = small.in_use().min(self.limit) * 7 / 8;
        ZoneCounts {
            free: self.free_with(nr_listed),
            lists: whole.plus(small),
            small,
            in_use,
            isolated: self.buddy.isolated,
            limit: self.limit,
            excess: in_use.saturating_sub(self.limit),
            populated: self.buddy.populated(),
            surplus: self.surplus(),
            kept_whole: self.kept_whole * BLOCK,
            watermarks: Watermarks::for_pageblocks((self.limit - needs_little) / BLOCK).with_small(needs_little),
        }
    }
}
