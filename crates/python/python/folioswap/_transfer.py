"""Files: the header of .npy files, and how fast a disk is."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from typing import Any

import numpy as np

_MAGIC = b"\x93NUMPY"


def npy_header(file: Any) -> tuple[tuple[int, ...], str, np.dtype, int]:
    """Shape, order, type and the offset of the data of a .npy file."""
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ValueError(f"{file.name} is no .npy file: give the dtype of its items")
    file.seek(0)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        # Version 3 is version 2 with a header in UTF-8.
        read = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, "F" if fortran else "C", dtype, file.tell()


def measure_disk(directory: str, size: int = 64 << 20) -> tuple[float, float]:
    """Bytes a second that a disk reads and writes in pieces of 2 MiB, past the page cache."""
    piece = mmap.mmap(-1, 2 << 20)
    piece.write(os.urandom(1 << 16) * 32)
    try:
        descriptor, path = tempfile.mkstemp(prefix="folioswap-", dir=directory)
        os.close(descriptor)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
        finally:
            os.unlink(path)
    except OSError:
        return 0.0, 0.0
    try:
        os.posix_fallocate(descriptor, 0, size)
        rates = []
        for transfer in (os.pwritev, os.preadv):
            begun = time.perf_counter()
            for offset in range(0, size, len(piece)):
                transfer(descriptor, [piece], offset)
            rates.append(size / (time.perf_counter() - begun))
        return rates[1], rates[0]
    except OSError:
        return 0.0, 0.0
    finally:
        os.close(descriptor)
