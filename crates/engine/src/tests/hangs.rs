//! Tests of programs, signals, forks and slow devices that interrupt other work: no thread waits for itself, and
//! slowness alone ends nothing.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use folioswap_core::Order;
use folioswap_sys::signals;

use crate::arena::Arena;
use crate::arena::advice::{self, Advice};
use crate::arena::region::Region;
use crate::arena::tuning::Tuning;
use crate::config::fault_mode::FaultMode;
use crate::device::Device;
use crate::fault::take::PATIENCE;
use crate::process::wakeup::{Gate, comes_true};

const MIB: usize = 1 << 20;

/// Called in the middle of a write, by the thread that writes.
type During = Box<dyn Fn() + Send + Sync>;

/// A device that makes this call in each write.
struct Watched {
    bytes: Mutex<Vec<u8>>,
    during: During,
}

impl Device for Watched {
    fn limit_bytes(&self) -> Option<u64> {
        Some(self.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (self.during)();
        self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn name(&self) -> String {
        "a watched device".into()
    }
}

/// An arena with a budget of 16 MiB on such a device, without background activity.
fn arena(patience: Duration, during: impl Fn() + Send + Sync + 'static) -> Arena {
    let device: Box<dyn Device> = Box::new(Watched { bytes: Mutex::new(vec![0; 64 * MIB]), during: Box::new(during) });
    let builder = Arena::builder().memory(16 << 20).folio(Order::HUGE).faults(FaultMode::Direct);
    builder.tuning(Tuning { compaction: None, ..Tuning::default() }).patience(patience).build_on(vec![device]).unwrap()
}

/// Time limit for a thread that might wait for itself.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a thread is watched that should wait.
const A_WHILE: Duration = Duration::from_millis(200);

#[test]
fn a_device_may_take_longer_than_the_limit() {
    let goes_on = Arc::new(AtomicBool::new(false));
    let is_released = Arc::clone(&goes_on);
    let arena = arena(Duration::from_millis(50), move || {
        comes_true("the device goes on", || is_released.load(Ordering::SeqCst));
    });
    // All frames are being written to the device, and more threads want some.
    let mut region = arena.map(48 * MIB).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = region.chunks_mut(2 * MIB).map(|block| scope.spawn(|| block.fill(7))).collect();
        comes_true("it is said what they wait for", || arena.engine().patience().has_said_stall());
        goes_on.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(region.iter().all(|&byte| byte == 7));
}

thread_local! {
    /// What this thread's SIGUSR1 handler touches: an address, and the number of blocks from there.
    static TOUCHED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static NR_TOUCHES: Cell<u64> = const { Cell::new(0) };
}

extern "C" fn touch(_signal: libc::c_int) {
    let (addr, nr_blocks) = TOUCHED.get();
    for block in 0..nr_blocks {
        // SAFETY: memory of a region that outlives the signals of its thread.
        unsafe { std::ptr::with_exposed_provenance::<u8>(addr + block * Order::HUGE.bytes()).read_volatile() };
    }
    NR_TOUCHES.set(NR_TOUCHES.get() + 1);
}

/// Makes each SIGUSR1 of the calling thread touch a region from now on.
fn touch_on_signal(region: &Region) {
    TOUCHED.set((region.as_ptr().expose_provenance(), region.len() / Order::HUGE.bytes()));
    // SAFETY: the handler touches memory and thread-locals of its own thread and calls nothing else.
    let before = unsafe { libc::signal(libc::SIGUSR1, touch as *const () as libc::sighandler_t) };
    assert_ne!(before, libc::SIG_ERR);
}

#[test]
fn a_handler_may_touch_what_its_thread_is_sending_out() {
    let arena = arena(PATIENCE, || signals::send(signals::thread_id(), libc::SIGUSR1).unwrap());
    let mut region = arena.map(4 * MIB).unwrap();
    region.fill(7);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        touch_on_signal(&region);
        region.advise(.., Advice::Cold);
        tell.send((region, NR_TOUCHES.get())).unwrap();
    });
    let (region, nr_touches) = told.recv_timeout(LIMIT).expect("it waits for the block that it has locked itself");
    assert!(nr_touches >= 2 && region.iter().all(|&byte| byte == 7));
}

#[test]
fn a_handler_runs_between_two_blocks_that_are_worked_on() {
    let arena = arena(PATIENCE, || {});
    let mut region = arena.map(8 * MIB).unwrap();
    region.fill(7);
    touch_on_signal(&region);
    let engine = arena.engine();
    let first = engine.table().page_at(region.as_ptr() as usize).block().index();
    let mut nr_touches = Vec::new();
    advice::each_block_of(engine, first..first + 4, |_| {
        signals::send(signals::thread_id(), libc::SIGUSR1).unwrap();
        nr_touches.push(NR_TOUCHES.get());
    });
    assert_eq!((nr_touches, NR_TOUCHES.get()), (vec![0, 1, 2, 3], 4));
}

#[test]
fn a_fork_comes_between_two_blocks_that_are_sent_out() {
    let ((tell, told), (answer, answered)) = (mpsc::channel(), mpsc::channel());
    let answered = Mutex::new(answered);
    let arena = arena(PATIENCE, move || {
        tell.send(()).unwrap();
        answered.lock().unwrap().recv().unwrap();
    });
    let mut region = arena.map(4 * MIB).unwrap();
    region.fill(7);
    let (gate, forked) = (&arena.engine().gate(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| region.advise(.., Advice::Cold));
        told.recv().unwrap();
        scope.spawn(|| {
            gate.close(signals::thread_id());
            forked.store(true, Ordering::SeqCst);
            gate.open();
        });
        comes_true("it is about to fork", || gate.is_closed());
        answer.send(()).unwrap();
        told.recv().unwrap();
        let has_forked = forked.load(Ordering::SeqCst);
        answer.send(()).unwrap();
        assert!(has_forked, "it waits until all is sent out");
    });
}

#[test]
fn all_is_evicted_inside_the_fork_gate_only() {
    let arena = arena(PATIENCE, || {});
    let gate = arena.engine().gate();
    gate.close(signals::thread_id());
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let arena = &arena;
        scope.spawn(move || {
            arena.evict_all();
            let _ = tell.send(());
        });
        let is_early = told.recv_timeout(A_WHILE).is_ok();
        gate.open();
        assert!(!is_early, "it has looked at what a fork copies");
    });
}

/// Whether a handler has run while its thread was inside the gate.
static WAS_INSIDE: AtomicBool = AtomicBool::new(false);
static GATE: AtomicPtr<Gate> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn look_inside(_: i32) {
    // SAFETY: the test has set it, and its arena outlives the signals.
    let gate = unsafe { &*GATE.load(Ordering::SeqCst) };
    WAS_INSIDE.fetch_or(!gate.is_empty(), Ordering::SeqCst);
}

#[test]
fn no_handler_runs_inside_the_gate_while_ram_is_compacted() {
    let arena = arena(PATIENCE, || {});
    let engine = arena.engine();
    GATE.store((&raw const *engine.gate()).cast_mut(), Ordering::SeqCst);
    // SAFETY: the handler looks at atomics only.
    let before = unsafe { libc::signal(libc::SIGUSR2, look_inside as *const () as libc::sighandler_t) };
    assert_ne!(before, libc::SIG_ERR);
    engine.compactor().begin_direct(); // for which the other waits
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let arena = &arena;
        scope.spawn(move || {
            tell.send(signals::thread_id()).unwrap();
            arena.compact();
        });
        let thread = told.recv().unwrap();
        comes_true("it compacts", || !engine.gate().is_empty());
        signals::send(thread, libc::SIGUSR2).unwrap();
        std::thread::sleep(A_WHILE); // a handler that may run does
        engine.compactor().end_direct();
    });
    assert!(!WAS_INSIDE.load(Ordering::SeqCst), "its fault might wait for a fork that waits for this thread");
}
