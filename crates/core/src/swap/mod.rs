//! The swap space: the slots of devices, handed out so that every folio lies in one piece.
//!
//! [`Clusters`] allocates the slots of one device in runs of every order, from clusters by CPU and order; compaction
//! moves what scatters in them together again (`isolate` has what it needs). Freed slots collect in a [`SlotCache`] and
//! go back many at a time, off the path that freed them. [`Availability`] has the devices in the order in which each NUMA
//! node uses them.

mod availability;
mod cluster;
mod cluster_lists;
mod clusters;
mod clusters_take;
mod isolate;
mod slot_cache;

pub use availability::{Attempt, Availability, Listed, Priority};
pub use clusters::Clusters;
pub use slot_cache::{Freed, SlotCache};
