"""Pools: a budget of RAM, swap devices, and the arrays that are paged between them."""

from __future__ import annotations

import errno
import functools
import io
import os
import stat
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Sequence, SupportsIndex

import numpy as np

from . import _native
from ._fit import Fit, fit
from ._sigbus import keep_in_front
from ._stats import Stats
from ._transfer import PART_BYTES, descriptor_of, fill, is_npy, items_left, npy_header, read_parts, write_npy, write_parts
from ._types import Advice, Array, Memory, Order, Path, Shape, Size, as_array, extent, file_offset, size_bytes

try:
    _umath = import_module("numpy._core._multiarray_umath")
except ImportError:  # NumPy before 2.0
    _umath = import_module("numpy.core._multiarray_umath")

_native.begin(_umath._ARRAY_API)
_set_handler, _call_with = _native.set_handler, _native.call_with

#: The pools that `with pool:` has entered in this thread or task, innermost last, each with the handler before it.
_entered: ContextVar[tuple[tuple[Pool, Any], ...]] = ContextVar("folioswap_entered", default=())

# Not this module's own, when it is loaded again.
_numpy_fromfile: Any = getattr(np.fromfile, "__wrapped__", np.fromfile)


def _fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, **options: Any) -> Any:
    """`numpy.fromfile` for pools in direct mode. NumPy's own takes EFAULT for the end of the file there, so inside
    `with pool:` the pool reads. What is no file of a known size NumPy reads into ordinary memory. Otherwise NumPy does
    all."""
    entered = _entered.get()
    if not entered or entered[-1][0].faults != "direct" or sep or options:
        return _numpy_fromfile(file, dtype, count, sep, offset, **options)
    if isinstance(file, (str, bytes, os.PathLike)):
        with open(file, "rb", buffering=0) as opened:
            return _fromfile(opened, dtype, count, sep, offset)
    pool, dtype = entered[-1][0], np.dtype(dtype)
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or not about.st_size or dtype.hasobject or dtype.itemsize == 0 or file.tell() + offset < 0:
        return _call_with(entered[0][1], _numpy_fromfile, file, dtype, count, sep, offset).copy()
    start = file.tell() + offset
    left = max(0, about.st_size - start) // dtype.itemsize
    array = pool.empty(left if count < 0 else min(count, left), dtype)
    if array.nbytes:
        read_bytes = pool._read(file.fileno(), start, array)
        if read_bytes != array.nbytes:
            raise OSError(f"the file became shorter: {read_bytes} bytes of {array.nbytes}")
    file.seek(start + array.nbytes)
    return array


functools.update_wrapper(_fromfile, _numpy_fromfile)


class Pool:
    """A budget of RAM, swap devices, and the arrays that are paged between them.

    Parameters
    ----------
    memory
        The budget: how many bytes of the pool's arrays may be in RAM, as a number or as text (``"512M"`` and
        ``"2GiB"``, powers of 1024; ``"2GB"``, powers of 1000; ``"50%"`` of the machine's RAM, or of the memory cgroup's
        limit if that is less). At least 16M.
    swap
        Where the rest goes: a path of a file or block device (``"/swap/a"``, ``"/swap/a:100G"``), ``"ram:SIZE"``,
        ``"zram:SIZE"`` (compressed RAM), or a list of these, the first one used first. Default: an unnamed file in
        ``/var/tmp`` or ``$FOLIOSWAP_DIR``, which ends with the pool.
    folio
        The size of folios: ``"auto"``, or a power of two from ``"4K"`` to ``"2M"``.
    faults
        Who resolves a fault: ``"monitor"`` (a thread of the pool; system calls work on arrays), ``"direct"`` (the
        thread that touches; needs no privilege, but a system call fails with EFAULT where a page is missing), or
        ``"auto"``: monitor where the system permits it.

    Raises
    ------
    ValueError
        A size, a device or a name is not valid, or the budget is too small.
    OSError
        The swap device cannot be used, or the kernel does not permit userfaultfd.

    Examples
    --------
    >>> pool = Pool(memory="64M")
    >>> a = pool.empty((4096, 4096), dtype="f4")  # 64 MiB
    >>> a[:] = 1
    >>> float(a.sum())
    16777216.0

    Arrays keep their pool alive, and the pool's threads end with the last of them. Children of ``os.fork`` have copies
    of all arrays; each child has a budget and swap of its own. Arrays may be made of more than fits budget and swap
    (`fits` says what does). If they are filled beyond it, no write can fail: the process ends with one line and exit
    status 70.

    NumPy's ``a.resize(...)`` holds the GIL while the content moves: other Python threads wait, longer for more of it.
    In direct mode, Python's own changes of the handler of SIGBUS (`faulthandler`, `signal.signal`) leave the pool's in
    front; those of other libraries must keep it.
    """

    __slots__ = ("_arena", "_handler", "__weakref__")

    def __init__(
        self, memory: Size, *, swap: Path | Sequence[Path] | None = None, folio: Size = "auto", faults: str = "auto",
    ) -> None:
        if swap is None:
            devices = []
        elif isinstance(swap, (str, bytes, os.PathLike)):
            devices = [os.fsdecode(swap)]
        else:
            devices = [os.fsdecode(device) for device in swap]
        self._arena = _native.Arena(size_bytes(memory, _native.budget), devices, str(folio), faults)
        self._handler = self._arena.handler
        if self._arena.faults == "direct":
            np.fromfile = _fromfile  # type: ignore[assignment]
            keep_in_front()

    # ---- arrays ----

    def empty(self, shape: Shape, dtype: Any = float, order: Order = "C") -> Array:
        """A new array of any content, as `numpy.empty`. Below 64 KiB it is ordinary memory.

        Raises MemoryError where there are no addresses left, ValueError for a negative length.

        >>> Pool("64M").empty((2, 3)).shape
        (2, 3)
        """
        return _call_with(self._handler, np.empty, shape, dtype, order)

    def zeros(self, shape: Shape, dtype: Any = float, order: Order = "C") -> Array:
        """A new array of zeros, as `numpy.zeros`. From 1 MiB on, it takes neither RAM nor swap until it is written.

        Raises MemoryError where there are no addresses left, ValueError for a negative length.

        >>> Pool("64M").zeros(3)
        array([0., 0., 0.])
        """
        return _call_with(self._handler, np.zeros, shape, dtype, order)

    def full(self, shape: Shape, fill_value: Any, dtype: Any = None, order: Order = "C") -> Array:
        """A new array that is filled with a value, as `numpy.full`. Ctrl-C ends this between two parts of 64 MiB.

        Raises MemoryError where there are no addresses left, ValueError where the value has another shape.

        >>> Pool("64M").full(3, 7)
        array([7, 7, 7])
        """
        array = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
        fill(array, fill_value)
        return array

    def array(self, object: Any, dtype: Any = None, **options: Any) -> Array:
        """A copy of an array or sequence in the pool, as `numpy.array`. With ``copy=False`` (or ``None`` in NumPy 2) an
        array that needs no copy is returned itself, wherever it lies. Without other options, Ctrl-C ends the copy of an
        array between two parts of 64 MiB.

        Raises MemoryError where there are no addresses left.

        >>> Pool("64M").array([1, 2, 3])
        array([1, 2, 3])
        """
        is_plain = isinstance(object, np.ndarray) and dtype is None and options.keys() <= {"order"}
        if is_plain and object.nbytes > PART_BYTES:
            array: Array = _call_with(self._handler, np.empty_like, object, subok=False, **options)
            fill(array, object)
            return array
        return _call_with(self._handler, np.array, object, dtype, **options)

    def buffer(self, size: Size) -> memoryview:
        """A writable buffer of `size` bytes, zeroed, for what takes one (``readinto``, ``pyarrow.py_buffer``).

        Raises ValueError where the size is not valid, MemoryError where there are no addresses left.

        >>> b = Pool("64M").buffer("1M")
        >>> len(b), b[0]
        (1048576, 0)
        """
        return self.zeros(size_bytes(size), np.uint8).data

    def from_file(
        self, path: Path, dtype: Any = None, shape: Shape | None = None, offset: SupportsIndex = 0
    ) -> Array:
        """Reads a file into a new array of the pool, without a second copy. Works in both fault modes.

        Parameters
        ----------
        path
            A ``.npy`` file (its header says shape and type), or any other file if `dtype` is given. A name that ends in
            ``.npy`` is one of a ``.npy`` file.
        dtype, shape, offset
            Of a file without header: the type, the shape (default: one dimension, as long as the file), and how many
            bytes to skip.

        Raises ValueError where the file is too short, has no known size and no `shape` is given, has a header besides
        what is given, or holds Python objects; OSError where it cannot be read.

        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        ...     np.save(file, np.arange(5))
        ...     file.flush()
        ...     Pool("64M").from_file(file.name)
        array([0, 1, 2, 3, 4])
        """
        offset, name = file_offset(offset), os.fsdecode(path)
        order: Order = "C"
        if dtype is None and (shape is not None or offset):
            raise ValueError("shape and offset are of a file without header: give the dtype, too")
        if dtype is not None and is_npy(path):
            raise ValueError(f"the header of {name} says its type and shape: give no dtype, shape or offset")
        with open(path, "rb", buffering=0) as file:
            if dtype is None:
                shape, order, dtype, offset = npy_header(file)
            dtype = np.dtype(dtype)
            if dtype.hasobject:
                raise ValueError(f"{name} holds Python objects: load it by numpy.load(allow_pickle=True)")
            if shape is None:
                shape = items_left(file, dtype, offset)
            array = self.empty(shape, dtype, order)
            read = self._read(file.fileno(), offset, array)
            if read != array.nbytes:
                raise ValueError(f"{name} is too short: {read} bytes of {array.nbytes}")
            return array

    def readinto(self, file: Any, array: Memory, offset: SupportsIndex = 0) -> int:
        """Fills an array of the pool from an open file, from byte `offset` on. Returns the bytes read: fewer than the
        array has if the file ends before. Unlike ``file.readinto`` of a plain file it also works in direct mode.

        Of a pipe, which has to be open without buffering, it reads on from where it is, and skips `offset` bytes.

        Raises ValueError where the array is not contiguous and writable, holds Python objects or lies in another pool,
        or the file is not a plain one, such as one of `gzip`; TypeError for a scalar; OSError where the file cannot be
        read.

        >>> import tempfile
        >>> pool = Pool("64M")
        >>> a = pool.zeros(4, "u1")
        >>> with tempfile.TemporaryFile(buffering=0) as file:
        ...     _ = file.write(bytes(range(8)))
        ...     pool.readinto(file, a, offset=2), a
        (4, array([2, 3, 4, 5], dtype=uint8))
        """
        if isinstance(array, np.generic):
            raise TypeError("a scalar cannot be filled: give an array")
        descriptor = descriptor_of(file)
        if isinstance(file, io.IOBase) and not isinstance(file, io.FileIO) and not file.seekable():
            raise ValueError("a pipe is read past its buffer: open it with buffering=0")
        return self._read(descriptor, file_offset(offset), as_array(array))

    def to_file(self, array: Memory, path: Path) -> None:
        """Writes an array to a file: as `numpy.save` if the name ends in ``.npy``, else as `numpy.ndarray.tofile`. Also
        works in direct mode.

        Raises ValueError where it holds Python objects, OSError where the file cannot be written.

        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     pool = Pool("64M")
        ...     pool.to_file(pool.array([1, 2], "i4"), file.name)
        ...     np.fromfile(file.name, "i4")
        array([1, 2], dtype=int32)
        """
        array = as_array(array)
        if array.dtype.hasobject:
            raise ValueError("an array of Python objects cannot be written")
        with open(path, "wb") as file:
            if is_npy(path):
                write_npy(array, file)
                return
            if array.flags.c_contiguous and array in self and file.seekable():
                self._arena.write(file.fileno(), 0, *extent(array))
            else:
                write_parts(array, file)

    def _read(self, descriptor: int, offset: int, array: Array) -> int:
        if not (array.flags.c_contiguous or array.flags.f_contiguous) or not array.flags.writeable:
            raise ValueError("the array must be contiguous and writable")
        if array.dtype.hasobject:
            raise ValueError("an array of Python objects cannot be read")
        start, length = extent(array)
        try:
            return self._arena.read(descriptor, offset, start, length) if length else 0
        except OSError as error:
            if error.errno != errno.ESPIPE:
                raise
        return read_parts(descriptor, offset, array)

    # ---- NumPy's own allocations ----

    def __enter__(self) -> Pool:
        """Makes NumPy allocate arrays of 64 KiB and more from this pool, in this thread or task, and in tasks that it
        starts. In threads that it starts, too, where they inherit its context: by default in free-threaded CPython.

        >>> with Pool("64M") as pool:
        ...     a = np.ones(100_000)
        ...     b = (a * 2 + a).sum()
        >>> float(b), a in pool
        (300000.0, True)
        """
        entered, before = _entered.get(), _native.get_handler()
        try:
            _set_handler(self._handler)
            _entered.set((*entered, (self, before)))
        except BaseException:  # Ctrl-C came in between
            _set_handler(before)
            _entered.set(entered)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        entered = _entered.get()
        at = max((at for at, (pool, _) in enumerate(entered) if pool is self), default=None)
        if at is None:
            raise RuntimeError("this pool was not entered in this thread or task")
        before, inner = entered[at][1], entered[at + 1 :]
        if inner:  # as where a generator is closed in the block of another pool: that one stays in force
            _entered.set((*entered[:at], (inner[0][0], before), *inner[1:]))
            return
        try:
            _set_handler(before)
        finally:  # also if Ctrl-C came in between
            _entered.set(entered[:at])

    # ---- advice ----

    def __contains__(self, array: object) -> bool:
        """Whether an array or view lies in this pool (and not in ordinary memory, where small ones are).

        >>> pool = Pool("64M")
        >>> pool.empty(100_000) in pool, pool.empty(16) in pool
        (True, False)
        """
        if not isinstance(array, (np.ndarray, memoryview)):
            return False
        start, length = extent(as_array(array))
        return length > 0 and self._arena.contains(start, length)

    def advise(self, array: Memory, advice: Advice) -> None:
        """Says how an array or view will be used. It changes no content, and acts on blocks of 2 MiB.

        ``"willneed"``: read it in the background. ``"sequential"``: it is read from start to end. ``"random"``: keep
        what is in RAM. ``"cold"``: it may leave RAM first. ``"hugepage"``, ``"nohugepage"``: blocks come back whole,
        or page by page. ``"normal"``: nothing special.

        Raises ValueError where the array is not in this pool, or there is no such advice.

        >>> pool = Pool("64M")
        >>> a = pool.zeros((1000, 1000))
        >>> pool.advise(a[:10], "random")
        """
        array = as_array(array)
        start, length = extent(array)
        if length and not (self._is_small(array) and not self._arena.contains(start, length)):
            self._arena.advise(start, length, advice)
        elif advice not in ("normal", "willneed", "sequential", "random", "cold", "hugepage", "nohugepage"):
            self._arena.advise(0, 0, advice)

    def prefetch(self, array: Memory) -> None:
        """Reads an array or view in the background, as far as half of the budget goes. Returns at once.

        Raises ValueError where the array is not in this pool, TypeError where it is none.

        >>> pool = Pool("64M")
        >>> pool.prefetch(pool.zeros((1000, 1000))[100:200])
        """
        self.advise(array, "willneed")

    def cold(self, array: Memory) -> None:
        """Lets an array or view leave RAM first, and starts writing it. Ctrl-C ends this between two parts of 64 MiB.

        Raises ValueError where the array is not in this pool, TypeError where it is none.

        >>> pool = Pool("64M")
        >>> pool.cold(pool.zeros((1000, 1000)))
        """
        self.advise(array, "cold")

    @staticmethod
    def _is_small(array: Array) -> bool:
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        return base.nbytes < 64 << 10

    # ---- figures ----

    def stats(self) -> Stats:
        """Figures so far: a dict with a readable ``repr`` and, in notebooks, a bar. Takes about 100 us.

        Keys that end in ``_bytes`` and ``_ns`` are bytes and nanoseconds; ``memory_bytes`` is the budget,
        ``mapped_bytes`` and ``standby_bytes`` are in RAM, ``swapped_bytes`` are in use on swap devices.

        >>> Pool("64M").stats()["memory_bytes"]
        67108864
        """
        return Stats(self._arena.stats())

    @property
    def memory(self) -> int:
        """The budget in bytes.

        >>> Pool("64M").memory
        67108864
        """
        return self._arena.memory

    @property
    def faults(self) -> str:
        """How faults are resolved: ``"monitor"`` or ``"direct"``.

        >>> Pool("64M", faults="direct").faults
        'direct'
        """
        return self._arena.faults

    @property
    def folio(self) -> str:
        """The size of folios: ``"auto"``, or a power of two from ``"4K"`` to ``"2M"``.

        >>> Pool("64M", folio="64K").folio
        '64K'
        """
        return self._arena.folio

    def resize(self, memory: Size) -> None:
        """Changes the budget. After shrinking it, waits until the surplus has left RAM, 10 seconds at most.

        Ctrl-C ends the wait, and the budget is changed all the same. A budget beyond the machine's RAM is not refused,
        but limits nothing. Raises ValueError where it is below 16M or above 12T.

        >>> pool = Pool("64M")
        >>> pool.resize("32M")
        >>> pool.memory
        33554432
        """
        self._arena.resize(size_bytes(memory, _native.budget))

    def fits(self, shape: Shape, dtype: Any = float, measure: bool = True) -> Fit:
        """Whether one more array of this shape fits RAM and swap, and how fast the disk is. All arrays of the pool count
        as if they were filled, and compressed RAM as if nothing compressed.

        Parameters
        ----------
        measure
            Whether to measure the disk of the first swap file: writes and reads 64 MiB there once, in about 0.1 s. A
            swap device that is a block device is not measured.

        Raises ValueError for a negative length, TypeError where the shape is none.

        >>> fit = Pool("64M").fits((1000, 1000), "f4", measure=False)
        >>> bool(fit), fit.bytes
        (True, 4000000)
        """
        return fit(self._arena.stats(), self._arena.arrays_bytes, shape, dtype, measure)

    def __repr__(self) -> str:
        return f"<folioswap.Pool of {_native.show(self.memory)}, {self.faults} faults, {self.folio} folios>"

    def _repr_html_(self) -> str:
        return self.stats()._repr_html_()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a pool can be neither copied nor sent to another process: make a new one. Its arrays can be, and are copied"
        )
