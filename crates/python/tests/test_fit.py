"""`Pool.fits` does not say yes to what ends the process: what it says fits can be filled with noise."""

import os
import subprocess
import sys
import tempfile

import folioswap
import numpy as np
import pytest

MIB = 1 << 20

FILL = """
import sys, folioswap, numpy as np
pool = folioswap.Pool("16M", swap=sys.argv[1])
before = pool.empty(int(sys.argv[2]), "u1")
random, piece = np.random.default_rng(1), 1 << 20
low, high = 0, 1 << 40
while high - low > 4096:
    size = (low + high) // 2
    low, high = (size, high) if pool.fits(size, "u1", measure=False) else (low, size)
array = pool.empty(low, "u1")
for part in (before, array):
    for start in range(0, part.size, piece):
        part[start : start + piece] = random.integers(0, 256, len(part[start : start + piece]), "u1")
print(low)
"""


@pytest.mark.parametrize("swap, least", [("ram:16M", 32), ("zram:64M", 72)])
def test_what_fits_can_be_filled(swap, least):
    for before in (0, 8 * MIB):
        done = subprocess.run([sys.executable, "-c", FILL, swap, str(before)], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert least * MIB - before - 8192 < int(done.stdout) < (least + 8) * MIB - before


def test_arrays_count_before_they_are_written():
    pool = folioswap.Pool("16M", swap="ram:16M")
    assert pool.fits(24 * MIB, "u1")
    array = pool.empty(20 * MIB, "u1")
    fit = pool.fits(24 * MIB, "u1")
    assert not fit and fit.arrays_bytes == 20 * MIB and "the arrays that there are may take 20M" in str(fit)
    assert pool.fits(12 * MIB, "u1") and not pool.fits(12 * MIB + 1, "u1")
    array[:] = 1
    assert pool.fits(12 * MIB, "u1") and not pool.fits(12 * MIB + 1, "u1")
    del array
    assert pool.fits(24 * MIB, "u1")


def test_compressed_ram_counts_as_it_is():
    pool = folioswap.Pool("16M", swap="zram:64M")
    fit = pool.fits(100 * MIB, "u1")
    assert not fit and fit.swap_bytes == 60 * MIB and "more if it compresses" in str(fit) and fit.compressed_bytes > 500 * MIB
    array = pool.zeros(200 * MIB, "u1")
    array += 1
    fit = pool.fits(30 * MIB, "u1")
    assert fit and fit.swap_bytes > 200 * MIB, str(fit)
    assert (array == 1).all()


LIMITED = """
import ctypes, os, resource, sys, folioswap
if os.geteuid() == 0:
    os.setuid(65534)  # root may make files longer than the limit
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: it may read its own page tables
resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
pool = folioswap.Pool("16M", swap=sys.argv[1])
told, free = os.statvfs, int(sys.argv[2])
class Disk:
    f_blocks, f_frsize, f_bfree, f_bavail = 1 << 30, 4096, free >> 12, free >> 12
os.statvfs = lambda path: Disk
print(pool.fits(1, measure=False).swap_bytes >> 20)
"""


@pytest.mark.parametrize("size, free, swap", [("", 64, 64), ("", 512, 256), (":32M", 0, 32), (":32M", 64, 32)])
def test_a_limit_of_file_sizes_reserves_nothing_and_a_stated_size_all(size, free, swap):
    with tempfile.TemporaryDirectory(prefix="folioswap-fit-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-c", LIMITED, f"{folder}/swap{size}", str(free * MIB)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(swap)), done.stderr


def test_ram_is_what_the_machine_has():
    machine = folioswap._native.budget("100%")
    for options in ({"memory": "1T", "swap": "ram:16M"}, {"memory": "16M", "swap": "ram:1T"}, {"memory": "16M", "swap": "zram:256G"}):
        pool = folioswap.Pool(**options)
        fit = pool.fits(machine + (1 << 30), "u1")
        assert not fit and fit.ram_bytes <= machine and fit.ram_bytes + fit.swap_bytes <= machine, options
        assert pool.fits(64 * MIB, "u1")


def test_a_budget_beyond_the_ram_is_not_refused():
    pool = folioswap.Pool("64M", swap="ram:16M")
    pool.resize("1T")
    assert pool.memory == 1 << 40 and float(np.add(pool.zeros(MIB), 1).sum()) == MIB
    assert "MemoryError" not in folioswap.Pool.resize.__doc__
