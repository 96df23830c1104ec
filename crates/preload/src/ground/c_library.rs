//! Where the code of the C library and of the loader lies, and whether the C library allocates here.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::guard;
use crate::ground::heap::PRIVATE;

/// The segment of an object's code.
struct Code {
    /// An address in it, until it was found.
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Code {
    const fn new() -> Self {
        Code { start: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    fn range(&self) -> std::ops::Range<usize> {
        let start = self.start.load(Ordering::Relaxed);
        start..start + self.len.load(Ordering::Relaxed)
    }
}

static LIBC: Code = Code::new();

static LOADER: Code = Code::new();

/// Locates the code of the C library and of the loader.
pub fn prepare() {
    for (code, name) in [(&LIBC, c"fopen"), (&LOADER, c"__tls_get_addr")] {
        // SAFETY: the name is a C string, and the callback runs only during this call.
        unsafe {
            code.start.store(libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize, Ordering::Relaxed);
            libc::dl_iterate_phdr(Some(find), (code as *const Code).cast_mut().cast());
        }
    }
}

/// Stores the segment that contains the address in a [`Code`], if this object has it.
unsafe extern "C" fn find(object: *mut libc::dl_phdr_info, _size: usize, code: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object, and `code` is one of the statics above.
    let (object, code) = unsafe { (&*object, &*code.cast::<Code>()) };
    let inside = code.start.load(Ordering::Relaxed);
    for index in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: the object has that many headers.
        let header = unsafe { &*object.dlpi_phdr.add(index) };
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        if header.p_type == libc::PT_LOAD && inside.wrapping_sub(start) < header.p_memsz as usize {
            code.start.store(start, Ordering::Relaxed);
            code.len.store(header.p_memsz as usize, Ordering::Relaxed);
            return 1;
        }
    }
    0
}

/// The address range of the C library's code.
pub fn code() -> std::ops::Range<usize> {
    LIBC.range()
}

/// Whether an address is in the loader's code.
pub fn is_loader(addr: usize) -> bool {
    LOADER.range().contains(&addr)
}

/// Whether the C library allocates by another `malloc` than this library's.
pub fn has_other_malloc() -> bool {
    // Once, at the start: later the loader's lock may be held by one that waits for this thread.
    static ANOTHERS: OnceLock<bool> = OnceLock::new();
    *ANOTHERS.get_or_init(|| {
        let _guard = guard::enter();
        // The address proves nothing: an executable may have one of its own that leads to whichever is used.
        // SAFETY: C strings; functions of these types, or null; the block is freed by whoever has made it.
        unsafe {
            let symbol = |name: &CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            let allocate: Option<extern "C" fn(usize) -> *mut c_void> = std::mem::transmute(symbol(c"malloc"));
            let release: Option<extern "C" fn(*mut c_void)> = std::mem::transmute(symbol(c"free"));
            let (Some(allocate), Some(release)) = (allocate, release) else { return false };
            let block = allocate(1);
            release(block);
            !PRIVATE.owns(block.cast())
        }
    })
}
