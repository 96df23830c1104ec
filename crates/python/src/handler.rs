//! NumPy's allocation handler (NEP 49): arrays of [`SMALLEST_BYTES`] and more get memory of a heap in the arena,
//! smaller ones the C library's.
//!
//! NumPy keeps the handler in a context variable, so it is set for a thread or an asynchronous task. Each array keeps a
//! reference to the capsule that it was allocated by, and with it the heap and the arena.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use folioswap::ArenaHeap;
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Smaller arrays are not paged: a folio each would cost more than they take.
const SMALLEST_BYTES: usize = 64 << 10;

/// Other Python threads run while an array of this size or more is freed.
const LONG_TO_FREE_BYTES: usize = 64 << 20;

/// What arrays are aligned to, for the widest vector instructions.
const ALIGNMENT: usize = 64;

/// The name by which NumPy knows such capsules.
const CAPSULE: &CStr = c"mem_handler";

/// `PyDataMem_SetHandler` in the table of NumPy's C interface. The numbers are part of its ABI since NumPy 1.22.
const SET_HANDLER: usize = 304;

/// `PyDataMem_GetHandler`.
const GET_HANDLER: usize = 305;

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
type GetHandler = unsafe extern "C" fn() -> *mut ffi::PyObject;

/// NumPy's table of functions, once [`begin`] was called.
static TABLE: AtomicPtr<*const c_void> = AtomicPtr::new(null_mut());

/// `PyDataMem_Handler`, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    heap: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// Takes the table of NumPy's C interface, `numpy._core._multiarray_umath._ARRAY_API`.
#[pyfunction]
pub(crate) fn begin(api: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: any object may be asked; what is no capsule without a name is an exception.
    let table = unsafe { ffi::PyCapsule_GetPointer(api.as_ptr(), std::ptr::null()) };
    if table.is_null() {
        return Err(PyErr::take(api.py()).unwrap_or_else(|| PyImportError::new_err("NumPy has no C interface")));
    }
    TABLE.store(table.cast(), Ordering::Release);
    Ok(())
}

/// A function of NumPy's C interface.
fn function(number: usize) -> PyResult<*const c_void> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return Err(PyImportError::new_err("NumPy was not imported"));
    }
    // SAFETY: the table of NumPy 1.22 or later, which lives as long as the process, has the numbers that are used here.
    Ok(unsafe { *table.add(number) })
}

/// The handler of this context.
#[pyfunction]
pub(crate) fn get_handler(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: NumPy's function with this number has this type.
    let get = unsafe { std::mem::transmute::<*const c_void, GetHandler>(function(GET_HANDLER)?) };
    // SAFETY: the thread is attached. The result is a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, get()) }.map(Bound::unbind)
}

/// Makes a capsule the handler of this context. Returns the one before.
#[pyfunction]
pub(crate) fn set_handler<'py>(py: Python<'py>, capsule: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: any object may be asked.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), CAPSULE.as_ptr()) } == 0 {
        return Err(PyTypeError::new_err("this is no allocation handler"));
    }
    // SAFETY: NumPy's function with this number has this type.
    let set = unsafe { std::mem::transmute::<*const c_void, SetHandler>(function(SET_HANDLER)?) };
    // SAFETY: the thread is attached, and the capsule is a handler. The result is a new reference, or null with an
    // exception.
    unsafe { Bound::from_owned_ptr_or_err(py, set(capsule.as_ptr())) }
}

/// Calls a function with a capsule as the handler of this context. A signal such as that of Ctrl-C is handled before or
/// after both changes of the handler, or in the function.
#[pyfunction]
#[pyo3(signature = (capsule, function, *args, **options))]
pub(crate) fn call_with<'py>(
    py: Python<'py>,
    capsule: &Bound<'py, PyAny>,
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let before = set_handler(py, capsule)?;
    let result = function.call(args, options);
    set_handler(py, &before)?;
    result
}

/// A new handler over a heap. It keeps the heap until the last array of it is gone.
pub(crate) fn capsule(py: Python<'_>, heap: &ArenaHeap) -> PyResult<Py<PyAny>> {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"folioswap") {
        *to = *from as c_char;
    }
    let heap = Box::into_raw(Box::new(heap.clone()));
    let handler = Handler { name, version: 1, heap: heap.cast(), malloc, calloc, realloc, free };
    let handler = Box::into_raw(Box::new(handler));
    // SAFETY: the pointer is not null, and the name lives as long as the process. `drop_handler` frees both boxes.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler.cast(), CAPSULE.as_ptr(), Some(drop_handler));
        Bound::from_owned_ptr_or_err(py, capsule).map(Bound::unbind)
    }
}

/// Waits for the arena's threads to end, if nothing else has the arena. Other Python threads run meanwhile.
unsafe extern "C" fn drop_handler(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, attached, for a capsule of `capsule`'s, when no array refers to it any more.
    unsafe {
        let handler = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()).cast::<Handler>();
        if !handler.is_null() {
            let handler = Box::from_raw(handler);
            let heap = Box::from_raw(handler.heap.cast::<ArenaHeap>());
            Python::assume_attached().detach(|| drop(heap));
        }
    }
}

/// The heap of a handler.
///
/// # Safety
/// `context` is the one of a handler that lives.
unsafe fn heap<'a>(context: *mut c_void) -> &'a ArenaHeap {
    // SAFETY: the caller's promise; the heap is boxed until the handler is dropped.
    unsafe { &*context.cast::<ArenaHeap>() }
}

fn pointer(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or(null_mut(), |block| block.as_ptr().cast())
}

unsafe extern "C" fn malloc(context: *mut c_void, size: usize) -> *mut c_void {
    if size < SMALLEST_BYTES {
        // SAFETY: any size will do; NumPy wants a pointer for 0 as well.
        return unsafe { libc::malloc(size.max(1)) };
    }
    // SAFETY: NumPy passes the context of this handler.
    pointer(unsafe { heap(context) }.allocate(size, ALIGNMENT))
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return null_mut() };
    if bytes < SMALLEST_BYTES {
        // SAFETY: as in `malloc`.
        return unsafe { libc::calloc(bytes.max(1), 1) };
    }
    // SAFETY: as in `malloc`.
    pointer(unsafe { heap(context) }.allocate_zeroed(bytes, ALIGNMENT))
}

unsafe extern "C" fn realloc(context: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as in `malloc`.
    let heap = unsafe { heap(context) };
    let Some(old) = NonNull::new(block.cast::<u8>()) else {
        // SAFETY: as in `malloc`.
        return unsafe { malloc(context, size) };
    };
    let owned = heap.owns(old.as_ptr());
    if !owned && size < SMALLEST_BYTES {
        // SAFETY: what is not the heap's is the C library's.
        return unsafe { libc::realloc(block, size.max(1)) };
    }
    if owned && size >= SMALLEST_BYTES {
        // SAFETY: NumPy gives up the block, which is the heap's.
        return pointer(unsafe { heap.resize(old, size, ALIGNMENT) });
    }
    // SAFETY: the block goes from one to the other: as many bytes as both have. Then it is given up.
    unsafe {
        let before = if owned { heap.usable(old) } else { libc::malloc_usable_size(block) };
        let moved = malloc(context, size);
        if !moved.is_null() {
            moved.cast::<u8>().copy_from_nonoverlapping(old.as_ptr(), before.min(size));
            // With the GIL: the array has the old address yet.
            if owned { heap.release(old) } else { libc::free(block) }
        }
        moved
    }
}

/// The size that NumPy states may be another than what was asked for, so the address decides.
unsafe extern "C" fn free(context: *mut c_void, block: *mut c_void, _: usize) {
    let Some(owned) = NonNull::new(block.cast::<u8>()) else { return };
    // SAFETY: as in `malloc`; NumPy gives up the block, which is the heap's or the C library's. It calls this attached,
    // and its array holds the capsule, and so the heap, until this has returned.
    unsafe {
        let heap = heap(context);
        if !heap.owns(owned.as_ptr()) {
            libc::free(block);
        } else if heap.usable(owned) < LONG_TO_FREE_BYTES {
            heap.release(owned);
        } else {
            let owned = owned.as_ptr() as usize; // `detach` takes values that are Send
            Python::assume_attached().detach(|| heap.release(NonNull::new_unchecked(owned as *mut u8)));
        }
    }
}
