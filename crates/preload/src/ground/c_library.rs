//! Where the code of the C library and of the loader lies, whether the C library allocates here, and the words through
//! which it calls other libraries.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::export::real;
use crate::ground::guard;
use crate::ground::symbols::Objects;

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

static STATIC_TLS_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The second number of the C library's version.
pub fn minor_version() -> u32 {
    // SAFETY: a C string, which is always there.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().unwrap_or_default();
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

/// What is called for each object that is loaded, until it returns something else than 0.
type EachObject = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// Calls this for each object. Not by a function of that name in another library, which may not be ready yet.
///
/// # Safety
/// The function takes this data, and any object.
pub unsafe fn each_object(each: EachObject, data: *mut c_void) {
    real!(REAL = c"dl_iterate_phdr": fn(EachObject, *mut c_void) -> c_int);
    // SAFETY: the caller upholds this function's own contract.
    unsafe { REAL.get()(each, data) };
}

/// Locates the code of the C library and of the loader, and asks for what only they know.
pub fn prepare() {
    STATIC_TLS_BYTES.store(find_static_tls_bytes(), Ordering::Relaxed);
    for (code, name) in [(&LIBC, c"fopen"), (&LOADER, c"__tls_get_addr")] {
        // SAFETY: the name is a C string, and the callback runs only during this call.
        unsafe {
            code.start.store(libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize, Ordering::Relaxed);
            each_object(find, (code as *const Code).cast_mut().cast());
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

/// A word through which the C library calls a function.
pub struct Word {
    pub addr: usize,
    /// Whether the loader has taken the right to write away.
    pub is_read_only: bool,
}

/// The words through which the loader calls these functions. `None`: each is not there once.
pub fn words_of_loader<const N: usize>(functions: [usize; N]) -> Option<[Word; N]> {
    let mut range = 0..0usize;
    // SAFETY: the callback gets this local, and runs only during this call.
    unsafe { each_object(find_relocated, (&raw mut range).cast()) };
    let places = (range.start.next_multiple_of(size_of::<usize>())..range.end).step_by(size_of::<usize>());
    let found = functions.map(|function| {
        // SAFETY: words of the loader's own data, which stay readable.
        let mut words = places.clone().filter(|&at| unsafe { (at as *const usize).read() } == function);
        words.next().filter(|_| words.next().is_none())
    });
    found.iter().all(Option::is_some).then(|| found.map(|at| Word { addr: at.unwrap_or(0), is_read_only: true }))
}

/// Stores the part of the loader's data that is read-only once it has begun.
unsafe extern "C" fn find_relocated(object: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object with so many headers, and `words_of_loader` its local.
    let (object, found, headers) = unsafe {
        let headers = std::slice::from_raw_parts((*object).dlpi_phdr, (*object).dlpi_phnum.into());
        (&*object, &mut *found.cast::<std::ops::Range<usize>>(), headers)
    };
    let start = |header: &libc::Elf64_Phdr| (object.dlpi_addr + header.p_vaddr) as usize;
    let is_loader = |header: &libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && is_loader(start(header));
    if !headers.iter().any(is_loader) {
        return 0;
    }
    if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO) {
        *found = start(header)..start(header) + header.p_memsz as usize;
    }
    1
}

/// What is looked for in the C library's dynamic section.
struct Wanted<'a> {
    name: &'a CStr,
    found: Option<Word>,
}

/// The word for a function that the C library calls by its name, if it does so through one only.
pub fn word_for(name: &CStr) -> Option<Word> {
    let mut wanted = Wanted { name, found: None };
    // SAFETY: the callback runs only during this call.
    unsafe { each_object(find_word, (&raw mut wanted).cast()) };
    wanted.found
}

/// Looks for the word in the object whose code is the C library's.
unsafe extern "C" fn find_word(object: *mut libc::dl_phdr_info, _size: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object, and `word_for` its local. The object has that many headers.
    let (object, wanted, headers) = unsafe {
        let headers = std::slice::from_raw_parts((*object).dlpi_phdr, (*object).dlpi_phnum.into());
        (&*object, &mut *wanted.cast::<Wanted<'_>>(), headers)
    };
    let base = object.dlpi_addr as usize;
    let range =
        |header: &libc::Elf64_Phdr| base + header.p_vaddr as usize..base + (header.p_vaddr + header.p_memsz) as usize;
    let of = |kind| headers.iter().find(|header| header.p_type == kind).map(range);
    if !headers.iter().any(|header| header.p_type == libc::PT_LOAD && range(header) == code()) {
        return 0;
    }
    let Some(dynamic) = of(libc::PT_DYNAMIC) else { return 1 };
    // SAFETY: the C library's dynamic section, which ends with a zero. Its tables are readable, and have the lengths
    // that it says; a symbol begins with the place of its name.
    let addr = unsafe {
        let value = |tag| dynamic_value(dynamic.start, tag).unwrap_or(0);
        let place = |tag| value(tag) + if value(tag) < base { base } else { 0 };
        let (symbols, names) = (place(SYMTAB), place(STRTAB));
        let named = |entry: &[usize; 3]| {
            let symbol = (symbols + (entry[1] >> 32) * SYMBOL_BYTES) as *const u32;
            CStr::from_ptr((names + symbol.read() as usize) as *const c_char) == wanted.name
        };
        let tables = [(place(RELA), value(RELASZ)), (place(JMPREL), value(PLTRELSZ))];
        let entries = tables.iter().flat_map(|&(at, len)| match len {
            0 => &[][..],
            _ => std::slice::from_raw_parts(at as *const [usize; 3], len / RELOCATION_BYTES),
        });
        let mut words = entries.filter(|entry| entry[1] >> 32 != 0 && named(entry)).map(|entry| base + entry[0]);
        words.next().filter(|_| words.next().is_none())
    };
    let read_only = of(libc::PT_GNU_RELRO).map_or(0..0, |range| range.start..range.end & !4095);
    wanted.found = addr.map(|addr| Word { addr, is_read_only: read_only.contains(&addr) });
    1
}

/// Tags of the dynamic section, and the lengths of what they refer to.
const PLTRELSZ: usize = 2;
pub(super) const STRTAB: usize = 5;
pub(super) const SYMTAB: usize = 6;
const RELA: usize = 7;
const RELASZ: usize = 8;
const JMPREL: usize = 23;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 24;

/// The value of a tag of a dynamic section.
///
/// # Safety
/// The section is there, and ends with a zero.
pub(super) unsafe fn dynamic_value(section: usize, tag: usize) -> Option<usize> {
    let mut at = section as *const [usize; 2];
    // SAFETY: the caller's promise.
    unsafe {
        while (*at)[0] != 0 {
            if (*at)[0] == tag {
                return Some((*at)[1]);
            }
            at = at.add(1);
        }
    }
    None
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
        Objects::loaded().define_before(c"malloc")
    })
}

/// Bytes of a thread's static thread-local storage, from [`prepare`] on.
pub fn static_tls_bytes() -> usize {
    STATIC_TLS_BYTES.load(Ordering::Relaxed)
}

/// Asks the C library for it. Not later than at the start: the loader's lock may be held by one that waits for this
/// thread.
fn find_static_tls_bytes() -> usize {
    /// Where the C library does not say how large it is.
    const USUAL_BYTES: usize = 64 << 10;
    // SAFETY: a C string. Any thread may call dlsym. The function that has this name writes two sizes.
    unsafe {
        let (mut size, mut alignment) = (USUAL_BYTES, 0);
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_get_tls_static_info".as_ptr());
        if !function.is_null() {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut usize, *mut usize)>(function)(
                &raw mut size,
                &raw mut alignment,
            );
        }
        size
    }
}
