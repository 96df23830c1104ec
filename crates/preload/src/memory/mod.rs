//! What is known of the program's memory, and the covers that make it ready for the kernel.

pub mod access;
pub mod bounce;
pub mod cover;
pub mod held;
pub mod key_rights;
pub mod known;
pub mod open_pages;
pub mod pages;
pub mod refused;
pub mod resident;
pub mod size_limit;
pub mod small_buffers;
pub mod transfer;
pub mod uncached;
