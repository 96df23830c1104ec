"""The numpy program of the suite: prints hashes of results that are the same on every run.

Usage: numpy_work.py sequential|random BYTES. `sequential` works through BYTES of arrays in order or in long runs.
`random` accesses single elements at random.
"""

import hashlib
import os
import sys

import numpy as np


def show(name, array):
    """Prints one line with a hash of the array's bytes."""
    whole = np.ascontiguousarray(array)
    print(name, whole.dtype, whole.shape, hashlib.blake2b(whole.data, digest_size=16).hexdigest(), flush=True)


def sequential(size_bytes):
    """Sort, fancy indexing by rows and by ascending indices, files, matmul."""
    rng = np.random.default_rng(1)
    nr_rows = size_bytes // 2 // 65536
    a = rng.random((nr_rows, 8192))
    show("made", a)
    show("sorted", np.sort(a, axis=None))
    show("rows", a[rng.permutation(nr_rows)])
    flat = a.reshape(-1)
    show("places", flat[np.sort(rng.integers(0, flat.size, flat.size // 4))])
    flat[flat > 0.5] *= -1.0
    show("mask", flat)
    a.tofile("array.bin")
    b = np.fromfile("array.bin", dtype=a.dtype).reshape(a.shape)
    os.unlink("array.bin")
    print("files", np.array_equal(a, b))
    del a, b, flat
    side = int((size_bytes / 3 / 4) ** 0.5)
    c = rng.random((side, side), dtype=np.float32)
    d = rng.random((side, side), dtype=np.float32)
    show("matmul", c @ d)


def random(size_bytes):
    """Single elements in random order; an indirect sort."""
    rng = np.random.default_rng(2)
    count = size_bytes // 8 // 4
    a = rng.random(count)
    order = rng.permutation(count)
    show("picked", a[order])
    show("argsort", np.argsort(a))
    a[order] = np.arange(count)
    show("scattered", a)


if __name__ == "__main__":
    {"sequential": sequential, "random": random}[sys.argv[1]](int(sys.argv[2]))
