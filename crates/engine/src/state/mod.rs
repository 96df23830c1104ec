//! The state of the flows: policies, and what is queued, pending or lost.

pub mod compactor;
pub mod faults;
pub mod policy;
pub mod reclaim;
