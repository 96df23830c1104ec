"""Creates the virtual environment with numpy and others for the demo and the tests: .venv in the repository."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
LIMIT_S = 150
# Disables numpy's AVX-512 sort. On AMD Zen 4 it takes 15 s for 1 GiB of float64, the AVX2 sort takes 2 s.
PLAIN_SORT = {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"}
TRIAL = """
import time
import numpy
numbers = numpy.random.default_rng(1).random(1 << 22)
start = time.monotonic()
numpy.sort(numbers)
print(time.monotonic() - start)
"""


class Missing(Exception):
    """What is missing, and how to get it."""


def bounded(command, remedy):
    """Runs one command with a time limit. Raises Missing with its last line and the remedy."""
    try:
        result = subprocess.run(
            ["timeout", "-k", "5", str(LIMIT_S), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S + 10,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{error}. {remedy}") from error
    if result.returncode != 0:
        last = (result.stdout.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        raise Missing(f"{last}. {remedy}")


def python_with(module):
    """The path of a Python that has a module: the system's, or that of the virtual environment, where pip installs it."""
    for python in (sys.executable, os.path.join(VENV, "bin", "python")):
        if has(python, module):
            return python
    return venv_with(module)


def numpy_python():
    """The path of a Python that has numpy. The first call creates it."""
    python = os.path.join(VENV, "bin", "python")
    return python if has(python, "numpy") else venv_with("numpy")


def has(python, module):
    """Whether a Python is there and has a module."""
    command = ["timeout", "60", python, "-c", f"import {module}"]
    return os.path.exists(python) and subprocess.run(command, capture_output=True).returncode == 0


def venv_with(module):
    """Installs a module in the virtual environment, which the first call creates. Returns the path of its Python."""
    python = os.path.join(VENV, "bin", "python")
    if not has(python, "pip"):
        bounded([sys.executable, "-m", "venv", "--clear", VENV], "Get venv: apt-get install python3-venv")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    bounded([*pip, module], f"{module} comes by pip: is there a network?")
    bounded([python, "-c", f"import {module}"], f"{module} does not load")
    return python


def faster_sort(python):
    """The environment settings with which numpy sorts faster here, found by trying both: PLAIN_SORT or nothing."""

    def trial_s(settings):
        command = ["timeout", "60", python, "-c", TRIAL]
        runs = [subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}) for _ in range(3)]
        return min((float(run.stdout) for run in runs if run.returncode == 0), default=float("inf"))

    return PLAIN_SORT if 1.5 * trial_s(PLAIN_SORT) < trial_s({}) else {}
