//! Moving what a device holds elsewhere: removal of a device, evacuation of a failing one, write-back of compressed RAM.

pub mod evacuate;
pub mod remove;
pub mod write_back;
