//! The swap space: the slots of swap devices, allocated so that every folio is contiguous.
//!
//! [`Clusters`] allocates the slots of one device in runs of every order, from clusters by CPU and order; `isolate`
//! lets compaction defragment them. [`SlotCache`] collects freed slots and returns them in batches, off the path that
//! freed them. [`Availability`] orders the devices for each NUMA node.

mod allocation;
mod availability;
mod cluster;
mod cluster_link;
mod cluster_lists;
mod cluster_table;
mod clusters;
mod isolate;
mod slot_cache;

pub use availability::{Attempt, Availability, Listed, Priority};
pub use clusters::Clusters;
pub use slot_cache::{Freed, SlotCache};
