//! What the engine needs of its process: threads, events and gates, messages, shared counters, timing.

pub mod cpu;
pub mod fatal;
pub mod lent;
pub mod lifecycle;
pub mod renewable;
pub mod shared_stats;
pub mod stopwatch;
pub mod threads;
pub mod turns;
pub mod wakeup;
