"""Files: which are plain and how long they are, .npy files, and arrays whose items do not follow each other."""

from __future__ import annotations

import io
import os
import stat
from typing import Any

import numpy as np

from ._types import Array, Order, Path

_MAGIC = b"\x93NUMPY"

#: Bytes that `write_parts` and `read_parts` copy at a time.
_PIECE_BYTES = 1 << 20

#: Bytes that `fill` copies at a time.
PART_BYTES = 64 << 20


def is_npy(path: Path) -> bool:
    """Whether a name is one of a .npy file."""
    return os.fsdecode(path).endswith(".npy")


def items_left(file: Any, dtype: Any, offset: int) -> int:
    """How many items a file has from an offset on."""
    if dtype.itemsize == 0:
        raise ValueError("give the shape: items of this type have no size")
    about = os.fstat(file.fileno())
    if stat.S_ISBLK(about.st_mode):
        size = os.lseek(file.fileno(), 0, os.SEEK_END)
    elif not stat.S_ISREG(about.st_mode) or (not about.st_size and os.pread(file.fileno(), 1, 0)):  # as in /proc
        raise ValueError(f"give the shape: the system does not say how long {os.fsdecode(file.name)} is")
    else:
        size = about.st_size
    return int(max(0, size - offset) // dtype.itemsize)


def descriptor_of(file: Any) -> int:
    """The descriptor of an open file whose bytes are those of the file."""
    inner = file
    while isinstance(inner, (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.BufferedWriter)):
        inner = inner.buffer if isinstance(inner, io.TextIOWrapper) else inner.raw
    if isinstance(inner, io.IOBase) and not isinstance(inner, io.FileIO):
        raise ValueError(f"a {type(inner).__name__} is no plain file: call its own readinto")
    return int(file.fileno())


def npy_header(file: Any) -> tuple[tuple[int, ...], Order, Any, int]:
    """Shape, order, type and the offset of the data of a .npy file."""
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ValueError(f"{file.name} is no .npy file: give the dtype of its items")
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    elif version == (3, 0):
        # Version 2 with a header in UTF-8. NumPy reads it as Latin-1, so it gets escapes instead.
        length = int.from_bytes(file.read(4), "little")
        text = file.read(length).decode().encode("ascii", "backslashreplace")
        header = io.BytesIO(len(text).to_bytes(4, "little") + text)
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(header)
    else:
        raise ValueError(f"{file.name} is a .npy file of version {version[0]}.{version[1]}, which is not known")
    return shape, "F" if fortran else "C", dtype, file.tell()


def read_parts(descriptor: int, offset: int, array: Array) -> int:
    """Fills a contiguous array from a file that cannot seek, such as a pipe, by way of a small buffer. Skips `offset`
    bytes. Returns the bytes read. Between two pieces as in `write_parts`."""
    target = array.reshape(-1, order="A").view(np.uint8)
    at = -offset
    while at < array.nbytes:
        piece = os.read(descriptor, min(_PIECE_BYTES, -at if at < 0 else array.nbytes - at))
        if not piece:
            break
        if at >= 0:
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return max(0, at)


def fill(array: Array, values: Any) -> None:
    """Copies values, broadcast, into a dense array, as `numpy.copyto`. Between two parts other threads run, and a
    signal such as that of Ctrl-C is handled."""
    if array.nbytes <= PART_BYTES or array.size <= 1:
        np.copyto(array, values, casting="unsafe")
        return
    if np.ndim(values) == 0:
        item = np.empty((), array.dtype)
        np.copyto(item, values, casting="unsafe")  # fails where the whole copy would
        values = item
    values = np.asarray(values)
    while values.ndim > array.ndim and values.shape[0] == 1:
        values = values[0]
    values = np.broadcast_to(values, array.shape)
    axis = max(range(array.ndim), key=lambda axis: array.strides[axis] * (array.shape[axis] > 1))
    step = PART_BYTES * array.shape[axis] // array.nbytes
    for start in range(0, array.shape[axis], max(1, step)):
        part = slice(start, start + max(1, step)) if step or array.ndim == 1 else start  # with no dimension: a copy
        index = (slice(None),) * axis + (part,)
        fill(array[index], values[index])


def write_parts(array: Array, file: Any) -> None:
    """Writes any array by way of a small buffer. Between two pieces other threads
    run, and a signal such as that of Ctrl-C is handled."""
    if not array.nbytes:
        return
    items = max(1, _PIECE_BYTES // array.itemsize)
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    for piece in np.nditer(array, flags=flags, order="C", buffersize=items):
        file.write(np.asarray(piece).tobytes())


class _NoFile:
    """Takes what is written, and has no descriptor: NumPy copies then, which works in both fault modes."""

    def __init__(self, file: Any) -> None:
        self.write = file.write


def write_npy(array: Array, file: Any) -> None:
    """Writes a .npy file, by way of a buffer of 16 MiB. Between two pieces as in `write_parts`."""
    np.lib.format.write_array(_NoFile(file), array, allow_pickle=False)
