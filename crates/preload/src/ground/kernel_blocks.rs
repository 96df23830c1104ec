//! Blocks of the C library's own that the kernel reads or fills: buffers of streams and of directories, sets of CPUs.
//! And a thread's values of keys, which the C library clears in a forked child before that has its memory. In a program
//! with another allocator they would be in managed memory, in calls that cannot be covered. So the C library's requests
//! for them are led here, to the ordinary heap.
//!
//! The C library calls the allocator through four words. The requests are known by their return addresses, which are
//! found by making one of each kind at the start. It frees all of them itself, by the word for `free`.
//!
//! What it and the loader request for this library's own code also comes from here: the program's allocator may not be
//! ready before `main`, and may hold its lock while it maps memory, for which the engine and its threads start.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null_mut, write_volatile};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::ground::export::real;
use crate::ground::heap::{Heap, ORDINARY, PRIVATE};
use crate::ground::real::own;
use crate::ground::{c_library, guard};
use folioswap::PAGE_SIZE;

real!(OPEN_STREAM = c"fopen": fn(*const libc::c_char, *const libc::c_char) -> *mut libc::FILE);
real!(CLOSE_STREAM = c"fclose": fn(*mut libc::FILE) -> c_int);
real!(READ_BYTE = c"fgetc": fn(*mut libc::FILE) -> c_int);
real!(READ_LINE = c"getline": fn(*mut *mut libc::c_char, *mut usize, *mut libc::FILE) -> isize);
real!(OPEN_FOLDER = c"opendir": fn(*const libc::c_char) -> *mut libc::DIR);
real!(CLOSE_FOLDER = c"closedir": fn(*mut libc::DIR) -> c_int);
real!(ATTRIBUTES = c"pthread_getattr_np": fn(libc::pthread_t, *mut libc::pthread_attr_t) -> c_int);
real!(DESTROY = c"pthread_attr_destroy": fn(*mut libc::pthread_attr_t) -> c_int);

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Resize = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type AllocateZeroed = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Release = unsafe extern "C" fn(*mut c_void);

/// The program's functions. All are there once the words lead here.
static THEIRS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
const NAMES: [&CStr; 4] = [c"malloc", c"realloc", c"free", c"calloc"];

/// The return addresses of requests.
static SITES: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// The thread that finds those of a kind, or 0.
static FINDS_NEW: AtomicU32 = AtomicU32::new(0);
static FINDS_RESIZED: AtomicU32 = AtomicU32::new(0);

/// The heap for a request that is served here: it is of a kind that matters, or of this library's own code.
fn heap_for(caller: usize, finder: &AtomicU32) -> Option<&'static Heap> {
    let finder = finder.load(Ordering::Relaxed);
    if finder != 0 && finder == guard::this_thread() {
        let _ = SITES.iter().find(|site| {
            let free = site.compare_exchange(0, caller, Ordering::Relaxed, Ordering::Relaxed);
            free.is_ok() || free == Err(caller)
        });
    }
    match SITES.iter().any(|site| site.load(Ordering::Relaxed) == caller) {
        true => Some(&ORDINARY),
        false => guard::inside().then_some(&PRIVATE),
    }
}

/// The heap that a block is of, if it was served here.
fn heap_of(block: *mut c_void) -> Option<&'static Heap> {
    [&ORDINARY, &PRIVATE].into_iter().find(|heap| heap.owns(block.cast()))
}

fn theirs(index: usize) -> usize {
    THEIRS[index].load(Ordering::Relaxed)
}

extern "C" fn allocate_for(size: usize, caller: usize) -> *mut c_void {
    let block = heap_for(caller, &FINDS_NEW).map_or(null_mut(), |heap| heap.allocate(size, 1));
    if !block.is_null() {
        return block.cast();
    }
    // SAFETY: the program's malloc.
    unsafe { std::mem::transmute::<usize, Allocate>(theirs(0))(size) }
}

extern "C" fn resize_for(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: each allocator gets a block of its own. The program's realloc.
    unsafe {
        if let Some(heap) = heap_of(block) {
            return heap.resize(block.cast(), size).cast();
        }
        if block.is_null()
            && let Some(heap) = heap_for(caller, &FINDS_RESIZED)
        {
            let block = heap.allocate(size, 1);
            if !block.is_null() {
                return block.cast();
            }
        }
        std::mem::transmute::<usize, Resize>(theirs(1))(block, size)
    }
}

/// A thread's values of keys beyond the first 32 (`pthread_setspecific`): so many entries with a number and a value.
const NR_VALUES: usize = 32;
pub const VALUES_BYTES: usize = NR_VALUES * 2 * size_of::<usize>();

extern "C" fn allocate_zeroed_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    let are_values = (count, size) == (NR_VALUES, VALUES_BYTES / NR_VALUES) && c_library::code().contains(&caller);
    let heap = if are_values { Some(&ORDINARY) } else { guard::inside().then_some(&PRIVATE) };
    if let Some(heap) = heap {
        let block = heap.allocate(count * size, 1);
        if !block.is_null() {
            // SAFETY: a new block of this size.
            unsafe { block.write_bytes(0, count * size) };
            return block.cast();
        }
    }
    // SAFETY: the program's calloc.
    unsafe { std::mem::transmute::<usize, AllocateZeroed>(theirs(3))(count, size) }
}

extern "C" fn release(block: *mut c_void) {
    // SAFETY: as above. The program's free.
    unsafe {
        match heap_of(block) {
            Some(heap) => heap.release(block.cast()),
            None => std::mem::transmute::<usize, Release>(theirs(2))(block),
        }
    }
}

/// Passes the return address on.
#[unsafe(naked)]
unsafe extern "C" fn allocate(size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov rsi, [rsp]", "jmp {next}", next = sym allocate_for)
}

#[unsafe(naked)]
unsafe extern "C" fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {next}", next = sym resize_for)
}

#[unsafe(naked)]
unsafe extern "C" fn allocate_zeroed(count: usize, size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {next}", next = sym allocate_zeroed_for)
}

fn note_theirs() {
    for (name, function) in NAMES.iter().zip(&THEIRS) {
        // SAFETY: a C string.
        function.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize, Ordering::Relaxed);
    }
}

/// Leads the C library's and the loader's requests here. Where the words are not found, all stays as it is.
/// `for_kernel`: finds those of blocks for the kernel. Called under a guard, once.
pub fn serve(for_kernel: bool) {
    note_theirs();
    let theirs = [0, 1, 2, 3].map(theirs);
    if theirs.contains(&0) {
        return;
    }
    // Looked for first: each frees what the other has requested.
    let loaders = c_library::words_of_loader(theirs);
    if let [Some(allocate), Some(resize), Some(release), Some(zeroed)] = NAMES.map(c_library::word_for)
        && lead_all(&[allocate, resize, release, zeroed])
    {
        let _ = loaders.is_some_and(|words| lead_all(&words));
        if for_kernel {
            find_sites();
        }
    }
}

/// Makes the words for these functions lead here. `false`: not all could be; what has been led passes all on.
fn lead_all(words: &[c_library::Word; 4]) -> bool {
    let ours = [allocate as *const (), resize as *const (), release as *const (), allocate_zeroed as *const ()];
    [2, 3, 0, 1].iter().all(|&index| lead(&words[index], ours[index] as usize))
}

/// Makes a word lead to a function.
fn lead(word: &c_library::Word, function: usize) -> bool {
    let page = word.addr & !4095;
    let protect = |access: c_int| {
        // SAFETY: the page of the C library's word, which stays readable.
        unsafe { own!(libc::SYS_mprotect, page, PAGE_SIZE, access) == 0 }
    };
    if word.is_read_only && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // SAFETY: an aligned word that may be written. Other threads read it at once.
    unsafe { write_volatile(word.addr as *mut usize, function) };
    !word.is_read_only || protect(libc::PROT_READ)
}

fn find_sites() {
    let me = guard::this_thread();
    FINDS_NEW.store(me, Ordering::Relaxed);
    // SAFETY: C strings, and a stream and a folder that were opened here.
    unsafe {
        let stream = OPEN_STREAM.get()(c"/proc/self/stat".as_ptr(), c"re".as_ptr());
        if !stream.is_null() {
            READ_BYTE.get()(stream);
            CLOSE_STREAM.get()(stream);
        }
        let folder = OPEN_FOLDER.get()(c"/".as_ptr());
        if !folder.is_null() {
            CLOSE_FOLDER.get()(folder);
        }
    }
    FINDS_NEW.store(0, Ordering::Relaxed);
    FINDS_RESIZED.store(me, Ordering::Relaxed);
    let mut attributes = std::mem::MaybeUninit::uninit();
    // SAFETY: a local, which is filled in on success.
    unsafe {
        if ATTRIBUTES.get()(libc::pthread_self(), attributes.as_mut_ptr()) == 0 {
            DESTROY.get()(attributes.as_mut_ptr());
        }
    }
    FINDS_RESIZED.store(0, Ordering::Relaxed);
    // The program frees what getline gives it, by its own function.
    let (mut line, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: as above; the line is null, or the C library's block.
    unsafe {
        let stream = OPEN_STREAM.get()(c"/proc/self/stat".as_ptr(), c"re".as_ptr());
        if !stream.is_null() {
            READ_LINE.get()(&raw mut line, &raw mut len, stream);
            CLOSE_STREAM.get()(stream);
        }
        if ORDINARY.owns(line.cast()) {
            SITES.iter().for_each(|site| site.store(0, Ordering::Relaxed));
        }
        release(line.cast());
    }
}
