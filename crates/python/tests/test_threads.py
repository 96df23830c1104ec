"""Threads that use one pool at once. With free-threaded CPython they run in parallel; with the GIL they take turns."""

import collections
import faulthandler
import gc
import os
import subprocess
import sys
import sysconfig
import threading
import time

import folioswap
import numpy as np
import pytest
from conftest import MODES, threads

MIB = 1 << 20
NR_THREADS = 8
HAS_GIL = not sysconfig.get_config_var("Py_GIL_DISABLED")
#: Seeds the threads: FOLIOSWAP_SEED repeats a run.
SEED = int(os.environ.get("FOLIOSWAP_SEED", time.time_ns() % (1 << 32)))


@pytest.fixture(autouse=True)
def no_hang():
    """Ends a run that hangs, with the stacks of all threads. Threads take turns often meanwhile."""
    assert HAS_GIL or not sys._is_gil_enabled(), "a module that was imported here wants the GIL"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    sys.setswitchinterval(interval)


def at_once(work, nr_threads=NR_THREADS):
    """Runs `work(number)` in threads that begin together. The first error of any of them is raised."""
    barrier, errors = threading.Barrier(nr_threads), []

    def run(number):
        try:
            barrier.wait()
            work(number)
        except BaseException as error:  # noqa: B036
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(nr_threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        print(f"FOLIOSWAP_SEED={SEED}")
        raise errors[0]


class Shared:
    """What the threads share: arrays that one has made and another checks and frees, and a pool that is replaced."""

    def __init__(self, faults):
        self.faults = faults
        self.pool = folioswap.Pool("32M", swap="ram:512M", faults=faults)
        self.shelf = collections.deque()
        self.numbers = self.pool.empty(4 * MIB, "i8")
        self.numbers[:] = np.arange(self.numbers.size)
        self.short_lived = [self.new_pool()]

    def new_pool(self):
        """A small pool."""
        return folioswap.Pool("16M", swap="ram:64M", faults=self.faults)

    def give(self, rng):
        """Makes an array, full of one value, for any thread."""
        value, size = int(rng.integers(1, 1 << 60)), int(rng.choice([16, 9000, 30_000, 200_000, 400_000]))
        make = rng.integers(4)
        if make == 0:
            array = self.pool.full(size, value, "i8")
        elif make == 1:
            array = self.pool.zeros(size, "i8")
            assert not array.any()
            array += value
        elif make == 2:
            array = self.pool.array(np.full(size, value, "i8"))
        else:
            array = self.pool.empty(10, "i8")
            array[:] = value
            array.resize(size, refcheck=False)  # the new items are zero
            array[10:] += value
        assert (array in self.pool) == (array.nbytes >= 64 << 10)
        self.shelf.append((value, array))

    def take(self, rng):
        """Checks an array that some thread has made. Frees it, as the last one that has it."""
        try:
            value, array = self.shelf.popleft() if rng.integers(2) else self.shelf.pop()
        except IndexError:
            return
        assert (array == value).all(), (value, array[array != value][:8])

    def nest(self, rng):
        """NumPy allocates from the pool that this thread has entered last, and from no other thread's."""
        size, other = int(rng.integers(20_000, 300_000)), self.short_lived[0]
        with self.pool:
            ones = np.ones(size)
            with other:
                twos = ones * 2
                with self.pool:
                    threes = twos + ones
            fours = ones + threes
        after = np.ones(size)
        assert ones in self.pool and twos in other and threes in self.pool and fours in self.pool
        assert after not in self.pool and after not in other
        assert (twos == 2).all() and (threes == 3).all() and (fours == 4).all()
        self.shelf.append((2, twos))  # outlives its pool, perhaps

    def ask(self, rng):
        """The figures of one moment, and changes of the budget."""
        if rng.integers(4) == 0:
            self.pool.resize(int(rng.integers(16, 48)) * MIB)
        stats = self.pool.stats()
        assert 16 * MIB <= stats["memory_bytes"] < 48 * MIB and len(stats["devices"]) == 1
        assert "budget" in repr(stats) and "<div" in self.pool._repr_html_()

    def advise(self, rng):
        """Advice on a part of the numbers, which changes none of them."""
        start = int(rng.integers(self.numbers.size - 200_000))
        part = self.numbers[start : start + 200_000]
        self.pool.prefetch(part)
        self.pool.advise(part, str(rng.choice(["random", "sequential", "hugepage", "nohugepage", "normal"])))
        if rng.integers(2):
            self.pool.cold(part)
        assert (part == np.arange(start, start + part.size)).all()
        assert part in self.pool and part not in self.short_lived[0]

    def replace(self, rng):
        """The pool that others use just now loses its last name. Their arrays keep it."""
        if rng.integers(3):
            pool = self.short_lived[0]
            array = pool.full(100_000, 7, "i8")
            assert array in pool
            del pool
            self.shelf.append((7, array))
        else:
            self.short_lived[0] = self.new_pool()


@pytest.mark.parametrize("faults", MODES)
def test_threads_share_a_pool(faults):
    before = threads()
    shared = Shared(faults)
    steps = [shared.give] * 3 + [shared.take] * 3 + [shared.nest] * 2 + [shared.ask, shared.advise, shared.replace]

    def work(number):
        rng = np.random.default_rng([SEED, number])
        for _ in range(60):
            steps[rng.integers(len(steps))](rng)

    at_once(work)
    assert (shared.numbers == np.arange(shared.numbers.size)).all()
    rng = np.random.default_rng(SEED)
    while shared.shelf:
        shared.take(rng)
    del shared, steps, work
    deadline = time.monotonic() + 20
    while threads() > before + 1 and time.monotonic() < deadline:  # the keeper of descriptors stays
        gc.collect()
    assert threads() <= before + 1


@pytest.mark.parametrize("faults", MODES)
def test_threads_move_files(faults, tmp_path):
    pool = folioswap.Pool("16M", swap="ram:512M", faults=faults)
    size = 3 * MIB
    np.arange(size).tofile(tmp_path / "in")

    def work(number):
        for turn in range(3):
            array = pool.from_file(tmp_path / "in", "i8")
            assert (array == np.arange(size)).all()
            array += number
            pool.to_file(array, tmp_path / f"{number}")
            array[:] = 0
            with open(tmp_path / f"{number}", "rb", buffering=0) as file:
                assert pool.readinto(file, array) == array.nbytes
            assert int(array[0]) == number and int(array[-1]) == size - 1 + number, turn

    at_once(work)


@pytest.mark.parametrize("faults", MODES)
def test_pools_are_made_and_ended_in_threads(faults):
    def work(number):
        for _ in range(4):
            pool = folioswap.Pool("16M", swap="ram:32M", faults=faults)
            array = pool.full(300_000, number)
            del pool
            assert (array == number).all()

    at_once(work)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
@pytest.mark.parametrize("faults", MODES)
def test_a_child_is_forked_while_threads_allocate(faults):
    pool = folioswap.Pool("32M", swap="ram:512M", faults=faults)
    numbers = pool.array(np.arange(6 * MIB))
    stop = threading.Event()

    def allocate():
        number = 0
        while not stop.is_set():
            number += 1
            assert (pool.full(20_000 + number % 7 * 40_000, number, "i8") == number).all()

    def fork():
        for _ in range(5):
            child = os.fork()
            if child == 0:
                right = False
                try:
                    own = pool.full(100_000, 5, "i8")
                    right = bool((numbers == np.arange(numbers.size)).all() and (own == 5).all() and own in pool)
                finally:
                    os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0

    def work(number):
        try:
            (allocate if number else fork)()
        finally:
            stop.set()

    at_once(work, 4)
    assert (numbers == np.arange(numbers.size)).all()


@pytest.mark.skipif(HAS_GIL, reason="this CPython has the GIL")
def test_the_import_leaves_the_gil_off():
    code = "import sys, numpy; assert not sys._is_gil_enabled(); import folioswap; print(sys._is_gil_enabled())"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
