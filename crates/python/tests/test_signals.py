"""Signals: handlers of SIGBUS beside the pool's in direct mode, and Ctrl-C in long calls."""

import os
import signal
import subprocess
import sys

import folioswap
import numpy as np
import pytest

MIB = 1 << 20

BEGIN = """
import faulthandler, os, signal, sys, folioswap, numpy as np
def use():
    pool = folioswap.Pool("16M", swap="ram:256M", faults="direct")
    a = pool.zeros(8 << 20)
    a += 1
    return a
a = use()
def is_whole():
    return a.sum() == a.size
"""


def run(code, *options):
    """Runs a program. Returns its status and what it says."""
    command = [sys.executable, *options, "-c", BEGIN + code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("change", [
    "faulthandler.enable()", "faulthandler.enable(sys.stdout, all_threads=False)", "faulthandler.enable(); faulthandler.disable()",
    "faulthandler.disable()", "faulthandler.enable(); faulthandler.enable(file=1)", "signal.signal(signal.SIGBUS, print)",
    "signal.signal(signal.SIGBUS, signal.SIG_IGN)", "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
    "faulthandler.enable(); signal.signal(signal.SIGBUS, print); faulthandler.disable()",
])
def test_a_handler_that_comes_later_is_behind_the_pools(change):
    for options in ((), ("-X", "faulthandler")):
        assert run(f"{change}; print(is_whole())", *options) == (0, "True\n")


def test_a_fault_that_is_not_the_pools_is_reported():
    status, said = run("faulthandler.enable(); print(is_whole(), flush=True); os.kill(os.getpid(), signal.SIGBUS)")
    assert status == -signal.SIGBUS and said.startswith("True\nFatal Python error: Bus error") and said.count("Fatal") == 1
    status, said = run("faulthandler.enable(); faulthandler.disable(); os.kill(os.getpid(), signal.SIGBUS)")
    assert (status, said) == (-signal.SIGBUS, "")


def test_a_handler_of_python_is_called():
    code = "signal.signal(signal.SIGBUS, lambda *_: print('bus')); os.kill(os.getpid(), signal.SIGBUS); print(is_whole())"
    assert run(code) == (0, "bus\nTrue\n")


def test_a_wrong_argument_changes_nothing():
    code = """
for wrong in (lambda: faulthandler.enable("no file"), lambda: signal.signal(signal.SIGBUS, 3.5)):
    try:
        wrong()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        print(faulthandler.is_enabled(), is_whole())
"""
    assert run(code) == (0, "False True\n" * 2)


def test_control_c_ends_what_lets_an_array_leave():
    pool = folioswap.Pool("2G", swap="ram:2G")
    array = pool.zeros(1024 * MIB, "u1")
    array += 1

    def handle(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            pool.cold(array)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pool.stats()["mapped_bytes"] > array.nbytes // 8
    assert int(array[0]) == int(array[-1]) == 1 and np.count_nonzero(array[:: 1 << 12]) == array.size >> 12


def test_a_pool_is_left_as_it_was_entered():
    one, two = (folioswap.Pool("16M", swap="ram:16M") for _ in range(2))

    def inside():
        with one:
            yield

    steps = inside()
    next(steps)
    with two:
        steps.close()
        assert np.ones(MIB) in two
    after = np.ones(MIB)
    assert after not in one and after not in two
    one.__enter__()
    with two:
        with one:
            steps = inside()
            next(steps)
            two.__exit__()
            assert np.ones(MIB) in one
            steps.close()
            assert np.ones(MIB) in one
            two.__enter__()
        assert np.ones(MIB) in two
    assert np.ones(MIB) in one
    one.__exit__()
    assert np.ones(MIB) not in one
    with pytest.raises(RuntimeError, match="not entered"):
        one.__exit__()
