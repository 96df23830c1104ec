//! The frames of a zone: which are free, which folio occupies the others, and what reclaim takes next.
//!
//! [`FrameId`] numbers single 4 KiB frames across all zones; [`FolioId`] is the number of a folio's first page in its
//! arena's span. A *pageblock* (512 frames) has one kind of [`Memory`]. A *run* is 2^k free frames, contiguous,
//! aligned, in one pageblock. The *head* of a run or folio is its first frame, whose record stands for all of them. A
//! head is one of:
//! - *absent*: a whole pageblock without memory; *free*: a run with memory and without owner;
//! - *held*: taken, on no list (being filled, or isolated by the thread that works on it);
//! - *active*, *inactive* (mapped), *laundry*, *clean* (on standby): taken, on that list of its class ([`Size`]);
//! - *listed*: kept by a CPU for its next take. The buddy sees it as held; no other zone call may name it;
//! - *isolated*: a free run, or a part of one, that compaction took out: neither free nor taken;
//! - *leaving*: a whole pageblock from [`Pageblocks::take_surplus`] whose memory is on its way back to the kernel.

mod buddy;
mod counts;
mod cpu_lists;
mod frames;
mod isolate;
mod lists;
mod pageblocks;
mod percpu;
mod shortage;
mod verify;
mod zone;
mod zones;

pub use buddy::{Memory, Taken};
pub use counts::{Contiguity, ListCounts, Watermarks, ZoneCounts};
pub use cpu_lists::Paused;
pub use lists::{List, Oldest, Size};
pub use pageblocks::Pageblocks;
pub use shortage::{Miss, Shortage};
pub use zone::Zone;
pub use zones::Zones;

#[cfg(doc)]
use crate::id::{FolioId, FrameId};
