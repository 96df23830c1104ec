//! The folio table, and RAM: frames and their homes, the mapper, zones, taking frames and giving them
//! memory, zeroed memory, locked budgets.

mod aside;
pub mod backing;
pub mod copy_mapper;
pub mod demand;
pub mod frames;
pub mod map_error;
pub mod mapper;
pub mod mlock;
pub mod move_mapper;
pub mod oldest;
pub mod ram;
pub mod selftest;
pub mod stock;
pub mod table;
pub mod take;
pub mod waited;
pub mod zeroed;
pub mod zones;
