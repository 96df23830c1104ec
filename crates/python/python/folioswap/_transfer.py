"""Files: the header of .npy files, and arrays whose items do not follow each other."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ._types import Array, Order

_MAGIC = b"\x93NUMPY"

#: Bytes that `write_parts` copies at a time.
_PIECE_BYTES = 1 << 20


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


def write_parts(array: Array, file: Any) -> None:
    """Writes an array whose items do not follow each other, by way of a small buffer. Between two pieces other threads
    run, and a signal such as that of Ctrl-C is handled."""
    items = max(1, _PIECE_BYTES // array.itemsize)
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    for piece in np.nditer(array, flags=flags, order="C", buffersize=items):
        file.write(np.asarray(piece).tobytes())
