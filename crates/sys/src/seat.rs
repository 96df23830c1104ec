//! The engine's threads. Each has a *seat*: a stack of the engine's own, on top of which the C library keeps what it
//! needs for the thread (thread-local storage and the like).
//!
//! The C library takes memory from the program's allocator for a thread that it starts. That may be locked by a thread
//! that waits for a fault. So under `run` it starts only the first, before the program begins. All others are started
//! by a system call, which takes no lock and no memory of either. Before it does anything, the first thread leaves a
//! copy of its seat, the *model*, of which each further seat is a copy. A forked child has none of its parent's
//! threads, but a copy of each seat, and starts its threads there. The C library knows of no thread that a system call
//! has started; in a child it has forgotten those on stacks that are not its own. So nobody else uses the seats. A copy
//! has the thread-local storage of what was loaded when the model was made, and with another C library than glibc
//! there is no model.
//!
//! **Locking.** None. A seat belongs to who has changed its state from free or left.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::c_thread::{counted_threads, cpu_offset, id_offset, own_record};
use crate::memory::{PAGE_SIZE, Reservation, unmap};
use crate::sigbus::is_fronted;
use crate::signals::{self, BLOCKED, Blocked, bit};
use crate::{futex, tls_vector};

/// Threads that a process can have.
const MOST: usize = 1024;

/// Nobody uses the place.
const FREE: u32 = 0;
/// A thread runs, or is being started.
const TAKEN: u32 = 1;
/// The thread that had it is no more: it was the parent's, or has ended.
const LEFT: u32 = 2;
/// No thread has it, and others are copies of it.
const MODEL: u32 = 3;

/// Bytes of the kernel's name of a thread, with the NUL.
const NAME_BYTES: usize = 16;

/// Larger stacks are tried if the C library keeps much on them.
const MOST_STACK_BYTES: usize = 64 << 20;

/// How long a thread is waited for before it is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How often a thread is started that the kernel refuses. It does so while another one tries to execute a program.
const MOST_TRIES: usize = 200;

/// Signals that the program may have blocked on all its threads to wait for them. On a thread of the engine they would
/// be handled. SIGBUS and SIGSYS stay open where this crate handles them itself.
const NOT_ON_ITS_THREADS: u64 =
    bit(libc::SIGSEGV) | bit(libc::SIGILL) | bit(libc::SIGFPE) | bit(libc::SIGTRAP) | bit(libc::SIGABRT);

type Body = Box<dyn FnOnce() + Send>;

struct Seat {
    state: AtomicU32,
    /// Start and length of the stack.
    stack: [AtomicUsize; 2],
    /// Where the C library has its record of the thread; 0: the thread has not begun, or this is not known here.
    record: AtomicUsize,
    /// Where that record has the thread's id, and its CPU; 0: nowhere.
    id_at: AtomicUsize,
    cpu_at: AtomicUsize,
    /// Where the stack of a new thread begins.
    top: AtomicUsize,
    /// The id of the running thread; 0: none.
    thread: AtomicU32,
    /// Cleared by the kernel at the end of a thread that a system call has started.
    is_alive: AtomicU32,
    name: UnsafeCell<[u8; NAME_BYTES]>,
    body: UnsafeCell<Option<Body>>,
}

// SAFETY: the cells are written by the one that has taken the seat before the thread starts, and then used by the
// thread alone. All else is atomic.
unsafe impl Sync for Seat {}

static SEATS: [Seat; MOST] = [const { Seat::new() }; MOST];

/// Seats from here on were never taken.
static NR_USED: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [Seat] {
    &SEATS[..NR_USED.load(Ordering::Acquire)]
}

/// A started thread. Dropping it lets the thread run on.
#[derive(Debug)]
pub struct Thread {
    place: usize,
    /// The C library's handle. `None`: a system call has started it.
    handle: Option<libc::pthread_t>,
}

/// Whether a new thread shares the starter's table of descriptors, or gets a copy of it. Of a table that is shared by
/// threads of the C library's there is no copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Shared,
    Copied,
}

/// Calls `work` with the id of each running thread.
pub fn each_thread(work: impl FnMut(u32)) {
    used().iter().map(|seat| seat.thread.load(Ordering::Relaxed)).filter(|&thread| thread != 0).for_each(work);
}

/// Whether a thread is one of these.
pub fn has(thread: u32) -> bool {
    thread != 0 && used().iter().any(|seat| seat.thread.load(Ordering::Relaxed) == thread)
}

/// In a child with a copy of the memory, before it starts a thread: the parent's threads are not here.
pub(crate) fn inherit() {
    for seat in used() {
        seat.thread.store(0, Ordering::Relaxed);
        let state = if seat.record.load(Ordering::Relaxed) == 0 { TAKEN } else { LEFT };
        if !matches!(seat.state.load(Ordering::Relaxed), FREE | MODEL) {
            seat.state.store(state, Ordering::Relaxed);
        }
    }
}

/// Whether a thread can be started without the C library.
pub(crate) fn are_inherited() -> bool {
    used().iter().any(|seat| seat.state.load(Ordering::Relaxed) == LEFT)
}

/// Starts a thread with signals blocked, those of faults too but for SIGBUS and SIGSYS: in a seat that another one has
/// left, else in a copy of the model, else by the C library. `name` is cut to the kernel's 15 bytes.
///
/// # Errors
/// EAGAIN: too many threads. ENOMEM.
pub(crate) fn spawn(name: &str, stack_bytes: usize, body: Body) -> io::Result<Thread> {
    let _blocked = block_for_new_thread();
    match take_from(LEFT).map_or_else(|| copy_model(stack_bytes), |place| Ok(Some(place)))? {
        Some(place) => SEATS[place].restart(place, name, Table::Shared, body),
        None => begin(name, stack_bytes, body),
    }
}

/// From now on threads are started by a system call where that can be. The C library then does not pass changes of the
/// user and of groups on to them: whoever calls this does that for [`each_thread`].
pub fn start_by_system_call() {
    BY_SYSTEM_CALL.store(true, Ordering::Relaxed);
}

static BY_SYSTEM_CALL: AtomicBool = AtomicBool::new(false);

/// In the first thread, before it does anything that leaves traces in its thread-local storage: makes the model.
pub(crate) fn leave_model() {
    if !BY_SYSTEM_CALL.load(Ordering::Relaxed) {
        return;
    }
    let thread = signals::thread_id();
    let has_record = |seat: &&Seat| seat.record.load(Ordering::Acquire) != 0;
    let own = used().iter().filter(has_record).find(|seat| seat.thread.load(Ordering::Relaxed) == thread);
    if used().iter().all(|seat| seat.state.load(Ordering::Relaxed) != MODEL)
        && let Some(place) = own.and_then(|own| take_copy_of(own, PAGE_SIZE).ok())
    {
        SEATS[place].state.store(MODEL, Ordering::Release);
    }
}

/// Takes a new seat that is a copy of the model. `None`: there is no model, as with another C library than glibc.
fn copy_model(stack_bytes: usize) -> io::Result<Option<usize>> {
    model().map(|model| take_copy_of(model, stack_bytes)).transpose()
}

fn model() -> Option<&'static Seat> {
    used().iter().find(|seat| seat.state.load(Ordering::Acquire) == MODEL)
}

fn take_copy_of(seat: &Seat, stack_bytes: usize) -> io::Result<usize> {
    let place = (0..MOST).find_map(|_| take_free()).ok_or_else(too_many)?;
    let copied = SEATS[place].become_copy_of(seat, stack_bytes);
    copied.map(|()| place).inspect_err(|_| SEATS[place].state.store(FREE, Ordering::Release))
}

/// Starts a thread with a copy of the caller's table of descriptors, in an inherited seat.
///
/// # Errors
/// EAGAIN: too many threads, or no seat was inherited.
pub(crate) fn spawn_with_own_table(name: &str, body: Body) -> io::Result<Thread> {
    let _blocked = block_for_new_thread();
    let place = take_from(LEFT).ok_or_else(too_many)?;
    SEATS[place].restart(place, name, Table::Copied, body)
}

/// As [`signals::block_all`], while a thread is started. That inherits the mask, and gets no signals of faults either,
/// but for those that this crate handles. Nothing else is blocked, although the caller may be in a handler with
/// all signals blocked: who changes the user id waits for the new thread.
fn block_for_new_thread() -> Blocked {
    let not_ours = [libc::SIGBUS, libc::SIGSYS].into_iter().filter(|&signal| !is_fronted(signal)).map(bit);
    Blocked::by(libc::SIG_SETMASK, not_ours.fold(BLOCKED | NOT_ON_ITS_THREADS, |mask, bit| mask | bit))
}

fn too_many() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

/// Repeats a start that the kernel refuses for a moment.
fn patiently<T>(start: impl Fn() -> Result<T, i32>) -> Result<T, i32> {
    for _ in 1..MOST_TRIES {
        match start() {
            Err(libc::EAGAIN) => futex::sleep(POLL_INTERVAL),
            done => return done,
        }
    }
    start()
}

fn take_from(state: u32) -> Option<usize> {
    let take = |seat: &Seat| seat.state.compare_exchange(state, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    used().iter().position(take)
}

/// Takes a place that nobody uses. `None` also if another thread took it first.
fn take_free() -> Option<usize> {
    take_from(FREE).or_else(|| {
        // Counted before it is taken: a thread that is not scheduled in between holds nobody up.
        let more = |nr_used| (nr_used < MOST).then_some(nr_used + 1);
        let place = NR_USED.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        SEATS[place].state.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| place)
    })
}

/// Starts a thread by the C library, on a new stack.
fn begin(name: &str, stack_bytes: usize, body: Body) -> io::Result<Thread> {
    // The new thread must not ask the loader: the one that starts it may have the loader's lock, and wait for it.
    let _ = (cpu_offset(), id_offset(), counted_threads());
    let place = (0..MOST).find_map(|_| take_free()).ok_or_else(too_many)?;
    let seat = &SEATS[place];
    seat.prepare(name, body);
    let begun = seat.begin(stack_bytes);
    begun.map(|handle| Thread { place, handle: Some(handle) }).inspect_err(|_| {
        // SAFETY: the seat is this call's, and no thread runs there.
        unsafe { *seat.body.get() = None };
        seat.state.store(FREE, Ordering::Release);
    })
}

impl Seat {
    const fn new() -> Self {
        Seat {
            state: AtomicU32::new(FREE),
            stack: [const { AtomicUsize::new(0) }; 2],
            record: AtomicUsize::new(0),
            id_at: AtomicUsize::new(0),
            cpu_at: AtomicUsize::new(0),
            top: AtomicUsize::new(0),
            thread: AtomicU32::new(0),
            is_alive: AtomicU32::new(0),
            name: UnsafeCell::new([0; NAME_BYTES]),
            body: UnsafeCell::new(None),
        }
    }

    /// For the one that has taken the seat.
    fn prepare(&self, name: &str, body: Body) {
        let mut bytes = [0; NAME_BYTES];
        let printable = name.bytes().filter(|byte| byte.is_ascii_graphic());
        bytes[..NAME_BYTES - 1].iter_mut().zip(printable).for_each(|(place, byte)| *place = byte);
        // SAFETY: no thread runs here yet, and only the one that has taken the seat comes here.
        unsafe {
            *self.name.get() = bytes;
            // What a parent's thread was to run belongs to that thread.
            std::mem::forget((*self.body.get()).replace(body));
        }
    }

    fn begin(&self, stack_bytes: usize) -> io::Result<libc::pthread_t> {
        let mut bytes = stack_bytes;
        loop {
            let stack = Reservation::new(bytes + PAGE_SIZE, PAGE_SIZE)?;
            stack.protect_rw(stack.addr() + PAGE_SIZE..stack.range().end)?; // the first page guards it
            self.stack[0].store(stack.addr(), Ordering::Relaxed);
            self.stack[1].store(stack.len(), Ordering::Relaxed);
            match patiently(|| self.create(stack.addr() + PAGE_SIZE, bytes)) {
                Ok(handle) => {
                    stack.leak();
                    return Ok(handle);
                }
                // The C library keeps more there.
                Err(libc::EINVAL) if bytes < MOST_STACK_BYTES => bytes *= 2,
                Err(number) => return Err(io::Error::from_raw_os_error(number)),
            }
        }
    }

    /// Gives this seat a stack of so many bytes, and above them a copy of what another one has from where a new
    /// thread's stack begins.
    fn become_copy_of(&self, other: &Seat, stack_bytes: usize) -> io::Result<()> {
        let bytes = PAGE_SIZE + stack_bytes + (other.end() - other.top());
        let stack = Reservation::new(bytes.next_multiple_of(PAGE_SIZE), PAGE_SIZE)?;
        stack.protect_rw(stack.addr() + PAGE_SIZE..stack.range().end)?; // the first page guards it
        self.stack[0].store(stack.addr(), Ordering::Relaxed);
        self.stack[1].store(stack.len(), Ordering::Relaxed);
        stack.leak();
        let moved = |addr: usize| addr.wrapping_sub(other.end()).wrapping_add(self.end());
        let parts = [(&self.id_at, &other.id_at), (&self.cpu_at, &other.cpu_at), (&self.top, &other.top)];
        for (to, from) in parts.into_iter().chain([(&self.record, &other.record)]) {
            let addr = from.load(Ordering::Relaxed);
            to.store(if addr == 0 { 0 } else { moved(addr) }, Ordering::Relaxed);
        }
        self.copy_words(other);
        Ok(())
    }

    /// Copies the words from where a new thread's stack begins. Those that name an address there get the address in
    /// the copy.
    fn copy_words(&self, other: &Seat) {
        let (start, end, top) = (other.stack[0].load(Ordering::Relaxed), other.end(), other.top());
        let moved = |addr: usize| addr.wrapping_sub(end).wrapping_add(self.end());
        for at in (top..end).step_by(size_of::<usize>()) {
            // SAFETY: aligned words of two stacks that are long enough. No thread runs on this one, and of the other
            // one's only the kernel changes some: the CPU, which nobody takes from a copy.
            unsafe {
                let word = (at as *const usize).read_volatile();
                let copied = if (start..end).contains(&word) { moved(word) } else { word };
                let to = moved(at) as *mut usize;
                if to.read() != copied {
                    to.write(copied); // most are zeros, on pages that need not be touched
                }
            }
        }
    }

    fn top(&self) -> usize {
        self.top.load(Ordering::Relaxed)
    }

    /// The end of its stack.
    fn end(&self) -> usize {
        self.stack[0].load(Ordering::Relaxed) + self.stack[1].load(Ordering::Relaxed)
    }

    fn create(&self, stack: usize, len: usize) -> Result<libc::pthread_t, i32> {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut handle = MaybeUninit::<libc::pthread_t>::uninit();
        let checked = |number: i32| if number == 0 { Ok(()) } else { Err(number) };
        // SAFETY: the attributes are initialized before they are used and destroyed after that. The stack is readable,
        // writable and this thread's alone. The seat lives as long as the process.
        unsafe {
            checked(libc::pthread_attr_init(attributes.as_mut_ptr()))?;
            let created = checked(libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack as *mut c_void, len))
                .and_then(|()| {
                    let seat = (&raw const *self).cast_mut().cast();
                    checked(libc::pthread_create(handle.as_mut_ptr(), attributes.as_ptr(), begun, seat))
                });
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            created.map(|()| handle.assume_init())
        }
    }

    /// In the new thread: notes what a child needs to start another one here.
    #[inline(never)]
    fn note_record(&self) {
        let top = 0u64;
        let Some(record) = own_record() else { return };
        self.id_at.store(id_offset().map_or(0, |offset| record + offset), Ordering::Relaxed);
        self.cpu_at.store(cpu_offset().map_or(0, |offset| record.wrapping_add_signed(offset)), Ordering::Relaxed);
        self.top.store((&raw const top) as usize & !63, Ordering::Relaxed);
        self.record.store(record, Ordering::Release);
    }

    /// Starts a thread by a system call, on a stack on which another one ended, or a copy of such a stack.
    fn restart(&'static self, place: usize, name: &str, table: Table, body: Body) -> io::Result<Thread> {
        self.prepare(name, body);
        if let Some(model) = model().filter(|model| model.end() - model.top() == self.end() - self.top()) {
            self.copy_words(model); // not what the thread before has left
        }
        let mut flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_SETTLS
            | libc::CLONE_CHILD_CLEARTID;
        if table == Table::Shared {
            flags |= libc::CLONE_FILES;
        }
        let cpu_at = self.cpu_at.load(Ordering::Relaxed);
        if cpu_at != 0 {
            // SAFETY: the CPU in the C library's record, which the kernel does not keep for the new thread: unknown.
            unsafe { (cpu_at as *mut u32).write_volatile(u32::MAX) };
        }
        self.is_alive.store(1, Ordering::Relaxed);
        let (top, record) = (self.top.load(Ordering::Relaxed), self.record.load(Ordering::Relaxed));
        // SAFETY: the stack below `top`, and the record above it, are no thread's in this process. The seat lives as
        // long as the process, and so does the word that the kernel clears.
        let started = patiently(|| unsafe {
            let seat: *mut c_void = (&raw const *self).cast_mut().cast();
            let no_id = std::ptr::null_mut::<libc::pid_t>();
            let (stack, record) = (top as *mut c_void, record as *mut c_void);
            match libc::clone(restarted, stack, flags, seat, no_id, record, self.is_alive.as_ptr()) {
                -1 => Err(*libc::__errno_location()),
                _ => Ok(()),
            }
        });
        if let Err(number) = started {
            // SAFETY: the seat is this call's, and no thread runs there.
            unsafe { *self.body.get() = None };
            self.state.store(LEFT, Ordering::Release);
            return Err(io::Error::from_raw_os_error(number));
        }
        Ok(Thread { place, handle: None })
    }

    fn run(&self) {
        let thread = signals::thread_id();
        self.thread.store(thread, Ordering::Relaxed);
        let id_at = self.id_at.load(Ordering::Relaxed);
        // SAFETY: the thread's own name and work. The id is that in the C library's record of this thread.
        let body = unsafe {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, self.name.get());
            if id_at != 0 {
                (id_at as *mut u32).write_volatile(thread);
            }
            (*self.body.get()).take()
        };
        if let Some(body) = body {
            body();
        }
        self.thread.store(0, Ordering::Relaxed);
    }
}

extern "C" fn begun(seat: *mut c_void) -> *mut c_void {
    // SAFETY: a seat, which lives as long as the process.
    let seat = unsafe { &*seat.cast::<Seat>() };
    // The C library ends the process with the last thread that it counts: the program's, not this one.
    let counted = counted_threads();
    if counted.is_some_and(|counted| counted.fetch_sub(1, Ordering::SeqCst) == 1) {
        // SAFETY: the program's last thread has ended meanwhile, and saw that this one was counted.
        unsafe { libc::exit(0) };
    }
    compute_as_usual();
    let run = || {
        seat.note_record();
        seat.run();
    };
    match own_record() {
        Some(record) => tls_vector::with_own(record, run),
        None => run(),
    }
    counted.inspect(|counted| _ = counted.fetch_add(1, Ordering::SeqCst));
    std::ptr::null_mut()
}

extern "C" fn restarted(seat: *mut c_void) -> libc::c_int {
    compute_as_usual();
    // SAFETY: as above.
    unsafe { &*seat.cast::<Seat>() }.run();
    0
}

/// Has the thread round as compiled code expects, and ignore exceptions: it has what the program's thread had set that
/// has started it.
fn compute_as_usual() {
    const USUAL: u32 = 0x1f80;
    // SAFETY: as at the start of a process. No computation is under way.
    unsafe { std::arch::asm!("fninit", "ldmxcsr [{usual}]", usual = in(reg) &USUAL) };
}

impl Thread {
    /// Waits for its end.
    pub fn join(self) {
        let that = std::mem::ManuallyDrop::new(self);
        let seat = &SEATS[that.place];
        let Some(handle) = that.handle else {
            while seat.is_alive.load(Ordering::Acquire) != 0 {
                futex::wait_timeout(&seat.is_alive, 1, POLL_INTERVAL); // the kernel wakes other waiters only
            }
            seat.state.store(LEFT, Ordering::Release);
            return;
        };
        // SAFETY: the thread was not joined or detached. After that nobody uses its stack.
        unsafe {
            libc::pthread_join(handle, std::ptr::null_mut());
            seat.record.store(0, Ordering::Release); // a child that is forked now does not use the stack
            let [stack, len] = [&seat.stack[0], &seat.stack[1]].map(|part| part.swap(0, Ordering::Relaxed));
            let _ = unmap(stack, len); // else it stays
        }
        seat.state.store(FREE, Ordering::Release);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            // SAFETY: the thread was not joined or detached. Its stack stays.
            unsafe { libc::pthread_detach(handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Numbers threads from `next` on. Others may start at the same time.
    fn number_from(next: u32) -> io::Result<()> {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (next - 1).to_string())
    }

    #[test]
    fn an_id_is_written_where_it_belongs_only() {
        // The address of a record is in the record too: the id of some thread is equal to one of its halves.
        for _ in 0..100 {
            let (said, hears) = channel();
            let say = move |upper: u32| said.send((upper, signals::thread_id())).unwrap();
            let body = move || say((own_record().unwrap() >> u32::BITS) as u32);
            let thread = spawn("first", 1 << 20, Box::new(body)).unwrap();
            let (upper, _) = hears.recv().unwrap();
            thread.join();
            if let Err(error) = number_from(upper) {
                println!("skipped: threads cannot be numbered: {error}");
                return;
            }
            let (said, hears) = channel();
            let body = move || {
                let place = used().iter().position(|seat| seat.thread.load(Ordering::Relaxed) == signals::thread_id());
                said.send((own_record().unwrap(), signals::thread_id(), place.unwrap())).unwrap();
            };
            let thread = spawn("second", 1 << 20, Box::new(body)).unwrap();
            let (record, id, place) = hears.recv().unwrap();
            let id_at = SEATS[place].id_at.load(Ordering::Relaxed);
            thread.join();
            if id == (record >> u32::BITS) as u32 {
                assert_eq!(id_at, record + id_offset().unwrap(), "the record is at {record:#x}");
                return;
            }
        }
        println!("skipped: no thread got the number that was asked for");
    }

    /// What the calling thread has blocked in the kernel.
    fn is_blocked(signal: i32) -> bool {
        signals::change_mask(libc::SIG_BLOCK, 0) & bit(signal) != 0
    }

    #[test]
    fn a_thread_has_signals_blocked_and_its_starter_not() {
        let before = is_blocked(libc::SIGTERM);
        let (said, hears) = channel();
        let body = move || {
            let blocked = [libc::SIGTERM, libc::SIGABRT, libc::SIGBUS].map(is_blocked);
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            said.send((blocked, name, signals::thread_id())).unwrap();
        };
        let thread = spawn("a-rather-long-name", 256 << 10, Box::new(body)).unwrap();
        let ([term, abrt, bus], name, id) = hears.recv().unwrap();
        thread.join();
        assert!(term && abrt && bus != is_fronted(libc::SIGBUS));
        assert_eq!(name, "a-rather-long-n\n");
        assert_ne!(id, signals::thread_id());
        assert_eq!(is_blocked(libc::SIGTERM), before);
    }
}
