//! The way in: delivery of faults on the faulting thread ([`direct`]) or on the engine's ([`monitor`]), swap-in,
//! readahead, and what calls and other processes need in RAM.

pub(crate) mod direct;
pub(crate) mod flow;
pub(crate) mod gather;
pub(crate) mod holds;
pub(crate) mod monitor;
pub(crate) mod readahead;
pub(crate) mod readers;
pub(crate) mod resolve;
pub(crate) mod runs;
pub(crate) mod take;
pub(crate) mod touch;
