//! The CPU that a thread of the engine works for.

use std::cell::Cell;

use folioswap_core::CpuId;

/// Faults of one served thread between two lookups of its CPU.
const FAULTS_ON_ONE_CPU: u32 = 32;

thread_local! {
    /// CPU of the thread that this thread serves; `None` if it serves itself.
    static SERVED: Cell<Option<CpuId>> = const { Cell::new(None) };
    /// The served thread, and how many more of its faults are assumed to come from that CPU.
    static ASKED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// CPU of this thread, or of the thread that it serves. Selects per-CPU data and the nearest zone.
pub(crate) fn current_cpu() -> CpuId {
    SERVED.get().unwrap_or_else(|| CpuId::new(folioswap_sys::cpu::current_cpu() as u32))
}

/// From now on this thread serves `thread`: what it takes is near the CPU on which that thread faulted.
pub(crate) fn work_for(thread: u32) {
    match ASKED.get() {
        (same, left @ 1..) if same == thread => ASKED.set((thread, left - 1)),
        _ => {
            SERVED.set(folioswap_sys::cpu::cpu_of(thread).map(CpuId::from_index));
            ASKED.set((thread, FAULTS_ON_ONE_CPU - 1));
        }
    }
}
