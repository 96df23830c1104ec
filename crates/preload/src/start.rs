//! The constructor, which runs before `main` on the program's first thread, and the start of the engine.
//!
//! The engine starts when there is no room any more for what the program asks for, or when it asks for a block that
//! needs the engine. Most programs never do: a shell, a compiler's driver, `true`. They pay for no engine. It also
//! starts before the program starts a thread, since its thread is then the only one, and before it gives up rights that
//! the engine needs. Constructors of libraries run before this one: where one starts a thread, this one comes first.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use folioswap::{
    Arena, DeviceSpec, ExitStatus, FaultMode, MIN_MEMORY, Mapping, RunSettings, SharedCounters, SwapDevice, Topology,
    end_on_panics,
};
use folioswap_sys::{c_thread, fault_stack, hidden_numbers, kept, own_calls, own_table, seat, seccomp};
use libc::{pthread_attr_t, pthread_t};

use crate::alloc::{malloc, program_heap};
use crate::calls::{by_number, dispatch, fork, limits};
use crate::faults::threads::Body;
use crate::faults::{ours, signals, threads};
use crate::ground::export::export;
use crate::ground::heap::{self, FEW_ADDRESSES, PRIVATE};
use crate::ground::state::{self, Phase};
use crate::ground::{c_library, counters, guard, kernel_blocks, real, selector, waiting};
use crate::map::{adopt, footprint, present};
use crate::memory::known;
use crate::sanitizer;

/// Upper limit of the budget's share for the program's ordinary memory.
const MOST_ORDINARY: u64 = 32 << 20;

/// The budget is divided by this to get the share.
const ORDINARY_PART: u64 = 16;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if state::phase() != Phase::Early {
        return;
    }
    let guard = guard::enter();
    prepare();
    drop(guard);
    if ours::has_ours() {
        ours::open_ours(); // the program may have been started with them blocked
    }
}

fn prepare() {
    real::look_up_all();
    own_table::note_stderr();
    let Some(text) = std::env::var_os(RunSettings::VARIABLE) else {
        state::set_phase(Phase::Passing);
        return;
    };
    let settings = RunSettings::parse(text.as_bytes()).unwrap_or_else(|error| state::end(ExitStatus::Failed, &error));
    if let Some(why) = sanitizer::found() {
        return waiting::never_with(&settings, &why);
    }
    let [addresses, _] = heap::limits(libc::RLIMIT_AS);
    if addresses < FEW_ADDRESSES && addresses > settings.memory_bytes {
        return waiting::never_with(&settings, &"it has too few addresses (ulimit -v)");
    }
    if addresses < FEW_ADDRESSES {
        return state::set_phase(Phase::Passing); // they are no more than the budget
    }
    // The place of the run may be taken: a program that emulates another has both in its addresses.
    let prepared = match settings.own_calls {
        0 => own_calls::draw_address().and_then(own_calls::prepare),
        place => own_calls::prepare(place).or_else(|_| own_calls::prepare(own_calls::draw_address()?)),
    };
    if let Err(error) = prepared {
        state::say(&format!("seccomp filters of the program will not exempt folioswap's calls: {error}"));
    }
    if own_calls::is_filtered() && !may_start() {
        return waiting::pass(&ENDED_BY_FILTER); // which may end the process at a call for its counters, too
    }
    known::set_share(ordinary_bytes(&settings) as usize);
    c_library::prepare();
    malloc::prepare();
    c_thread::prepare();
    fault_stack::set_around(|call| {
        let _guard = guard::enter();
        call();
    });
    let room = room_bytes(&settings) as usize;
    adopt::prepare(room, settings.eager);
    if room >= program_heap::LEAST_ROOM_BYTES {
        program_heap::prepare();
    }
    fork::prepare();
    let may_be_direct = settings.faults != FaultMode::Monitor;
    if c_library::has_other_malloc() {
        kernel_blocks::serve(may_be_direct);
    }
    let starts = starts_at_once(&settings);
    waiting::wait(settings, begin_apart);
    signals::prepare(may_be_direct, dispatch::prepare);
    threads::look_at_ends(footprint::before_thread_ends);
    let found = present::find();
    if starts {
        let begun = waiting::begin_now(&mut waiting::waiting()); // the lock is not held at the end
        begun.unwrap_or_else(|error| state::end(ExitStatus::Failed, &error.to_string()));
    }
    limit_present(found);
}

/// Limits what the program has before it begins, if there is no room for it.
fn limit_present(found: Vec<Range<usize>>) {
    found.iter().cloned().for_each(known::note_ordinary);
    if adopt::has_room(0) {
        return;
    }
    let begun = waiting::begin_now(&mut waiting::waiting());
    if let Err(error) = begun {
        return waiting::pass(&error);
    }
    if let Some(space) = state::space() {
        if space.is_locked() { present::limit(space, &found) } else { adopt::all(space) }
    }
}

/// The program's ordinary share of the budget.
fn ordinary_bytes(settings: &RunSettings) -> u64 {
    (settings.memory_bytes / ORDINARY_PART).min(MOST_ORDINARY)
}

/// What the program may map before it is managed.
fn room_bytes(settings: &RunSettings) -> u64 {
    let ordinary = ordinary_bytes(settings);
    let may_be_direct = settings.faults != FaultMode::Monitor;
    match settings.eager || starts_at_once(settings) || may_be_direct && c_library::has_other_malloc() {
        true => ordinary,
        false => (settings.memory_bytes - ordinary) / 4 * 3,
    }
}

/// Whether the engine starts before the program runs, since it may not start as it is asked to: that is said then, and
/// the program does not start.
fn starts_at_once(settings: &RunSettings) -> bool {
    let has_place = |device: &SwapDevice| match &device.spec {
        DeviceSpec::File { path, .. } => path.exists() || path.parent().is_some_and(Path::exists),
        _ => true,
    };
    settings.lock
        || settings.topology.is_some()
        || settings.memory_bytes < MIN_MEMORY
        || !settings.swap.iter().all(has_place)
}

/// Builds the engine, on a stack of its own: the program's may be a small one of a coroutine's.
fn begin_apart(settings: RunSettings) -> Result<(), folioswap::Error> {
    selector::with_net_open(|| fault_stack::run(|| begin_with(settings)))
}

fn begin_with(settings: RunSettings) -> Result<(), folioswap::Error> {
    seat::start_by_system_call();
    let raised = hidden_numbers::raise_limit();
    kept::keep();
    let stats = counters::of(&settings);
    stats.into_iter().for_each(counters::note_in);
    end_on_panics(stats);
    let built = build(settings, stats);
    drop(raised);
    begin(built?);
    Ok(())
}

/// Whether a filter that was set before this program lets the engine start.
fn may_start() -> bool {
    own_calls::begin(); // a program of this run may have set it, with the exemption
    own_calls::survives_start().unwrap_or(false)
}

const ENDED_BY_FILTER: &str =
    "the seccomp filter under which it was started ends a process that makes the calls of folioswap";

fn build(settings: RunSettings, stats: Option<&'static SharedCounters>) -> Result<Arena, folioswap::Error> {
    let mut managed_bytes = settings.memory_bytes;
    if managed_bytes >= MIN_MEMORY {
        managed_bytes = (managed_bytes - ordinary_bytes(&settings)).max(MIN_MEMORY);
    }
    let mut builder = Arena::builder().memory(managed_bytes).faults(settings.faults).mapping(settings.mapping);
    builder = builder.folio(settings.folio).swap_in(settings.swap_in).locked(settings.lock).may_end_soon(true);
    if let Some(path) = settings.topology {
        builder = builder.topology(Topology::from_file(&path)?);
    }
    for device in settings.swap {
        builder = builder.device(device);
    }
    if let Some(stats) = stats {
        builder = builder.shared_stats(stats);
    }
    builder.build()
}

fn begin(arena: Arena) {
    let copies = arena.mapping() == Mapping::Copy;
    if copies {
        refuse_pins();
    }
    PRIVATE.leave_out_of_dumps();
    limits::keep_room_at_start();
    state::adopt(arena).ask_when_stuck(threads::release_when_stuck);
    program_heap::prepare();
    state::set_phase(Phase::Managed);
    known::note_all_open();
    by_number::end_merging();
    // A call of another thread, or a device, must not find its buffer managed half way.
    let is_at_once = state::direct() || copies;
    if let Some(space) = state::space().filter(|_| is_at_once && adopt::is_later()) {
        adopt::all(space);
    }
}

/// With copying, a folio may be evicted while a device writes to its pages, and this data is lost, because pins cannot
/// be seen. So the program is refused the calls that pin pages beyond their end. The filter does not apply to the
/// engine's threads, which are running already.
fn refuse_pins() {
    if let Err(error) = seccomp::refuse([libc::SYS_io_uring_setup, libc::SYS_io_setup]) {
        state::say(&format!(
            "io_uring and libaio could not be refused ({error}): where folios are copied, what they read into memory that leaves RAM is lost"
        ));
    }
}

export! {
    fn pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, body: Body, argument: *mut c_void,
    ) -> c_int {
        if !guard::inside() {
            start(); // a constructor of another library may come first: its thread is one of the program's
        }
        // SAFETY: the caller's call.
        unsafe { threads::create(thread, attributes, body, argument) }
    }

    fn thrd_create(thread: *mut pthread_t, body: Body, argument: *mut c_void) -> c_int {
        // The statuses of C11's threads, which the libc crate lacks.
        const ERROR: c_int = 2;
        const NO_MEMORY: c_int = 3;
        // SAFETY: the caller's call. The body returns an int, of which `thrd_join` gets the lower half of a pointer.
        match unsafe { pthread_create(thread, std::ptr::null(), body, argument) } {
            0 => 0,
            libc::ENOMEM => NO_MEMORY,
            _ => ERROR,
        }
    }
}
