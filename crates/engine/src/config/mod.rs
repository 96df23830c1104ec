//! What an arena is told: sizes, folio sizes, the policy of swap-in, the topology; and its errors.

pub mod error;
pub mod exit_status;
pub mod fault_mode;
pub mod folio_size;
pub mod limits;
pub mod mapping;
pub mod size;
pub mod swap_in_policy;
