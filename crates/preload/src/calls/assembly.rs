//! Functions that Rust cannot define: `execl` and its kin, which are variadic, and `dlopen` and `dlsym`, which know
//! their caller by the return address.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::Lmid_t;

use crate::calls::process;
use crate::ground::export::real;
use crate::ground::real::{instead_of_found, is_own};
use crate::ground::state::{self, Phase};
use crate::ground::symbols::is_own_image;
use crate::ground::{c_library, guard};

type Text = *const c_char;

real!(OPEN = c"dlopen": fn(Text, c_int) -> *mut c_void);
real!(FIND = c"dlsym": fn(*mut c_void, Text) -> *mut c_void);
real!(OPEN_IN = c"dlmopen": fn(Lmid_t, Text, c_int) -> *mut c_void);

/// `execlp`: search the path.
const SEARCHED: c_int = 1;
/// `execle`: the environment follows the terminating null of the list.
const WITH_ENVIRONMENT: c_int = 2;

/// A list of fewer arguments is made on the stack.
const MOST_ON_STACK: usize = 512;

/// Implements `execl` and its kin. `first` are the five arguments after the path that came in registers, `rest` the
/// others.
///
/// # Safety
/// The list ends with a null. For `execle` the environment follows.
unsafe extern "C" fn exec_listed(path: Text, first: *const Text, rest: *const Text, how: c_int) -> c_int {
    // SAFETY: the caller upholds this function's own contract. Nothing after the last argument is read.
    unsafe {
        let argument = |index: usize| if index < 5 { *first.add(index) } else { *rest.add(index - 5) };
        let count = (0..).take_while(|&index| !argument(index).is_null()).count();
        let environment = if how == WITH_ENVIRONMENT { argument(count + 1) } else { std::ptr::null() };
        // On the stack, if it is short: a child of vfork that has executed a program frees nothing of its parent's.
        let mut short = [std::ptr::null(); MOST_ON_STACK];
        let mut long = Vec::new();
        if count >= MOST_ON_STACK {
            let _guard = guard::enter();
            long = vec![std::ptr::null(); count + 1];
        }
        let list = if long.is_empty() { &mut short[..] } else { &mut long };
        list.iter_mut().zip(0..=count).for_each(|(place, index)| *place = argument(index));
        match how {
            SEARCHED => process::execvp(path, list.as_ptr()),
            WITH_ENVIRONMENT => process::execve(path, list.as_ptr(), environment.cast()),
            _ => process::execv(path, list.as_ptr()),
        }
    }
}

macro_rules! listed {
    ($($name:ident: $how:literal)*) => {$(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: Text, first: Text) -> c_int {
            std::arch::naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]", // past the five registers and the return address
                concat!("mov ecx, ", $how),
                "call {listed}",
                "add rsp, 40",
                "ret",
                listed = sym exec_listed,
            )
        }
    )*};
}

listed! {
    execl: 0
    execlp: 1
    execle: 2
}

extern "C" fn before_open() -> *const c_void {
    OPEN.get() as *const c_void
}

extern "C" fn before_open_in() -> *const c_void {
    OPEN_IN.get() as *const c_void
}

/// Opens a library without RTLD_DEEPBIND: it would find the C library's functions before those of this library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(name: Text, how: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "and esi, {others}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        others = const !libc::RTLD_DEEPBIND,
        before = sym before_open,
    )
}

/// The same in a namespace. Only the first one has this library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlmopen(space: Lmid_t, name: Text, how: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "test rdi, rdi",
        "jnz 2f",
        "and edx, {others}",
        "2:",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {before}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        others = const !libc::RTLD_DEEPBIND,
        before = sym before_open_in,
    )
}

/// What programs allocate by, which may be another library's.
const ALLOCATION: [&CStr; 12] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"reallocarray",
    c"free",
    c"memalign",
    c"aligned_alloc",
    c"posix_memalign",
    c"valloc",
    c"pvalloc",
    c"malloc_usable_size",
    c"malloc_trim",
];

/// What is found in place of a function of the C library: this library's, as for who calls it by name. Run times for
/// other languages find them so, and libraries that look behind themselves.
unsafe extern "C" fn instead(name: Text, found: *mut c_void) -> *mut c_void {
    if found.is_null() || guard::inside() {
        return found;
    }
    // SAFETY: the name of the caller's call, a C string.
    let name = unsafe { CStr::from_ptr(name) };
    match ALLOCATION.contains(&name) && c_library::has_other_malloc() {
        true => found,
        false => instead_of_found(name, found),
    }
}

/// Finds a symbol of one library and those that it needs.
unsafe extern "C" fn find_in(library: *mut c_void, name: Text) -> *mut c_void {
    // SAFETY: the caller's call.
    unsafe { instead(name, FIND.get()(library, name)) }
}

extern "C" fn before_find() -> *const c_void {
    FIND.get() as *const c_void
}

/// The address of a return instruction in the caller's library. dlsym takes the library that it returns to for the
/// caller's: so it returns there, and that instruction returns to this library. 0: the result is passed on as it is.
extern "C" fn way_back(library: *mut c_void, name: Text, caller: usize) -> usize {
    const RETURN: u8 = 0xc3;
    let is_early = state::phase() == Phase::Early; // a sanitizer may look for what is used here
    if library != libc::RTLD_NEXT || is_early || is_own_image(caller) || guard::inside() {
        return 0;
    }
    let _guard = guard::enter();
    // SAFETY: the name of the caller's call, a C string.
    if !is_own(unsafe { CStr::from_ptr(name) }) {
        return 0;
    }
    let mut found = None;
    c_library::each_object(|object| {
        let Some(code) = object.parts(libc::PT_LOAD).find(|segment| segment.contains(&caller)) else { return false };
        // SAFETY: code of a loaded library.
        let bytes = unsafe { std::slice::from_raw_parts(code.start as *const u8, code.len()) };
        found = bytes.iter().position(|&byte| byte == RETURN).map(|at| code.start + at);
        true
    });
    found.unwrap_or(0)
}

/// Finds a symbol: after the caller's library, or in all (the two special handles), or in one ([`find_in`]).
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(library: *mut c_void, name: Text) -> *mut c_void {
    std::arch::naked_asm!(
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "ja {find_in}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "mov [rsp], rax",
        "mov rsi, [rsp + 8]",
        "mov rdi, [rsp + 16]",
        "mov rdx, [rsp + 24]", // the return address
        "call {way_back}",
        "pop r11",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp r11",
        "2:",
        "push rsi",
        "push rsi",
        "lea rcx, [rip + 3f]",
        "push rcx",
        "push rax",
        "jmp r11",
        "3:",
        "pop rdi",
        "mov rsi, rax",
        "call {instead}",
        "add rsp, 8",
        "ret",
        find_in = sym find_in,
        before = sym before_find,
        way_back = sym way_back,
        instead = sym instead,
    )
}
