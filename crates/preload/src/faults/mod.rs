//! Faults on the program's threads: their signals, stacks, and the threads themselves.

pub mod caught;
pub mod cleared;
pub mod ended_tls;
pub mod masks;
pub mod net;
pub mod only_thread;
pub mod ours;
pub mod robust;
pub mod rseq;
pub mod signal_stack;
pub mod signals;
pub mod small_stack;
pub mod threads;
