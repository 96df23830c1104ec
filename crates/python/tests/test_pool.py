"""Pools and their arrays: plain arrays, freed when they die, in both fault modes."""

import asyncio
import contextvars
import copy
import errno
import gc
import inspect
import io
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types

import folioswap
import numpy as np
import pytest
from conftest import MODES, threads
from folioswap import _transfer, _types

MIB = 1 << 20


def addresses_kib():
    """The addresses of this process, in KiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmSize")).split()[1])


def filled(pool, mib=96, dtype="i8"):
    """An array of three budgets, each item its index."""
    array = pool.empty(mib * MIB // np.dtype(dtype).itemsize, dtype)
    array[:] = np.arange(array.size, dtype=dtype)
    return array


def is_whole(array):
    """Whether each item is its index."""
    pieces = np.array_split(array, 16)
    starts = np.cumsum([0] + [piece.size for piece in pieces])
    return all((piece == np.arange(start, start + piece.size)).all() for start, piece in zip(starts, pieces))


def test_arrays_are_plain(pool):
    for array in (
        pool.empty((300, 400, 2), "f4"), pool.zeros((1000, 1000)), pool.full((500, 500), 2.5), pool.array(np.ones(100_000)),
        pool.zeros((1000, 1000), order="F"), pool.zeros(100_000, np.dtype([("a", "i4"), ("b", "U3")])),
    ):
        assert type(array) is np.ndarray and array.base is None and array.flags.owndata and array.flags.writeable
        assert array in pool and array[1:][::-1] in pool
    assert pool.empty((2, 3)) not in pool and pool.empty(0).size == 0 and pool.empty(()).shape == ()
    assert pool.zeros((1000, 1000), order="F").flags.f_contiguous


def test_three_budgets_are_kept(pool):
    array = filled(pool)
    assert is_whole(array)
    array[::7] *= -1
    assert (array[::7] == -np.arange(0, array.size, 7)).all()
    stats = pool.stats()
    assert stats["swapped_out_bytes"] > 64 * MIB and stats["mapped_bytes"] + stats["standby_bytes"] <= 32 * MIB
    assert "GB/s" in repr(stats) and "<div" in stats._repr_html_()
    assert not re.search(r"_bytes|None|nan", repr(stats) + stats._repr_html_())


def test_what_numpy_does_with_arrays(pool):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 40, 6 * MIB)
    array = pool.array(values)
    array.sort()
    values.sort()
    assert (array == values).all()
    picks = rng.integers(0, array.size, 10_000)
    assert (array[picks] == values[picks]).all() and (array[array > array[-100]].size == 99)
    assert (pickle.loads(pickle.dumps(array[: 1 << 18])) == values[: 1 << 18]).all()
    small = pool.zeros((3, 5))
    small.resize((400, 500), refcheck=False)
    assert small in pool and not small.any()
    small.resize((2, 2), refcheck=False)
    assert small not in pool


def test_arrays_give_their_memory_back(pool):
    filled(pool, 8)
    before = addresses_kib()
    for _ in range(50):
        filled(pool, 8)
        pool.zeros(20_000)
    gc.collect()
    assert addresses_kib() - before < 32 << 10
    assert pool.stats()["swapped_bytes"] < 4 * MIB


def test_an_array_keeps_its_pool_alive():
    before = threads()
    pool = folioswap.Pool("16M", swap="ram:128M")
    array = filled(pool, 48)
    assert threads() > before
    del pool
    gc.collect()
    assert is_whole(array)
    del array
    gc.collect()
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        gc.collect()
    assert threads() <= before + 1  # the keeper of descriptors stays


def test_numpy_allocates_from_the_pool(pool):
    other = folioswap.Pool("16M", swap="ram:64M")
    with pool:
        outer = np.ones(MIB)
        with other:
            inner = outer * 2
        again = inner + outer
        assert float(((again * again) + outer).sum()) == 10.0 * MIB
        assert np.ones(16) not in pool
    assert outer in pool and inner in other and inner not in pool and again in pool
    after = np.ones(MIB)
    assert after not in pool and after not in other
    with pytest.raises(RuntimeError, match="not entered"):
        contextvars.Context().run(pool.__exit__)
    with pytest.raises(ZeroDivisionError), pool:
        1 / 0  # noqa: B018
    assert np.ones(MIB) not in pool


def test_threads_and_tasks_have_handlers_of_their_own(pool):
    found = []
    with pool:
        thread = threading.Thread(target=lambda: found.append(np.ones(MIB) in pool))
        thread.start()
        thread.join()
    inherits = getattr(sys.flags, "thread_inherit_context", 0)
    assert found == [bool(inherits)]

    async def inside():
        with pool:
            await asyncio.sleep(0.01)
            first = np.ones(MIB) in pool
            await asyncio.sleep(0.02)
            return first and np.ones(MIB) in pool

    async def outside():
        answers = []
        for _ in range(6):
            await asyncio.sleep(0.006)
            answers.append(np.ones(MIB) in pool)
        return any(answers)

    async def both():
        return await asyncio.gather(inside(), outside(), inside())

    assert asyncio.run(both()) == [True, False, True]


def test_threads_share_arrays(pool):
    array = filled(pool, 64)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(300):
            at = int(rng.integers(0, array.size - 5000))
            if not (array[at : at + 5000] == np.arange(at, at + 5000)).all():
                wrong.append(at)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_files(pool, tmp_path):
    values = np.arange(5 * MIB, dtype="i8").reshape(5, -1)
    for order, name in (("C", "c.npy"), ("F", "f.npy")):
        np.save(tmp_path / name, np.asarray(values, order=order))
        read = pool.from_file(tmp_path / name)
        assert read in pool and (read == values).all() and read.flags.f_contiguous == (order == "F")
    pool.to_file(values[0], tmp_path / "plain")
    big = filled(pool)
    pool.to_file(big, tmp_path / "raw")
    back = pool.from_file(tmp_path / "raw", "i8")
    assert is_whole(back) and (pool.from_file(tmp_path / "raw", "i8", (3, 4), 80) == np.arange(10, 22).reshape(3, 4)).all()
    pool.to_file(big[::2], tmp_path / "strided")
    assert os.path.getsize(tmp_path / "strided") == big.nbytes // 2
    with open(tmp_path / "raw", "rb") as file:
        assert pool.readinto(file, back[:1000], 800) == 8000 and back[0] == 100
    with pytest.raises(ValueError, match="too short"):
        pool.from_file(tmp_path / "raw", "i8", (1 << 30,))
    with pytest.raises(ValueError, match="no .npy"):
        pool.from_file(tmp_path / "raw")
    with pytest.raises(FileNotFoundError):
        pool.from_file(tmp_path / "none", "i8")
    for offset in (-1, 1 << 63, 1 << 64):
        with pytest.raises(ValueError, match="no offset"):
            pool.from_file(tmp_path / "raw", "i8", 5, offset)
        with open(tmp_path / "raw", "rb") as file, pytest.raises(ValueError, match="no offset"):
            pool.readinto(file, back, offset)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        pool.from_file(tmp_path / "objects.npy")


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_the_names_of_fields_in_a_file_are_kept(pool, tmp_path):
    for number, name in enumerate(("a", "\xe9", "\u65e5\U0001f600")):
        values = np.zeros(30_000, [(name, "i4"), ("'\\", [(name + "'", "f8")])])
        values[name] = np.arange(30_000)
        np.save(tmp_path / f"{number}.npy", values)
        read = pool.from_file(tmp_path / f"{number}.npy")
        assert read.dtype == values.dtype and (read == values).all()


def test_parts_of_an_array_are_written_as_numpy_writes_them(pool, tmp_path):
    array = filled(pool, 8, "i4").reshape(2048, -1)
    records = np.zeros((300, 300), [("a", "i1"), ("b", "S300")])
    records["a"] = 7
    for part in (
        array.T, array[::-1, ::3], array[:0, ::2], array[5:6, 9:10], np.broadcast_to(array[0], (70, array.shape[1])),
        records[:, ::2], records["b"], records.T,
    ):
        pool.to_file(part, tmp_path / "part")
        assert (tmp_path / "part").read_bytes() == part.tobytes()


def test_errors_of_files_have_their_number(pool):
    array = filled(pool, 8)
    for part in (array, array[::2]):
        with pytest.raises(OSError) as error:
            pool.to_file(part, "/dev/full")
        assert error.value.errno == errno.ENOSPC


@pytest.mark.skipif("monitor" not in MODES, reason="monitor mode is not permitted")
def test_system_calls_work_in_monitor_mode(tmp_path):
    pool = folioswap.Pool("32M", faults="monitor")
    array = filled(pool)
    array.tofile(tmp_path / "raw")
    with pool:
        back = np.fromfile(tmp_path / "raw", "i8")
    assert back in pool and is_whole(back)
    view = pool.buffer("8M")
    with open(tmp_path / "raw", "rb", buffering=0) as file:
        assert file.readinto(view) == 8 * MIB
    assert is_whole(np.frombuffer(view, "i8"))
    assert io.BytesIO(view).getbuffer().nbytes == 8 * MIB


def test_fromfile_is_whole_in_both_modes(pool, tmp_path):
    array = filled(pool)
    pool.to_file(array, tmp_path / "raw")
    with pool:
        back = np.fromfile(tmp_path / "raw", "i8")
        with open(tmp_path / "raw", "rb") as file:
            file.seek(80)
            part = np.fromfile(file, "i8", 100_000, offset=8)
            rest = np.fromfile(file, dtype="i8", count=5)
    assert back in pool and is_whole(back)
    assert (part == np.arange(11, 100_011)).all() and (rest == np.arange(100_011, 100_016)).all()
    (tmp_path / "text").write_text("1 2 3")
    with pool:
        assert (np.fromfile(tmp_path / "text", sep=" ") == [1, 2, 3]).all()
    with pool:
        assert np.fromfile("/dev/zero", "i8", MIB).tobytes() == bytes(8 * MIB)
        assert np.fromfile(tmp_path / "text", "u1", offset=2).tobytes() == b"2 3"
        with open(tmp_path / "text", "rb") as file:
            file.seek(4)
            assert np.fromfile(file, "u1", offset=-2).tobytes() == b"2 3"
        for file, options in (("text", {"offset": -1}), ("text", {"dtype": "V0"}), (".", {}), ("none", {})):
            with pytest.raises((OSError, ValueError)):
                np.fromfile(tmp_path / file, **options)
    np.save(tmp_path / "a.npy", np.array(array[: 4 * MIB]))
    with pool:
        assert is_whole(np.load(tmp_path / "a.npy"))


def in_ram(pool):
    """Bytes of a pool in RAM."""
    stats = pool.stats()
    return stats["mapped_bytes"] + stats["standby_bytes"]


def comes_true(is_true):
    """Whether something becomes true within some seconds."""
    deadline = time.monotonic() + 10
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def test_advice_does_what_it_says(pool):
    array = filled(pool, 96, "u1")
    before = pool.stats()["swapped_in_bytes"]
    pool.prefetch(array[: 8 * MIB])
    assert comes_true(lambda: pool.stats()["swapped_in_bytes"] - before >= 4 * MIB)
    array[: 16 * MIB] = 1
    mapped = pool.stats()["mapped_bytes"]
    pool.cold(array)
    assert comes_true(lambda: pool.stats()["mapped_bytes"] <= mapped - 8 * MIB)
    array[: 24 * MIB].sum()
    assert in_ram(pool) > 16 * MIB
    pool.resize("16M")
    assert in_ram(pool) <= 16 * MIB


def test_pipes_are_read_and_written(pool):
    array = filled(pool, 3)
    for wanted, work in (
        (array, lambda path: pool.from_file(path, "i8", array.shape)),
        (array[5:], lambda path: pool.from_file(path, "i8", array[5:].shape, 40)),
    ):
        reads, writes = os.pipe()
        writer = threading.Thread(target=lambda: pool.to_file(array, f"/dev/fd/{writes}"))
        writer.start()
        assert (work(f"/dev/fd/{reads}") == wanted).all()
        os.close(writes)
        assert os.read(reads, 1) == b""
        writer.join()
        with pytest.raises(ValueError, match="too short: 0 bytes"):
            pool.from_file(f"/dev/fd/{reads}", "i8", array.shape)
        with open(reads, "rb") as buffered, pytest.raises(ValueError, match="buffering=0"):
            pool.readinto(buffered, array)


def test_what_imports_fromfile_after_a_pool_has_the_pools(tmp_path):
    code = f"""
import folioswap
pool = folioswap.Pool("16M", swap="ram:64M", faults="direct")
from numpy import arange, fromfile
arange(1 << 20).tofile({str(tmp_path / "raw")!r})
with pool:
    array = fromfile({str(tmp_path / "raw")!r}, "i8")
assert array in pool and (array == arange(1 << 20)).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("swap", ["swap", None])
def test_a_relative_path_stays_where_it_was(tmp_path, swap):
    code = f"""
import os, folioswap
os.chdir("a")
pool = folioswap.Pool("16M", swap={swap!r})
os.chdir("/")
array = pool.zeros(8 << 20)
assert pool.fits(1, measure=False)
child = os.fork()
array += 1
if not child:
    print(pool.stats()["devices"][-1]["name"], array.sum() == array.size)
    os._exit(0)
os.waitpid(child, 0)
"""
    os.mkdir(tmp_path / "a")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
        env={**os.environ, "FOLIOSWAP_DIR": "."},
    )
    place = "/".join([str(tmp_path), "a", *filter(None, [swap])])
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{place} True\n")


def test_advice_and_size(pool):
    array = filled(pool)
    pool.cold(array)
    pool.prefetch(array[:1000])
    pool.prefetch(array[::-1][5:])
    for advice in ("normal", "willneed", "sequential", "random", "cold", "hugepage", "nohugepage"):
        pool.advise(array[100:300_000:3], advice)
        pool.advise(pool.zeros(4), advice)
    with pytest.raises(ValueError, match="no advice"):
        pool.advise(array, "hot")
    with pytest.raises(ValueError, match="not in this pool"):
        pool.advise(np.ones(MIB), "cold")
    buffer = pool.buffer("1M")
    pool.cold(buffer)
    assert buffer in pool and bytearray(MIB) not in pool and "array" not in pool
    for call in (pool.prefetch, pool.cold, lambda wrong: pool.to_file(wrong, "/dev/null"), lambda wrong: pool.advise(wrong, "random")):
        with pytest.raises(TypeError, match="an array is needed, not list"):
            call([1, 2])
    pool.resize("16M")
    assert pool.memory == 16 * MIB and is_whole(array)
    pool.resize(64 * MIB)
    assert is_whole(array)
    fit = pool.fits((1 << 20, 1 << 30), "f8")
    assert not fit and fit.bytes == 1 << 53 and "does not fit" in str(fit)
    assert folioswap.Pool("16M", swap=["zram:16M", "ram:16M"]).fits(MIB, "f4").read_rate == 0
    assert pool.fits(np.int64(3)).bytes == pool.fits([np.int8(3)]).bytes == 24 and pool.fits(()).bytes == 8
    assert "does not fit" in str(pool.fits((1 << 60, 1 << 60)))
    for shape, error in ((-1, ValueError), ((2, -1), ValueError), ("3", TypeError), (2.5, TypeError)):
        with pytest.raises(error):
            pool.fits(shape)


def test_what_fits_is_said_of_each_device(tmp_path, monkeypatch):
    swap = ["ram:16M,prio=1", f"{tmp_path}/a:1G,prio=2", f"{tmp_path}/b,prio=3"]
    pool = folioswap.Pool("16M", swap=swap)
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_blocks=9000, f_bfree=2000, f_bavail=1000, f_frsize=4096))
    fit = pool.fits(1)
    assert fit.swap_bytes == 16 * MIB + (1 << 30) + 4096_000 and fit.read_rate > 0


def test_errors():
    for options, error, words in (
        (dict(memory="lots"), ValueError, "is not a size"), (dict(memory="0%"), ValueError, "1% to 100%"),
        (dict(memory="16MB"), ValueError, "at least 16M"), (dict(memory="1M"), ValueError, "at least 16M"),
        (dict(memory=-1), ValueError, "not a size"), (dict(memory="16M", folio="3K"), ValueError, "no size of folios"),
        (dict(memory="16M", faults="never"), ValueError, "none of"),
        (dict(memory="16M", swap="/no/such/place/file"), OSError, "swap /no/such"),
        (dict(memory="16M", swap="zram:1G,algo=x"), ValueError, "no way to compress"),
        (dict(memory=1 << 64), ValueError, "not a size"), (dict(memory=1 << 63), ValueError, "at most 12T"),
        (dict(memory="16M", swap=""), ValueError, "is empty"), (dict(memory="16M", swap=[b""]), ValueError, "is empty"),
        (dict(memory=6e7), TypeError, "float"), (dict(memory=None), TypeError, "NoneType"),
        (dict(memory="16M", swap=b"/no/such/place/file"), OSError, "swap /no/such"),
    ):
        with pytest.raises(error, match=words):
            folioswap.Pool(**options)
    pool = folioswap.Pool("16M", swap="ram:16M")
    for swap, error in (("/no/such/place/file", errno.ENOENT), ("/tmp", errno.EISDIR), ("/etc/passwd", errno.ENOTBLK)):
        with pytest.raises(OSError, match=f"swap {swap}") as raised:
            folioswap.Pool("16M", swap=swap)
        assert raised.value.errno == error and "os error" not in str(raised.value)
    with pytest.raises(ValueError, match="not UTF-8"):
        folioswap.Pool("16M", swap=b"/var/tmp/\xff")
    with open("/dev/zero", "rb") as file, pytest.raises(TypeError, match="scalar"):
        pool.readinto(file, np.float64(0))
    pool.to_file(np.zeros(3, "V0"), os.devnull)
    for shape, value in ((2, [1, 2, 3]), (-1, 0)):
        with pytest.raises(ValueError):
            pool.full(shape, value)
    with pytest.raises(MemoryError):
        pool.empty(1 << 60, "u1")
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither copied nor sent to another process"):
            duplicate(pool)
    with pytest.raises(ValueError, match="at least 16M"):
        pool.resize(1)
    with pytest.raises(ValueError, match="at most 12T"):
        pool.resize("16T")
    assert pool.memory == 16 * MIB


def child_of(array, other, answer):
    """A child's work: sees the parent's content, writes its own."""
    right = is_whole(array) and is_whole(other)
    array[:] = 1
    answer.put(right and int(array.sum()) == array.size)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_forked_child_has_copies(pool):
    array, other = filled(pool), filled(folioswap.Pool("16M", swap="ram:64M"), 32)
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    children = [context.Process(target=child_of, args=(array, other, answer)) for _ in range(2)]
    for child in children:
        child.start()
    assert [answer.get(timeout=60) for _ in children] == [True, True]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert is_whole(array) and is_whole(other)


def child_of_spawn(values, answer):
    """A spawned child's work: a pool of its own, and values by value."""
    pool = folioswap.Pool("16M", swap="ram:64M")
    array = pool.array(values)
    answer.put(array in pool and is_whole(array))


def test_a_spawned_child_makes_its_own(pool):
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    child = context.Process(target=child_of_spawn, args=(filled(pool, 4), answer))
    child.start()
    assert answer.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0


class OtherThread:
    """A thread that counts its turns. It has one only where this thread waits without the GIL."""

    def __enter__(self):
        self.turns, self.stop, self.interval = 0, threading.Event(), sys.getswitchinterval()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        sys.setswitchinterval(1000)
        return self

    def run(self):
        while not self.stop.is_set():
            self.turns += 1
            time.sleep(0)

    def __exit__(self, *_):
        sys.setswitchinterval(self.interval)
        self.stop.set()
        self.thread.join()


WAITS = {
    "read": lambda arena, fd, start, len: arena.read(fd, 0, start, len),
    "write": lambda arena, fd, start, len: arena.write(fd, 0, start, len),
    "advise": lambda arena, _, start, len: arena.advise(start, len, "willneed"),
    "cold": lambda arena, _, start, len: arena.advise(start, len, "cold"),
    "evict": lambda arena, *_: arena.evict(),
    "stats": lambda arena, *_: arena.stats(),
    "resize": lambda arena, *_: (arena.resize(16 * MIB), arena.resize(32 * MIB)),
    "build": lambda *_: folioswap._native.Arena(16 * MIB, ["ram:16M"], "auto", "auto"),
}
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.skipif(not HAS_GIL, reason="there is no GIL")
@pytest.mark.parametrize("name", WAITS)
def test_other_threads_run_while_a_call_waits(pool, tmp_path, name):
    array = filled(pool, 48)
    start, work = array.ctypes.data, WAITS[name]
    pool.to_file(array, tmp_path / "raw")
    with open(tmp_path / "raw", "r+b") as file, OtherThread() as other:
        meanwhile, end = 0, time.monotonic() + 30  # a short call is over before a busy machine wakes the other thread
        while meanwhile == 0 and time.monotonic() < end:
            before = other.turns
            answer = work(pool._arena, file.fileno(), start, array.nbytes)
            meanwhile += other.turns - before
            del answer
    assert meanwhile > 0


@pytest.mark.skipif(not HAS_GIL, reason="there is no GIL")
def test_other_threads_run_while_a_large_array_is_freed(pool):
    with OtherThread() as other:
        meanwhile, end = 0, time.monotonic() + 30
        while meanwhile == 0 and time.monotonic() < end:
            array = filled(pool, 80)
            before = other.turns
            del array
            meanwhile += other.turns - before
    assert meanwhile > 0


def is_interrupted(work, after_s=0.3):
    """Whether Ctrl-C ends this long before its end."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        return time.monotonic() - begun < after_s + 5
    finally:
        timer.join()


def test_control_c_ends_a_long_read(pool, tmp_path):
    with open(tmp_path / "raw", "wb") as file:
        file.truncate(1 << 40)
    assert is_interrupted(lambda: pool.from_file(tmp_path / "raw", "u1", 1 << 38))


def test_control_c_ends_a_long_write(pool):
    column = np.broadcast_to(pool.zeros(1 << 20, "u1"), (1 << 20, 1 << 20))
    assert is_interrupted(lambda: pool.to_file(column, "/dev/null"))
    whole = pool.zeros(1 << 40, "u1")
    assert is_interrupted(lambda: pool.to_file(whole, "/dev/null"))


def test_control_c_ends_a_long_copy(pool):
    for shape in (1 << 33, (1, 2, 1 << 32), (1 << 26, 128)):
        values = np.broadcast_to(np.uint8(0), shape)
        for order in "CF":
            assert is_interrupted(lambda: pool.full(shape, values, "u1", order))
    other = folioswap.Pool("16M").zeros(1 << 33, "u1")
    assert is_interrupted(lambda: pool.array(other))


def test_large_arrays_are_filled_as_numpy_fills_them(pool):
    size = 80 * MIB
    with pytest.raises(OverflowError):
        pool.full(size, 300, "u1")
    assert pool.full((2, size // 2), [[[7], [8]]], "u1")[:, ::MIB].tolist() == [[7] * 40, [8] * 40]
    assert pool.full((), b"a", f"S{size}").item() == b"a"
    picture = np.arange(size // 4, dtype="u4").reshape(4, 1024, -1, 5).transpose(0, 3, 1, 2)
    copy = pool.array(picture)
    assert copy in pool and (copy == picture).all() and copy.strides == np.array(picture).strides


def test_each_part_of_a_copy_is_one_range_of_addresses(monkeypatch):
    copyto, lengths = np.copyto, []

    def noted(to, values, **options):
        lengths.append(_types.extent(to)[1])
        copyto(to, values, **options)

    monkeypatch.setattr(_transfer, "PART_BYTES", 1 << 16)
    monkeypatch.setattr(np, "copyto", noted)
    for axes in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2)):
        values = np.arange(4 * 64 * 64 * 5).reshape(4, 64, 64, 5).transpose(axes)
        array = np.empty_like(values)
        lengths.clear()
        _transfer.fill(array, values)
        assert (array == values).all() and sum(lengths) == array.nbytes and max(lengths) <= 1 << 16


def test_items_larger_than_a_part_are_filled(monkeypatch):
    monkeypatch.setattr(_transfer, "PART_BYTES", 1 << 16)
    for shape in (3, (2, 3), (3, 2), 1, (1, 1)):
        for dtype, value in (("S70000", b"x"), ("V70000", b"y" * 70_000)):
            array = np.empty(shape, dtype)
            _transfer.fill(array, value)
            assert (array == np.full(shape, value, dtype)).all()


def test_control_c_ends_a_wait_for_less_ram():
    pool = folioswap.Pool("64M", swap="ram:2M")
    array = pool.empty(48 * MIB, "u1")
    array[:] = np.random.default_rng(7).integers(0, 255, array.size, "u1")
    assert is_interrupted(lambda: pool.resize("16M"), 0.2)  # nothing has room on the device: it would wait for 10 s
    pool.resize("64M")


def test_a_signal_leaves_numpy_its_own_allocator(pool):
    def handle(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for number in range(300):
            with pytest.raises(KeyboardInterrupt):
                while True:  # an exception in a finalizer is dropped: the signal comes again
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-7 * number)
                    for _ in range(100_000):
                        pool.empty(4)
            assert np.ones(20_000) not in pool, number
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not HAS_GIL, reason="there is no GIL")
@pytest.mark.parametrize("last", ["pool", "array"])
def test_other_threads_run_while_a_pool_ends(last):
    with OtherThread() as other:
        meanwhile, end = 0, time.monotonic() + 30
        while meanwhile == 0 and time.monotonic() < end:
            alive = {"pool": folioswap.Pool("16M", swap="ram:64M")}
            alive["array"] = filled(alive["pool"], 8)
            alive = {last: alive[last]} if last == "array" else {last: alive["pool"]}
            before = other.turns
            del alive[last]
            meanwhile += other.turns - before
    assert meanwhile > 0


def test_the_command_is_there():
    help_text = subprocess.run(
        [sys.executable, "-m", "folioswap", "--help"], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout
    assert "run" in help_text
    ran = subprocess.run(
        [sys.executable, "-m", "folioswap", "run", "--memory", "64M", "--", "echo", "paged"],
        stdout=subprocess.PIPE, text=True, check=True, timeout=60,
    ).stdout
    assert ran == "paged\n"


def test_everything_public_has_a_docstring_and_an_example():
    for name in folioswap.__all__:
        thing = getattr(folioswap, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            assert ">>>" in inspect.getdoc(thing), name
            fields = getattr(thing, "_fields", ())
            members = [member for member in vars(thing) if not member.startswith("_") and member not in fields]
            assert not [member for member in members if ">>>" not in (inspect.getdoc(getattr(thing, member)) or "")]
