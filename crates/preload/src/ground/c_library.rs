//! Where the code of the C library and of the loader lies, whether the C library allocates here, and the words through
//! which it calls other libraries.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::export::real;
use crate::ground::guard;
use crate::ground::symbols::Objects;

/// The segment of an object's code.
struct Code {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Code {
    const fn new() -> Self {
        Code { start: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    fn range(&self) -> Range<usize> {
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

pub struct Object<'a> {
    /// What is to be added to the addresses in its headers.
    pub base: usize,
    headers: &'a [libc::Elf64_Phdr],
}

impl Object<'_> {
    /// Its parts of a kind: segments (`PT_LOAD`), or what lies in them.
    pub fn parts(&self, kind: u32) -> impl Iterator<Item = Range<usize>> {
        self.headers.iter().filter(move |header| header.p_type == kind).map(|header| {
            let start = self.base + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        })
    }

    /// Whether an address is in one of its segments.
    pub fn has(&self, addr: usize) -> bool {
        self.parts(libc::PT_LOAD).any(|segment| segment.contains(&addr))
    }
}

type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
// Not by a function of that name in another library, which may not be ready yet.
real!(EACH_OBJECT = c"dl_iterate_phdr": fn(Callback, *mut c_void) -> c_int);

/// Calls this for each object that is loaded, until it returns `true`.
pub fn each_object<F: FnMut(&Object<'_>) -> bool>(mut each: F) {
    unsafe extern "C" fn call<F: FnMut(&Object<'_>) -> bool>(
        object: *mut libc::dl_phdr_info,
        _size: usize,
        each: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid object with so many headers, and the function of `each_object`.
        let (object, each) = unsafe {
            let headers = std::slice::from_raw_parts((*object).dlpi_phdr, (*object).dlpi_phnum.into());
            (Object { base: (*object).dlpi_addr as usize, headers }, &mut *each.cast::<F>())
        };
        each(&object).into()
    }
    // SAFETY: `call` takes this function, which lives as long as this call.
    unsafe { EACH_OBJECT.get()(call::<F>, (&raw mut each).cast()) };
}

/// Locates the code of the C library and of the loader, and asks for what only they know.
pub fn prepare() {
    STATIC_TLS_BYTES.store(find_static_tls_bytes(), Ordering::Relaxed);
    for (code, name) in [(&LIBC, c"fopen"), (&LOADER, c"__tls_get_addr")] {
        // SAFETY: the name is a C string.
        let inside = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        each_object(|object| {
            let found = object.parts(libc::PT_LOAD).find(|segment| segment.contains(&inside));
            if let Some(segment) = &found {
                code.start.store(segment.start, Ordering::Relaxed);
                code.len.store(segment.len(), Ordering::Relaxed);
            }
            found.is_some()
        });
    }
}

/// A word through which the C library calls a function.
pub struct Word {
    pub addr: usize,
    /// Whether the loader has taken the right to write away.
    pub is_read_only: bool,
}

/// The words through which the loader calls these functions. `None`: each is not there once.
pub fn words_of_loader<const N: usize>(functions: [usize; N]) -> Option<[Word; N]> {
    let mut range = 0..0;
    each_object(|object| {
        let is_the_loader = object.parts(libc::PT_LOAD).any(|segment| is_loader(segment.start));
        if is_the_loader {
            range = object.parts(libc::PT_GNU_RELRO).next().unwrap_or_default(); // read-only once it has begun
        }
        is_the_loader
    });
    let places = (range.start.next_multiple_of(size_of::<usize>())..range.end).step_by(size_of::<usize>());
    let found = functions.map(|function| {
        // SAFETY: words of the loader's own data, which stay readable.
        let mut words = places.clone().filter(|&at| unsafe { (at as *const usize).read() } == function);
        words.next().filter(|_| words.next().is_none())
    });
    found.iter().all(Option::is_some).then(|| found.map(|at| Word { addr: at.unwrap_or(0), is_read_only: true }))
}

/// The word for a function that the C library calls by its name, if it does so through one only.
pub fn word_for(name: &CStr) -> Option<Word> {
    let mut word = None;
    each_object(|object| {
        let is_libc = object.parts(libc::PT_LOAD).any(|segment| segment == code());
        if is_libc {
            word = word_in(object, name);
        }
        is_libc
    });
    word
}

/// The same in the object whose code is the C library's.
fn word_in(object: &Object<'_>, name: &CStr) -> Option<Word> {
    let base = object.base;
    let dynamic = object.parts(libc::PT_DYNAMIC).next()?;
    // SAFETY: the C library's dynamic section, which ends with a zero. Its tables are readable, and have the lengths
    // that it says; a symbol begins with the place of its name.
    let addr = unsafe {
        let value = |tag| dynamic_value(dynamic.start, tag).unwrap_or(0);
        let place = |tag| value(tag) + if value(tag) < base { base } else { 0 };
        let (symbols, names) = (place(SYMTAB), place(STRTAB));
        let named = |entry: &[usize; 3]| {
            let symbol = (symbols + (entry[1] >> 32) * SYMBOL_BYTES) as *const u32;
            CStr::from_ptr((names + symbol.read() as usize) as *const c_char) == name
        };
        let tables = [(place(RELA), value(RELASZ)), (place(JMPREL), value(PLTRELSZ))];
        let entries = tables.iter().flat_map(|&(at, len)| match len {
            0 => &[][..],
            _ => std::slice::from_raw_parts(at as *const [usize; 3], len / RELOCATION_BYTES),
        });
        let mut words = entries.filter(|entry| entry[1] >> 32 != 0 && named(entry)).map(|entry| base + entry[0]);
        words.next().filter(|_| words.next().is_none())
    };
    let read_only = object.parts(libc::PT_GNU_RELRO).next().map_or(0..0, |range| range.start..range.end & !4095);
    addr.map(|addr| Word { addr, is_read_only: read_only.contains(&addr) })
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
pub fn code() -> Range<usize> {
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
