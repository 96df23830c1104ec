"""What the functions of the package take: sizes, shapes, paths, arrays and views of memory."""

from __future__ import annotations

import operator
import os
from typing import Any, Callable, Literal, Sequence, SupportsIndex, Union

import numpy as np

from . import _native

Size = Union[SupportsIndex, str]
Shape = Union[SupportsIndex, Sequence[SupportsIndex]]
Order = Literal["C", "F"]
Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Advice = Literal["normal", "willneed", "sequential", "random", "cold", "hugepage", "nohugepage"]
Array = np.ndarray[Any, Any]
#: An array, a scalar, or a view of memory such as `Pool.buffer` returns.
Memory = Union[Array, "np.generic[Any]", memoryview]


def size_bytes(size: Size, read: Callable[[str], int] = _native.size) -> int:
    """A size in bytes."""
    if isinstance(size, str):
        return read(size)
    size = operator.index(size)
    if not 0 <= size < 1 << 64:
        raise ValueError(f"`{size}` is not a size: give a number of bytes, or a text as in 512M or 2G")
    return size


def file_offset(offset: SupportsIndex) -> int:
    """An offset in a file, as the kernel takes it."""
    offset = operator.index(offset)
    if not 0 <= offset < 1 << 63:
        raise ValueError(f"`{offset}` is no offset in a file")
    return offset


def as_array(memory: Memory) -> Array:
    """The array that a view of memory is. Copies nothing but scalars."""
    if not isinstance(memory, (np.ndarray, np.generic, memoryview)):
        raise TypeError(f"an array is needed, not {type(memory).__name__}")
    return np.asarray(memory)


def extent(array: Array) -> tuple[int, int]:
    """The first address of an array or view, and the bytes from there to its end."""
    start = end = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return start, 0
    for length, stride in zip(array.shape, array.strides):
        if stride < 0:
            start += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return start, end + array.itemsize - start
