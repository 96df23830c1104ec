"""Files that are not what they seem, and .npy files: the right content, or one sentence."""

import gzip
import io
import os
import tempfile

import folioswap
import numpy as np
import pytest
from conftest import MODES

MIB = 1 << 20


@pytest.fixture(scope="module")
def values():
    """2 MiB of numbers."""
    return np.arange(MIB // 4, dtype="i8").reshape(512, -1)


def test_a_header_is_no_data(pool, tmp_path, values):
    np.save(tmp_path / "a.npy", values)
    for given in (("i8",), ("i8", None, 128), (values.dtype, values.shape)):
        with pytest.raises(ValueError, match="the header of .*a.npy says"):
            pool.from_file(tmp_path / "a.npy", *given)
    for name in ("a.npy", "b"):
        (tmp_path / name).write_bytes((tmp_path / "a.npy").read_bytes())
        for given in ({"shape": values.shape}, {"shape": 3}, {"offset": 8}):
            with pytest.raises(ValueError, match="give the dtype"):
                pool.from_file(tmp_path / name, **given)
    assert (pool.from_file(tmp_path / "b") == values).all()
    assert (pool.from_file(tmp_path / "b", "i8", values.shape, 128) == values).all()


def test_a_file_of_unknown_size_is_not_empty(pool, tmp_path):
    for path in ("/proc/self/status", "/dev/zero"):
        with pytest.raises(ValueError, match="give the shape: .* how long"):
            pool.from_file(path, "u1")
    assert pool.from_file("/proc/self/status", "u1", 5).tobytes() == b"Name:"
    assert not pool.from_file("/dev/zero", "u1", MIB).any()
    (tmp_path / "empty").touch()
    assert pool.from_file(tmp_path / "empty", "u1").shape == (0,)


def test_a_block_device_is_as_long_as_it_is(pool, tmp_path, values):
    values.tofile(tmp_path / "image")
    with os.popen(f"losetup --show -f -r {tmp_path / 'image'} 2>&1") as answer:
        device = answer.read().strip()
    if not device.startswith("/dev/"):
        pytest.skip(f"no loop device: {device}")
    try:
        assert (pool.from_file(device, "i8") == values.ravel()).all()
    finally:
        os.system(f"losetup -d {device}")


def test_what_decodes_is_no_plain_file(pool, tmp_path, values):
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write(values)
    array = pool.zeros(values.shape, "i8")
    for wrap in (lambda file: file, io.BufferedReader, io.TextIOWrapper):
        with wrap(gzip.open(tmp_path / "a.gz")) as file, pytest.raises(ValueError, match="a GzipFile is no plain file"):
            pool.readinto(file, array)
    with gzip.open(tmp_path / "a.gz") as file:
        assert file.readinto(array.data.cast("B")) == array.nbytes
    assert (array == values).all()
    values.tofile(tmp_path / "plain")
    for options in (("rb",), ("rb", 0), ("r+b",), ("r",)):
        array[:] = 0
        with open(tmp_path / "plain", *options) as file:
            assert pool.readinto(file, array) == array.nbytes and (array == values).all()
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"1234")
        file.flush()
        assert pool.readinto(file, array) == 4


def test_npy_files_are_written(pool, tmp_path):
    array = pool.empty(96 * MIB // 8, "i8")  # three budgets
    array[:] = np.arange(array.size)
    records = np.zeros(30, [("a", "i1"), ("b", "S300")])
    square = array[: 1 << 20].reshape(1024, -1)
    for part in (array, square, square.T, square[::2, ::3], array[:0], records, np.float32(3), np.ones(()), array.data):
        pool.to_file(part, tmp_path / "a.npy")
        back = np.load(tmp_path / "a.npy")
        assert back.dtype == np.asarray(part).dtype and back.shape == np.asarray(part).shape
        assert back.flags.f_contiguous or not np.asarray(part).flags.f_contiguous
        assert (back == part).all() and (pool.from_file(tmp_path / "a.npy") == part).all()
    pool.to_file(square, os.fsencode(tmp_path / "b.npy"))
    assert (np.load(tmp_path / "b.npy") == square).all()
    with pytest.raises(ValueError, match="Python objects"):
        pool.to_file(np.array([{}]), tmp_path / "c.npy")
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.parametrize("other", MODES)
def test_an_array_of_another_pool(tmp_path, other):
    pool, other = folioswap.Pool("16M", swap="ram:64M", faults="direct"), folioswap.Pool("16M", swap="ram:64M", faults=other)
    array = other.zeros(48 * MIB, "u1")
    array += 1
    array.tofile(tmp_path / "a") if other.faults == "monitor" else other.to_file(array, tmp_path / "a")
    pool.to_file(array, tmp_path / "b")
    for name in "ab":
        assert (np.fromfile(tmp_path / name, "u1") == 1).all()
        assert (tmp_path / name).stat().st_size == array.nbytes
    if other.faults == "direct":
        with open(tmp_path / "a", "rb") as file, pytest.raises(ValueError, match="not in this pool"):
            pool.readinto(file, array)
