//! The C library's own functions behind the names that this library takes over.
//!
//! All are looked up when the library starts: dlsym takes the loader's lock, which neither the fault path nor a signal
//! handler may wait for. A function that is called earlier is looked up on first use. dlsym is asked only for what
//! there is: else it allocates. A lookup always gives the same pointer, so racing lookups store the same value.
//!
//! The statics are contiguous in a section of their own, and all have the same layout. This is how they are found.

use std::ffi::{CStr, c_long, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use folioswap::{ExitStatus, PAGE_SIZE};
use folioswap_sys::own_calls;

use crate::ground::symbols::Objects;
use crate::ground::{guard, libc_call, selector, state};

/// The next definition of a name after this library's. `F` is its function pointer type.
#[repr(C)]
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

// SAFETY: an atomic pointer to code, and a name. `F` is a function pointer, which any thread may call.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    pub const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Real { name, found: AtomicPtr::new(null_mut()), kind: PhantomData }
    }

    fn look_up(&self, objects: Option<&Objects>) -> *mut c_void {
        let found = look_up(self.name, objects);
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// The function, if the C library defines it.
    pub fn find(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            let is_used_there = [c"dl_iterate_phdr", c"dlsym"].contains(&self.name);
            let objects = (!is_used_there).then(Objects::loaded);
            found = self.look_up(objects.as_ref());
        }
        // SAFETY: `F` is a function pointer type of the same size (asserted), and the declaration gives it this name's
        // type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    /// The function. Ends the process if the C library does not define it: the caller has just been called by that
    /// name.
    pub fn get(&self) -> F {
        self.find().unwrap_or_else(|| {
            let name = self.name.to_string_lossy();
            state::end(ExitStatus::Defect, &format!("the C library has no {name}"))
        })
    }
}

/// The version that programs use, of the names with an older one, on x86-64. Before glibc 2.36 dlsym(RTLD_NEXT) finds
/// the oldest: its condition variables, timers and affinities take other structures. The resolver's old names have no
/// other.
const VERSIONS: [(&CStr, &CStr); 26] = [
    (c"__res_nquery", c"GLIBC_2.2.5"),
    (c"__res_nquerydomain", c"GLIBC_2.2.5"),
    (c"__res_nsearch", c"GLIBC_2.2.5"),
    (c"__res_nsend", c"GLIBC_2.2.5"),
    (c"__res_query", c"GLIBC_2.2.5"),
    (c"__res_querydomain", c"GLIBC_2.2.5"),
    (c"__res_search", c"GLIBC_2.2.5"),
    (c"__res_send", c"GLIBC_2.2.5"),
    (c"lio_listio", c"GLIBC_2.4"),
    (c"lio_listio64", c"GLIBC_2.4"),
    (c"posix_spawn", c"GLIBC_2.15"),
    (c"posix_spawnp", c"GLIBC_2.15"),
    (c"pthread_attr_getaffinity_np", c"GLIBC_2.3.4"),
    (c"pthread_cond_timedwait", c"GLIBC_2.3.2"),
    (c"pthread_cond_wait", c"GLIBC_2.3.2"),
    (c"pthread_getaffinity_np", c"GLIBC_2.3.4"),
    (c"pthread_setaffinity_np", c"GLIBC_2.3.4"),
    (c"pthread_kill", c"GLIBC_2.34"),
    (c"quick_exit", c"GLIBC_2.24"),
    (c"realpath", c"GLIBC_2.3"),
    (c"sched_getaffinity", c"GLIBC_2.3.4"),
    (c"sched_setaffinity", c"GLIBC_2.3.4"),
    (c"timer_create", c"GLIBC_2.3.3"),
    (c"timer_gettime", c"GLIBC_2.3.3"),
    (c"timer_settime", c"GLIBC_2.3.3"),
    (c"ustat", c"GLIBC_2.2.5"),
];

/// The next dlsym is found by dlvsym, as `dlsym` is this library's here, and would call itself. Newer versions are the
/// same function.
const DLSYM: (&CStr, &CStr) = (c"dlsym", c"GLIBC_2.2.5");

/// The next definition of a name, in the version that programs use. Null: there is none.
fn look_up(name: &CStr, objects: Option<&Objects>) -> *mut c_void {
    let version = VERSIONS.iter().chain([&DLSYM]).find(|(of, _)| *of == name);
    if objects.is_some_and(|objects| !objects.define_elsewhere(name, version.is_some())) {
        return null_mut();
    }
    let found = version.map_or(null_mut(), |(_, version)| {
        // SAFETY: C strings. Any thread may call dlvsym.
        unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) }
    });
    // SAFETY: a C string. Any thread may call dlsym.
    if found.is_null() && name != DLSYM.0 { unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } } else { found }
}

/// Whether this library has a function of this name for programs.
pub fn is_own(name: &CStr) -> bool {
    Objects::loaded().own(name).is_some()
}

/// This library's function in place of the C library's, which was found by this name, but not in the loader's order.
/// Another library's may come between the two, and look for the C library's to call that: then it stays.
pub fn instead_of_found(name: &CStr, found: *mut c_void) -> *mut c_void {
    let _guard = guard::enter();
    let objects = Objects::loaded();
    let Some(own) = objects.own(name) else { return found };
    let next = look_up(name, None);
    if next.is_null() {
        // SAFETY: forgets the text about what was not found, which the program would take for its own.
        unsafe { libc::dlerror() };
    }
    if next == found { own as *mut c_void } else { found }
}

/// Looks up all functions. Programs do not call what the C library lacks.
pub fn look_up_all() {
    type Any = Real<unsafe extern "C" fn()>;
    unsafe extern "C" {
        #[link_name = "__start_folioswap_real"]
        static FIRST: u8;
        #[link_name = "__stop_folioswap_real"]
        static END: u8;
    }
    let objects = Objects::loaded();
    let (mut at, end) = ((&raw const FIRST).cast::<Any>(), (&raw const END).cast::<Any>());
    while at < end {
        // SAFETY: the linker's bounds of a section that holds only such statics, without gaps.
        unsafe {
            (*at).look_up(Some(&objects));
            at = at.add(1);
        }
    }
    // SAFETY: a C string. Any thread may call dlsym.
    libc_call::note_syscall(unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) });
}

/// How the program makes a call: by the C library's function, which is a cancellation point, or by number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Name,
    Number,
}

impl By {
    /// How a function of the C library makes its call: by number for this library's own code. A cancellation point of
    /// the C library waits for the signal that cancels the thread, which is blocked there, and so for ever.
    pub fn name() -> By {
        if guard::inside() { By::Number } else { By::Name }
    }
}

/// Makes a system call by number, bypassing this library's own `syscall`. Returns -1 and sets errno on failure.
macro_rules! kernel {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::ground::real::raw($number, &[$($argument as usize),*])
    };
}
pub(crate) use kernel;

/// Implements [`kernel`]. The C library's own instruction makes the call as soon as its address is known, because
/// [`crate::calls::dispatch`] catches all others.
///
/// # Safety
/// As the system call.
pub unsafe fn raw(number: c_long, arguments: &[usize]) -> c_long {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the caller upholds this function's own contract.
    let result = repeat(&all, || unsafe { raw_once(number, &all) });
    if result < 0 {
        state::fail(-result as i32);
        return -1;
    }
    result as c_long
}

/// With the kernel's result: a negative error number on failure.
unsafe fn raw_once(number: c_long, arguments: &[usize; 6]) -> isize {
    if !libc_call::is_known() {
        // SAFETY: the caller upholds this function's own contract.
        return unsafe { instruction(number, arguments) };
    }
    let [a, b, c, d, e, f] = *arguments;
    // SAFETY: the caller upholds this function's own contract.
    match unsafe { libc_call::folioswap_call(number, a, b, c, d, e, f) } {
        -1 => -(state::errno() as isize),
        result => result as isize,
    }
}

/// How often a call is repeated at most.
const MOST_REPEATS: usize = 100;

/// Variables that a call names are at most this far above the stack pointer, and at most this long.
const STACK_BYTES: usize = 64 << 10;
const VARIABLE_BYTES: usize = 2 * PAGE_SIZE;

/// Repeats a call while the kernel does not find a variable of the caller's: the stack may be managed. Such a call has
/// had no effect yet, or the caller keeps its stack.
fn repeat(arguments: &[usize; 6], call: impl Fn() -> isize) -> isize {
    for _ in 0..MOST_REPEATS {
        let result = call();
        if result != -libc::EFAULT as isize || !bring_variables_in(arguments) {
            return result;
        }
    }
    -libc::EFAULT as isize
}

/// Brings in what arguments name of the calling thread's stack. `false`: there is nothing.
#[cold]
fn bring_variables_in(arguments: &[usize; 6]) -> bool {
    let local = 0u8;
    let here = &raw const local as usize;
    let Some(space) = state::space().filter(|space| state::direct() && space.contains(here)) else { return false };
    let _guard = guard::enter();
    let variables = arguments.iter().filter(|&&at| at.wrapping_sub(here) < STACK_BYTES);
    variables.map(|&at| state::keeping_errno(|| space.touch(at, VARIABLE_BYTES))).count() > 0
}

/// Makes a system call of this library's own, which the program's seccomp filters exempt
/// (`folioswap_sys::own_calls`). Otherwise as [`kernel`].
macro_rules! own {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::ground::real::own_raw($number, &[$($argument as usize),*])
    };
}
pub(crate) use own;

/// Implements [`own`].
///
/// # Safety
/// As the system call.
pub unsafe fn own_raw(number: c_long, arguments: &[usize]) -> c_long {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the caller upholds this function's own contract.
    let result = unsafe { own_result(number, &all) };
    if result < 0 {
        state::fail(-result as i32);
        return -1;
    }
    result as c_long
}

/// The same with the kernel's result: a negative error number on failure. Keeps errno.
///
/// # Safety
/// As the system call.
pub unsafe fn own_result(number: c_long, arguments: &[usize; 6]) -> isize {
    if own_calls::is_used() {
        // SAFETY: the caller upholds this function's own contract. The page is used.
        repeat(arguments, || selector::unseen(|| unsafe { own_calls::call(number, arguments) }))
    } else {
        // SAFETY: the caller upholds this function's own contract.
        unsafe { raw_result(number, arguments) }
    }
}

/// The same with the kernel's result: a negative error number on failure. Keeps errno.
///
/// # Safety
/// As the system call.
pub unsafe fn raw_result(number: c_long, arguments: &[usize; 6]) -> isize {
    let kept = state::errno();
    // SAFETY: the caller upholds this function's own contract.
    let result = unsafe { raw(number, arguments) };
    let said = if result == -1 { -(state::errno() as isize) } else { result as isize };
    state::fail(kept);
    said
}

unsafe fn instruction(number: c_long, &[a, b, c, d, e, f]: &[usize; 6]) -> isize {
    let result;
    // SAFETY: the caller's call. The instruction keeps all registers but those declared here.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::process::Command;

    /// Where the versions of functions lie in this C library, by name and version; that which is linked to, without
    /// one.
    fn versions() -> Option<BTreeMap<String, BTreeMap<String, String>>> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path =
            maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"))?;
        let output = Command::new("readelf").args(["--dyn-syms", "-W", path]).output().ok()?;
        let mut found = BTreeMap::<String, BTreeMap<String, String>>::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let columns: Vec<_> = line.split_whitespace().collect();
            let &[_, place, _, "FUNC" | "IFUNC", _, _, section, name, ..] = columns.as_slice() else { continue };
            let Some((name, version)) = name.split_once('@').filter(|_| section != "UND") else { continue };
            let of = found.entry(name.to_owned()).or_default();
            of.insert(version.trim_start_matches('@').to_owned(), place.to_owned());
            if version.starts_with('@') {
                of.insert(String::new(), place.to_owned());
            }
        }
        Some(found)
    }

    #[test]
    fn of_each_name_the_version_is_found_that_programs_use() {
        let Some(versions) = versions() else {
            return println!("SKIPPED: readelf is missing. Get it: apt-get install binutils");
        };
        for (name, version) in VERSIONS {
            // Before glibc 2.34 some are in other libraries.
            let Some(places) = versions.get(name.to_str().unwrap()) else { continue };
            let ours = &places[version.to_str().unwrap()];
            let Some(linked_to) = places.get("") else { continue }; // for old programs only
            assert!(ours == linked_to && places.values().any(|place| place != ours), "{name:?}: {places:?}");
        }
        let listed: BTreeSet<_> = include_str!("../../tests/names.txt").split_whitespace().collect();
        for (name, places) in versions {
            let is_known = listed.contains(&*name) || VERSIONS.iter().any(|(of, _)| of.to_str() == Ok(&name));
            let nr_places = places.values().collect::<BTreeSet<_>>().len();
            assert!(is_known || nr_places == 1, "{name} is taken over, and has several versions: {places:?}");
        }
    }
}
