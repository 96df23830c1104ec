"""The types that the package declares: a type checker agrees with them, and with a program that uses them."""

import os
import subprocess
import sys

import pytest

PROGRAM = '''
from pathlib import Path
from typing import Any

import folioswap
import numpy as np

pool = folioswap.Pool(memory="2G", swap=["zram:1G", Path("/swap/a")], folio="auto", faults="auto")
a: np.ndarray[Any, Any] = pool.empty((200_000, np.int64(50_000)), dtype="f4", order="F")
b: np.ndarray[Any, Any] = pool.from_file(Path("a.npy"))
c: np.ndarray[Any, Any] = pool.full(5, 7.5)
with pool as entered:
    same: folioswap.Pool = entered
buffer: memoryview = pool.buffer("1M")
pool.prefetch(a[3:5])
pool.cold(buffer)
pool.advise(a, "random")
pool.resize(np.int64(1 << 30))
pool.to_file(a, b"file")
fit: folioswap.Fit = pool.fits((3, np.int8(4)), np.float32)
seconds: float = fit.bytes / fit.read_rate
used: int = pool.stats()["swapped_bytes"]
inside: bool = a in pool
version: str = folioswap.__version__
pool.advise(a, 3)  # type: ignore[arg-type]
pool.empty((3, "x"))  # type: ignore[arg-type]
pool.zeros(3, order="X")  # type: ignore[arg-type]
'''


def test_a_type_checker_agrees(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    # The sources: mypy takes no files of an installed package.
    package = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "folioswap")
    strict = ["mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    for command in ([*strict, str(tmp_path / "program.py")], [*strict, package], ["mypy.stubtest", "folioswap._native"]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, cwd=tmp_path, check=False,
        )
        assert done.returncode == 0, done.stdout
