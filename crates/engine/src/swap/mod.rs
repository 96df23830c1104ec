//! Swap: the devices in use with their slots, health and figures; checksums, transfers, freeing and discarding.

pub mod attached;
pub mod block;
pub mod device_slot;
pub mod devices;
pub mod discard;
pub mod figures;
pub mod forks;
pub mod free;
mod freeing;
pub mod health;
pub mod held;
pub mod info;
pub mod relief;
pub mod slot_work;
pub mod space;
pub mod transfer;
