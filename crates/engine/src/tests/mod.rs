//! Tests of the whole engine that look inside it: devices that fail, lie and hang, and plans of faults.

mod adopt;
pub mod bad_device;
mod fault_plans;
mod faulty;
mod flows;
mod hangs;
mod monitor;
mod next_device;
#[path = "../../../sys/tests/support/swap_file.rs"]
pub mod swap_file;
pub mod without_kernel;
