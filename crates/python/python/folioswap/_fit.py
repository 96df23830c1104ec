"""Whether an array fits a pool, and how fast its disk is."""

from __future__ import annotations

import mmap
import operator
import os
import stat
import tempfile
import time
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from . import _native
from ._types import Shape

_MOST_SHOWN = (1 << 64) - 1


class Fit(NamedTuple):
    """What `Pool.fits` found out. It is true where the array fits.

    >>> bool(Fit(True, 1, 2, 3, 4.0, 5.0))
    True
    """

    fits: bool
    #: Bytes of the array.
    bytes: int
    #: Bytes of it that are in RAM at most: the budget.
    ram_bytes: int
    #: Bytes that the swap devices can still take.
    swap_bytes: int
    #: Bytes a second that the disk of the swap file reads and writes; 0 where there is none.
    read_rate: float
    write_rate: float

    def __bool__(self) -> bool:
        return self.fits

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        text = f"{_native.show(min(self.bytes, _MOST_SHOWN))} {verdict}: RAM {_native.show(self.ram_bytes)}"
        text += f", swap {_native.show(self.swap_bytes)}"
        if self.read_rate:
            seconds = max(0, self.bytes - self.ram_bytes) / self.read_rate
            text += f"; the disk reads {self.read_rate / 1e9:.2f} GB/s, writes {self.write_rate / 1e9:.2f} GB/s"
            text += f"; one pass in order reads for {seconds:.1f} s"
        return text


def fit(stats: Mapping[str, Any], shape: Shape, dtype: Any, measure: bool) -> Fit:
    """Compares an array with a pool's figures. Measures the disk of its first swap file, if that is wanted."""
    lengths: Any = shape if isinstance(shape, (Sequence, np.ndarray)) else (shape,)
    size = np.dtype(dtype).itemsize
    for length in lengths:
        if operator.index(length) < 0:
            raise ValueError("negative dimensions are not allowed")
        size *= operator.index(length)
    directories, room = [], 0
    for device in stats["devices"]:
        if device["size_bytes"] is not None:
            room += max(0, device["size_bytes"] - device["used_bytes"])
        directory = _directory(device["name"])
        if directory is None:
            continue
        directories.append(directory)
        if device["size_bytes"] is None:
            disk = os.statvfs(directory)
            room += disk.f_bavail * disk.f_frsize
    in_use = stats["mapped_bytes"] + stats["standby_bytes"]
    budget = stats["memory_bytes"]
    rates = _measure_disk(directories[0]) if measure and directories else (0.0, 0.0)
    return Fit(size <= room + max(0, budget - in_use), size, budget, room, *rates)


def _directory(device: str) -> str | None:
    """The directory of a swap file; `None` for memory and block devices."""
    if device.startswith(("ram:", "zram:")):
        return None
    try:
        mode = os.stat(device).st_mode
    except OSError:
        mode = 0  # a swap file has no name in its directory
    if stat.S_ISBLK(mode):
        return None
    return device if stat.S_ISDIR(mode) else os.path.dirname(device) or "."


def _measure_disk(directory: str, size: int = 64 << 20) -> tuple[float, float]:
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
