//! The folio table, lost pages, and RAM: frames and their homes, the mapper, zones, taking frames and giving them
//! memory, who wants some, zeroed memory, locked budgets.

mod aside;
pub mod backing;
pub mod compactor;
pub mod copy_mapper;
pub mod demand;
pub mod frames;
pub mod hold_counts;
pub mod kept_copies;
pub mod lost;
pub mod map_error;
pub mod mapper;
pub mod mlock;
pub mod move_mapper;
pub mod oldest;
pub mod patience;
pub mod ram;
pub mod selftest;
pub mod stock;
pub mod table;
pub mod take;
pub mod waited;
pub mod zeroed;
pub mod zones;
