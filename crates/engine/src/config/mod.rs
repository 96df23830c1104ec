//! What an arena is told: sizes, folio sizes, the policy of swap-in, the topology; and its errors.

pub mod error;
pub mod folio_size;
pub mod size;
pub mod swap_in_policy;
pub mod topology;
