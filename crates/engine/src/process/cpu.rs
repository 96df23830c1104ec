//! The CPU that a thread of the engine works for.

use folioswap_core::CpuId;
use folioswap_sys::own_calls;
use folioswap_sys::static_tls;
use folioswap_sys::static_tls::StaticTls;

/// Faults of one served thread between two lookups of its CPU.
const FAULTS_ON_ONE_CPU: u32 = 32;

static_tls! {
    /// Whether this thread serves another whose CPU is known, and that CPU.
    static SERVED: (bool, u32) = "folioswap_served_cpu";
}

static_tls! {
    /// The served thread, and how many more of its faults are assumed to come from that CPU.
    static ASKED: (u32, u32) = "folioswap_asked";
}

/// CPU of this thread, or of the thread that it serves. Selects per-CPU data and the nearest zone.
pub(crate) fn current_cpu() -> CpuId {
    match SERVED.get() {
        (true, cpu) => CpuId::new(cpu),
        _ => CpuId::new(folioswap_sys::cpu::current_cpu() as u32),
    }
}

/// A CPU that a thread works for, if that is known.
#[derive(Clone, Copy)]
pub(crate) struct ServedCpu((bool, u32));

/// The CPU that this thread works for.
pub(crate) fn served() -> ServedCpu {
    ServedCpu(SERVED.get())
}

/// Makes this thread work for the same CPU again.
pub(crate) fn serve(ServedCpu(cpu): ServedCpu) {
    SERVED.set(cpu);
}

/// The CPU that runs a thread, or ran it last. `None`: it is gone, or a filter of the program's may forbid to look.
fn of(thread: u32) -> Option<usize> {
    own_calls::unless_used(|| folioswap_sys::cpu::cpu_of(thread)).flatten()
}

/// From now on this thread serves `thread`: what it takes is near the CPU on which that thread faulted.
pub(crate) fn work_for(thread: u32) {
    match ASKED.get() {
        (same, left @ 1..) if same == thread => ASKED.set((thread, left - 1)),
        _ => {
            let cpu = of(thread);
            SERVED.set((cpu.is_some(), cpu.unwrap_or(0) as u32));
            ASKED.set((thread, FAULTS_ON_ONE_CPU - 1));
        }
    }
}
