//! What the engine needs of its process: threads, events and gates, fork, messages, shared counters, timing.

pub mod cpu;
pub mod fatal;
pub mod fork;
pub mod lent;
pub mod shared_stats;
pub mod stopwatch;
pub mod threads;
pub mod wakeup;
