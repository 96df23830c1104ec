//! RAM: frames and their homes, the mapper, zones, taking frames, zeroed memory, locked budgets.

pub mod frames;
pub mod mapper;
pub mod mlock;
pub mod selftest;
pub mod take;
pub mod zeroed;
pub mod zeroed_stock;
pub mod zones;
