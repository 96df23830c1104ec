//! The calling thread's rights to memory with protection keys (pkeys(7)), in a signal handler. The kernel gives a
//! handler the default rights: to memory without a key only. Those of the interrupted code are in its context.
//!
//! Nothing is done until [`note_keys`] says that there are such keys.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::ucontext_t;

/// Where the rights lie in the state of the FPU; 0: there are no keys.
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Where the kernel describes that state, in its legacy part, and how that begins if there is more.
pub const DESCRIBED_AT: usize = 464;
pub const EXTENDED: u32 = 0x4650_5853;
/// Where the state says which of its components it has. Those that it has not are zero.
const COMPONENTS_AT: usize = 512;
const RIGHTS: u64 = 1 << 9;
/// The two bits of memory without a key.
const WITHOUT_KEY: u32 = 0b11;

pub struct Borrowed {
    handlers: u32,
    loaded: u32,
}

/// Notes that the program uses keys.
pub fn note_keys() {
    const HAS_KEYS: u32 = 1 << 4;
    if PLACE.load(Ordering::Relaxed) == 0 && __cpuid(0).eax >= 13 && __cpuid_count(7, 0).ecx & HAS_KEYS != 0 {
        PLACE.store(__cpuid_count(13, RIGHTS.trailing_zeros()).ebx as usize, Ordering::Relaxed);
    }
}

/// Where a context has the rights, and its components.
///
/// # Safety
/// The kernel has made the context for the running handler.
unsafe fn places(context: &ucontext_t) -> Option<(*mut u32, *mut u64)> {
    let place = PLACE.load(Ordering::Relaxed);
    let state = context.uc_mcontext.fpregs.cast::<u8>();
    if place == 0 || state.is_null() {
        return None;
    }
    // SAFETY: the state is at least as long as its legacy part, in which the kernel describes the rest. If that has the
    // rights, they are where the processor puts them.
    unsafe {
        let [magic, _] = state.add(DESCRIBED_AT).cast::<[u32; 2]>().read_unaligned();
        let components = state.add(DESCRIBED_AT + 8).cast::<u64>().read_unaligned();
        (magic == EXTENDED && components & RIGHTS != 0)
            .then(|| (state.add(place).cast(), state.add(COMPONENTS_AT).cast()))
    }
}

/// Gives the running handler the rights of what it has interrupted, and those to memory without a key.
///
/// # Safety
/// The kernel has made the context for the running handler.
pub unsafe fn borrow(context: &ucontext_t) -> Option<Borrowed> {
    // SAFETY: the caller upholds this function's own contract.
    let (rights, components) = unsafe { places(context) }?;
    // SAFETY: the places are the context's.
    let theirs = unsafe { if *components & RIGHTS == 0 { 0 } else { *rights } };
    let (handlers, loaded) = (current(), theirs & !WITHOUT_KEY);
    set(loaded);
    Some(Borrowed { handlers, loaded })
}

impl Borrowed {
    /// Ends that. What the kernel has changed meanwhile, for a new key, is put into the context.
    ///
    /// # Safety
    /// The context is the one that was given to [`borrow`].
    pub unsafe fn give_back(self, context: &mut ucontext_t) {
        let changed = current() ^ self.loaded;
        set(self.handlers);
        // SAFETY: the caller's promise. The places are the context's.
        unsafe {
            if changed != 0
                && let Some((rights, components)) = places(context)
            {
                let theirs = if *components & RIGHTS == 0 { 0 } else { *rights };
                *rights = theirs ^ changed;
                *components |= RIGHTS;
            }
        }
    }
}

fn current() -> u32 {
    let rights;
    // SAFETY: reads a register. The processor has it, as keys are used.
    unsafe { std::arch::asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nostack, nomem)) };
    rights
}

fn set(rights: u32) {
    // SAFETY: memory without a key, all that Rust knows of, stays accessible.
    unsafe { std::arch::asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack)) };
}
