//! The native part of the Python package: an arena, NumPy's allocation handler over it, and what needs addresses.
//!
//! `folioswap/_pool.py` is the face that programs use. Every call here that may wait lets other Python threads run
//! meanwhile. NumPy touches arrays itself; threads of the engine, which never run Python, bring in what is missing.

mod errors;
mod handler;
mod transfer;

use std::ffi::OsString;
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use folioswap::{Advice, Arena, ArenaHeap, FaultMode, FolioSize, RawSpace, SwapDevice, parse_memory, parse_size};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::errors::{invalid, raised};

/// How long Ctrl-C may wait in a call that can be interrupted.
const PATIENCE: Duration = Duration::from_millis(50);

/// What leaves RAM in one go. Between two such parts a signal such as that of Ctrl-C is handled.
const PART_BYTES: usize = 64 << 20;

/// An arena and its heap.
#[pyclass(frozen, name = "Arena", module = "folioswap._native")]
struct PyArena {
    arena: Arena,
    heap: ArenaHeap,
    /// The capsule with NumPy's allocation handler. Dropped last: its destructor ends the arena, and lets other threads
    /// run meanwhile.
    handler: Py<PyAny>,
}

#[pymethods]
impl PyArena {
    /// Builds an arena and starts its threads.
    #[new]
    fn new(py: Python<'_>, memory: u64, swap: Vec<OsString>, folio: &str, faults: &str) -> PyResult<Self> {
        let mut builder = Arena::builder()
            .memory(memory)
            .folio(folio.parse::<FolioSize>().map_err(invalid)?)
            .faults(faults.parse::<FaultMode>().map_err(invalid)?);
        for device in swap {
            let device =
                device.to_str().ok_or_else(|| invalid(format!("swap {}: its name is not UTF-8", device.display())))?;
            builder = builder.device(device.parse::<SwapDevice>().map_err(invalid)?);
        }
        let arena = py.detach(|| builder.build().and_then(|arena| arena.inherit().map(|()| arena))).map_err(raised)?;
        let heap = ArenaHeap::new(&arena);
        let handler = handler::capsule(py, &heap)?;
        Ok(PyArena { arena, heap, handler })
    }

    /// The capsule with NumPy's allocation handler for this arena.
    #[getter]
    fn handler(&self, py: Python<'_>) -> Py<PyAny> {
        self.handler.clone_ref(py)
    }

    /// `direct` or `monitor`.
    #[getter]
    fn faults(&self) -> String {
        self.arena.fault_mode().to_string()
    }

    /// The size of folios.
    #[getter]
    fn folio(&self) -> String {
        self.arena.folio().to_string()
    }

    /// The budget in bytes.
    #[getter]
    fn memory(&self) -> u64 {
        self.arena.memory()
    }

    /// Bytes of all arrays, as far as they are not ordinary memory; of small ones, of the chunks that they lie in.
    #[getter]
    fn arrays_bytes(&self) -> usize {
        self.heap.bytes()
    }

    /// Changes the budget. Waits for what has to leave RAM. If Ctrl-C ends the wait, the budget is changed all the
    /// same.
    fn resize(&self, py: Python<'_>, memory: u64) -> PyResult<()> {
        let (done, mut answer) = channel();
        let arena = self.arena.clone();
        std::thread::Builder::new().spawn(move || done.send(arena.set_memory(memory)))?;
        loop {
            let result;
            (result, answer) = py.detach(|| (answer.recv_timeout(PATIENCE), answer));
            match result {
                Ok(result) => return result.map_err(raised),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => return Err(PyRuntimeError::new_err("a thread has failed")),
            }
        }
    }

    /// Whether these addresses are one block of this arena.
    fn contains(&self, start: usize, len: usize) -> bool {
        self.heap.contains(&(start..start.saturating_add(len)))
    }

    /// Advises how addresses will be used.
    fn advise(&self, py: Python<'_>, start: usize, len: usize, advice: &str) -> PyResult<()> {
        let advice = named_advice(advice)?;
        if !self.contains(start, len) {
            return Err(PyValueError::new_err("this array is not in this pool"));
        }
        let space = self.arena.raw();
        if advice == Advice::Cold {
            return cold(py, &space, start..start + len);
        }
        py.detach(|| space.advise(start, len, advice));
        Ok(())
    }

    /// Everything that is not in use leaves RAM.
    fn evict(&self, py: Python<'_>) {
        py.detach(|| self.arena.evict_all());
    }

    /// Fills addresses from a file, from `offset` on. Returns how many bytes there were.
    fn read(&self, py: Python<'_>, fd: i32, offset: u64, start: usize, len: usize) -> PyResult<usize> {
        // SAFETY: the caller passes the memory of an array that it holds.
        unsafe { transfer::read(py, &self.arena, fd, offset, start..start + len) }
    }

    /// Writes addresses to a file, from `offset` on.
    fn write(&self, py: Python<'_>, fd: i32, offset: u64, start: usize, len: usize) -> PyResult<()> {
        // SAFETY: the caller passes the memory of an array that it holds.
        unsafe { transfer::write(py, &self.arena, fd, offset, start..start + len) }
    }

    /// Figures so far, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, usage, devices) = py.detach(|| (self.arena.stats(), self.arena.usage(), self.arena.devices()));
        let figures = PyDict::new(py);
        for (name, bytes) in [
            ("memory_bytes", usage.budget_bytes),
            ("mapped_bytes", usage.mapped_bytes),
            ("standby_bytes", usage.standby_bytes),
            ("swapped_bytes", usage.swapped_bytes),
            ("faults", stats.nr_faults()),
            ("stalled_ns", stats.stalled_ns()),
        ] {
            figures.set_item(name, bytes)?;
        }
        for (name, count) in stats.counters() {
            figures.set_item(name, count)?;
        }
        let list = PyList::empty(py);
        for device in devices {
            let about = PyDict::new(py);
            about.set_item("name", device.name)?;
            about.set_item("used_bytes", device.used_bytes)?;
            about.set_item("reserved_bytes", device.reserved_bytes)?;
            about.set_item("size_bytes", device.size_bytes)?;
            if let Some(memory) = device.memory {
                about.set_item("content_bytes", memory.content_bytes)?;
                about.set_item("kept_bytes", memory.kept_bytes)?;
                about.set_item("limit_bytes", memory.limit_bytes)?;
            }
            for (direction, transfers) in [("read", &device.io.reads), ("written", &device.io.writes)] {
                about.set_item(format!("{direction}_bytes"), transfers.bytes)?;
                about.set_item(format!("{direction}_calls"), transfers.calls)?;
                about.set_item(format!("{direction}_p50_ns"), transfers.latency.quantile(0.5))?;
                about.set_item(format!("{direction}_busy_ns"), transfers.latency.sum())?;
            }
            list.append(about)?;
        }
        figures.set_item("devices", list)?;
        Ok(figures)
    }
}

/// Makes a range the first to leave RAM, in parts that end where blocks do.
fn cold(py: Python<'_>, space: &RawSpace, range: Range<usize>) -> PyResult<()> {
    let mut start = range.start;
    while start < range.end {
        let end = (start + 1).next_multiple_of(PART_BYTES).min(range.end);
        py.detach(|| space.advise(start, end - start, Advice::Cold));
        py.check_signals()?;
        start = end;
    }
    Ok(())
}

fn named_advice(name: &str) -> PyResult<Advice> {
    Ok(match name {
        "normal" => Advice::Normal,
        "willneed" => Advice::WillNeed,
        "sequential" => Advice::Sequential,
        "random" => Advice::Random,
        "cold" => Advice::Cold,
        "hugepage" => Advice::HugePage,
        "nohugepage" => Advice::NoHugePage,
        other => {
            return Err(PyValueError::new_err(format!(
                "`{other}` is no advice: there are normal, willneed, sequential, random, cold, hugepage and nohugepage"
            )));
        }
    })
}

/// Reads a size such as `2G`.
#[pyfunction]
fn size(text: &str) -> PyResult<u64> {
    parse_size(text).map_err(invalid)
}

/// Reads a budget: a size, or a share of the RAM such as `50%`.
#[pyfunction]
fn budget(text: &str) -> PyResult<u64> {
    parse_memory(text).map_err(invalid)
}

/// Writes a size as people write it.
#[pyfunction]
fn show(bytes: u64) -> String {
    folioswap::Bytes(bytes).to_string()
}

/// Calls a function that may change the handler of SIGBUS. What it changes is the one behind the engine's.
#[pyfunction]
#[pyo3(signature = (function, *args, **options))]
fn call_behind<'py>(
    py: Python<'py>,
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    py.check_signals()?; // their handlers would run inside
    folioswap::behind_sigbus(|| function.call(args, options)).map_err(raised)?
}

/// The module.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyArena>()?;
    module.add_function(wrap_pyfunction!(size, module)?)?;
    module.add_function(wrap_pyfunction!(budget, module)?)?;
    module.add_function(wrap_pyfunction!(show, module)?)?;
    module.add_function(wrap_pyfunction!(call_behind, module)?)?;
    module.add_function(wrap_pyfunction!(handler::begin, module)?)?;
    module.add_function(wrap_pyfunction!(handler::get_handler, module)?)?;
    module.add_function(wrap_pyfunction!(handler::set_handler, module)?)?;
    module.add_function(wrap_pyfunction!(handler::call_with, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
