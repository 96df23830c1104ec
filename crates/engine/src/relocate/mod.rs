//! Moves a device's content elsewhere: removal of a device, evacuation of a failing one, writeback of compressed RAM.

pub mod evacuate;
pub mod remove;
pub mod write_back;
