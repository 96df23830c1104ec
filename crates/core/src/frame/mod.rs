//! The frames of a zone: which are free, which folio is in the others, and what reclaim takes next.
//!
//! - [`FrameId`] here is the number of ONE 4 KiB frame among all zones'; [`FolioId`] the number of a folio's first page in the
//!   span.
//! - A *pageblock* is 512 frames, and has one kind of [`Memory`] at home: none, one huge page, or small pages.
//! - A *run* is 2^k free frames, contiguous and aligned; it lies within one pageblock. A folio of order k takes one.
//! - The *head* of a run or of a folio is its first frame; that frame's record speaks for all of them.
//!
//! A head is in one place at a time:
//! - *absent*: a whole pageblock without memory (never had any, or it was given back to the kernel);
//! - *free*: a run that has memory and no owner;
//! - *held*: taken, on no list (being filled, or isolated by whoever works on it);
//! - *active*, *inactive*, *laundry*, *standby*: taken and on that list. Active and inactive folios are mapped, the
//!   others are not. There is one set of these lists for whole pageblocks and one for smaller folios ([`Size`]);
//! - *listed*: kept by a CPU for who takes a frame there next; to the buddy it is held. No other zone call may name it;
//! - *isolated*: a free run that compaction took out, or a part of one: neither free nor taken;
//! - *leaving*: a whole pageblock taken out by [`Zone::take_surplus`], its memory on the way back to the kernel.
//!
//! Inside: `lists` has the records, their links and the lists of folios; `buddy` the free runs and the pageblocks;
//! `zone` puts both behind one mutex; `percpu` keeps free frames by CPU in front of it;
//! `isolate` is what compaction does with them; `zones` has one for each NUMA node.

mod buddy;
mod counts;
mod isolate;
mod lists;
mod percpu;
mod verify;
mod zone;
mod zones;

pub use buddy::{Memory, Taken};
pub use counts::{ClassCounts, Contiguity, Watermarks, ZoneCounts};
pub use lists::{List, Oldest, Size};
pub use percpu::Paused;
pub use zone::Zone;
pub use zones::Zones;

#[cfg(doc)]
use crate::id::{FolioId, FrameId};
