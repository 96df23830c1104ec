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
    #: Bytes that are in RAM at most: the budget, or all RAM that this process may use.
    ram_bytes: int
    #: Bytes that the swap devices take in all, if no more compresses.
    swap_bytes: int
    #: Bytes a second that the disk of the swap file reads and writes; 0 where there is none.
    read_rate: float
    write_rate: float
    #: Bytes of the arrays that there are, which count as if they were filled.
    arrays_bytes: int = 0
    #: Bytes that compressed RAM takes besides at most, if all compresses well.
    compressed_bytes: int = 0

    def __bool__(self) -> bool:
        return self.fits

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        text = f"{_show(self.bytes)} {verdict}: RAM {_show(self.ram_bytes)}, swap {_show(self.swap_bytes)}"
        if self.compressed_bytes:
            text += f" and up to {_show(self.compressed_bytes)} more if it compresses"
        if self.arrays_bytes:
            text += f"; the arrays that there are may take {_show(self.arrays_bytes)}"
        if self.read_rate:
            seconds = max(0, self.bytes - self.ram_bytes) / self.read_rate
            text += f"; the disk reads {self.read_rate / 1e9:.2f} GB/s, writes {self.write_rate / 1e9:.2f} GB/s"
            text += f"; one pass in order reads for {seconds:.1f} s"
        return text


def _show(size: int) -> str:
    return _native.show(min(size, _MOST_SHOWN))


def fit(stats: Mapping[str, Any], arrays_bytes: int, shape: Shape, dtype: Any, measure: bool) -> Fit:
    """Compares an array with a pool's figures. Measures the disk of its first swap file, if that is wanted."""
    lengths: Any = shape if isinstance(shape, (Sequence, np.ndarray)) else (shape,)
    size = np.dtype(dtype).itemsize
    for length in lengths:
        if operator.index(length) < 0:
            raise ValueError("negative dimensions are not allowed")
        size *= operator.index(length)
    machine = _native.budget("100%")
    ram = min(stats["memory_bytes"], machine)
    in_memory, compressed = _in_memory(stats, machine - ram)
    on_disk, directories = _on_disks(stats)
    swap = in_memory + on_disk
    rates = _measure_disk(directories[0]) if measure and directories else (0.0, 0.0)
    return Fit(size + arrays_bytes <= ram + swap, size, ram, swap, *rates, arrays_bytes, compressed)


def _in_memory(stats: Mapping[str, Any], left: int) -> tuple[int, int]:
    """Bytes that devices in memory take of so much RAM: of compressed RAM those that it takes uncompressed, with what
    compression has gained so far, and those that it takes besides if all compresses."""
    room, besides = 0, 0
    for device in stats["devices"]:
        if device["name"].startswith("zram:"):
            # But a sixteenth: its records, and the rest of pages that have no room for one more object.
            plain = min(device["limit_bytes"] * 15 // 16, left)
            most = device["size_bytes"] * plain // device["limit_bytes"]
            gained = device["content_bytes"] - device["kept_bytes"] - stats["mapped_bytes"] - stats["standby_bytes"]
            room, besides = room + plain + max(0, gained), besides + max(0, most - plain - max(0, gained))
        elif device["name"].startswith("ram:"):
            plain = min(device["size_bytes"], left)
            room += plain
        else:
            continue
        left -= plain
    return room, besides


def _on_disks(stats: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Bytes that block devices and swap files take, and the directories of the files. A file takes what it has, and of
    what is free on its disk as much as it may still grow: one of a stated size has all of it, and a limit of file sizes
    (ulimit -f) reserves nothing."""
    room, directories = 0, list[str]()
    free, grow = dict[int, int](), dict[int, int]()
    for device in stats["devices"]:
        if device["name"].startswith(("ram:", "zram:")):
            continue
        directory = _directory(device["name"])
        if directory is None:
            room += device["size_bytes"]
            continue
        directories.append(directory)
        room += device["reserved_bytes"]
        disk, identity = os.statvfs(directory), os.stat(directory).st_dev
        # Without the reserve for the system: root has it, but not in every container.
        free[identity] = disk.f_bavail * disk.f_frsize if disk.f_blocks else _MOST_SHOWN  # some do not tell
        most = _MOST_SHOWN if device["size_bytes"] is None else device["size_bytes"] - device["reserved_bytes"]
        grow[identity] = grow.get(identity, 0) + most
    return room + sum(min(free[identity], grow[identity]) for identity in free), directories


def _directory(device: str) -> str | None:
    """The directory of a swap file; `None` for a block device."""
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
