//! Policies: what to read ahead and what to evict first. They decide; the engine acts.

mod belief;
pub mod drop_behind;
pub mod history;
pub mod neighbours;
pub mod order_choice;
pub mod readahead;
pub mod row;
