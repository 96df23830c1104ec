//! The state of the flows: policies, and what is queued, pending or lost.

pub mod buffers;
pub mod compactor;
pub mod device_faults;
pub mod faults;
pub mod kept_copies;
pub mod lost_pages;
pub mod policy;
pub mod read_queue;
pub mod reclaim;
