//! Policies: what to bring in before it is asked for, and what to let go first. They decide; the engine does.

pub mod drop_behind;
pub mod order_choice;
pub mod overrun;
pub mod readahead;
