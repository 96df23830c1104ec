//! Swap: the devices in use with their slots, health and figures; transfers, freeing and discarding; what is
//! being written, and what is to be read ahead.

pub mod attached;
pub mod block;
pub mod device_slot;
pub mod devices;
pub mod discard;
pub mod figures;
pub mod forks;
pub mod free;
pub mod health;
pub mod held;
pub mod info;
pub mod read_queue;
pub mod relief;
pub mod slot_work;
pub mod space;
pub mod transfer;
pub mod writeback;
