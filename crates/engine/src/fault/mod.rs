//! The way in: delivery of faults on the faulting thread ([`direct`]) or on the engine's ([`monitor`]), swap-in, and
//! readahead.

pub(crate) mod adopt;
pub(crate) mod direct;
pub(crate) mod gather;
pub(crate) mod lost;
pub(crate) mod monitor;
pub(crate) mod own;
pub(crate) mod parts;
pub(crate) mod readahead;
pub(crate) mod swap_in;
pub(crate) mod take;
