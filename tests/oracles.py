#!/usr/bin/env python3
"""Other people's checkers of memory under `folioswap run`: stress-ng, stressapptest, memtester, the own
tests of CPython, numpy and pandas, other allocators.

Usage: oracles.py FOLIOSWAP [--long] [NAME...]. Each runs without folioswap first, and is skipped where it cannot. Then it
runs in both fault modes: the short form in a budget of its own or in one of the BUDGETS for each mode, in turn, the long
form in all of them. The exit status must be 0, no output may hold the word "panicked", and in the short form all but
LITTLE must swap out something. Three runs at a time at most.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "programs"), os.path.join(HERE, "cases")]
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "demo"))
from compare import MIB, Skip, swapped_out_bytes  # noqa: E402
from numpy_venv import Missing, venv_with  # noqa: E402
from run import AT_A_TIME, install, run  # noqa: E402
from steps import become_reaper, kill_remains  # noqa: E402
from suite import need  # noqa: E402

BUDGETS = ("24M", "48M", "96M")
MODES = ("direct", "monitor")
TAIL_LINES = 8
# A run under folioswap may take this many times as long as one without it, and this many seconds more.
TIMES, MORE_S = 20, 60
ALONE_LIMIT_S = 60
# stress-ng's statuses for what it cannot run here: no resources, not implemented, no capability.
CANNOT = {3: "no resources", 4: "not implemented"}

# Options of stress-ng's, after the budget of the short form where not any will do: each swaps, but those of LITTLE.
STRESSORS = """
vm 1 --vm-bytes 96M --vm-method all --vm-keep --vm-ops 64
24M: mremap 1 --mremap-bytes 32M --mremap-ops 6
24M: pagemove 1 --pagemove-bytes 32M --pagemove-ops 2
remap 1 --remap-ops 4
24M: mmap 1 --mmap-bytes 64M --mmap-ops 1
mmapaddr 1 --mmapaddr-ops 1000
mmaphuge 1 --mmaphuge-ops 8
24M: mmapmany 1 --mmapmany-ops 6000
munmap 1 --munmap-ops 2
mprotect 1 --mprotect-ops 2000
madvise 1 --madvise-ops 4
mlock 1 --mlock-ops 1000
mlockmany 1 --mlockmany-ops 20
mincore 1 --mincore-ops 500
malloc 1 --malloc-bytes 64M --malloc-ops 4000
24M: bigheap 1 --bigheap-ops 3000
24M: vm-rw 1 --vm-rw-bytes 32M --vm-rw-ops 2
24M: vm-splice 1 --vm-splice-bytes 32M --vm-splice-ops 100
16M: vm-addr 1 --vm-addr-ops 60
vm-segv 1 --vm-segv-ops 20
pageswap 1 --pageswap-ops 4
fork 1 --fork-vm --fork-ops 20
vfork 1 --vfork-ops 50
24M: clone 1 --clone-max 16 --clone-ops 20
daemon 1 --daemon-ops 20
io-uring 1 --io-uring-ops 500
aio 1 --aio-ops 200
sigsegv 1 --sigsegv-ops 500
sigbus 1 --sigbus-ops 500
tlb-shootdown 1 --tlb-shootdown-ops 5
numa 1 --numa-ops 1
24M: qsort 1 --qsort-size 4194304 --qsort-ops 1
48M: mergesort 1 --mergesort-size 4194304 --mergesort-ops 1
36M: radixsort 1 --radixsort-size 2097152 --radixsort-ops 1
24M: tree 1 --tree-size 400000 --tree-method rb --tree-ops 1
stream 1 --stream-l3-size 8M --stream-ops 1
24M: matrix 1 --matrix-size 2048 --matrix-ops 2
48M: memthrash 1 --memthrash-method all --memthrash-ops 8
"""

# Stressors that swap out nothing, and why.
LITTLE = {
    **dict.fromkeys(
        ("remap", "mmapaddr", "munmap", "mprotect", "mlock", "mlockmany", "mincore", "pageswap", "numa", "tlb-shootdown"),
        "maps less than the smallest budget, and has no option for more",
    ),
    **dict.fromkeys(("aio", "io-uring"), "has small buffers, and gives them back at once"),
    **dict.fromkeys(("vm-segv", "vfork", "daemon", "sigsegv", "sigbus"), "is about processes and signals, not memory"),
}

# Programs that are no stressors: name, what must be there, budget of the short form, command.
OTHERS = (
    ("stressapptest", "stressapptest", None, "stressapptest -M 96 -m 1 -s 5 -W"),
    # Without the walking bits, which take minutes, and without the right to lock what it tests.
    ("memtester", "memtester", "24M", "setpriv --bounding-set -ipc_lock prlimit --memlock=0:0 env MEMTESTER_TEST_MASK=0x7f memtester 32M 1"),
)
LIBRARIES = (("jemalloc", "libjemalloc2", "libjemalloc.so.2"), ("mimalloc", "libmimalloc2.0", "libmimalloc.so.2"),
             ("tcmalloc", "libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"))
PYTHON_TESTS = (("numpy", "linalg.tests.test_linalg", "lib.tests.test_arraysetops"),
                ("pandas", "tests.reshape.concat.test_concat"))
ALLOCATING = """
import random
random.seed(7)
kept = [bytearray() for _ in range(3000)]
for step in range(9000):
    place = random.randrange(3000)
    assert kept[place] == bytes([place % 251]) * len(kept[place]), (step, place)
    kept[place] = bytearray(bytes([place % 251])) * random.choice((10, 3000, 60000, 90000))
for place, held in enumerate(kept):
    assert held == bytes([place % 251]) * len(held), place
"""


def python_tests(python):
    """Arguments of CPython's own tests of large objects and mappings."""
    tests = ("test_mmap", "test_array", "test_memoryview", "test_bytes", "test_bigmem")
    present = [name for name in tests if subprocess.run(
        [python, "-c", f"import test.{name}"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode == 0]
    if not present:
        raise Skip("this Python has no tests of its own. Get them: apt-get install libpython3-testsuite")
    return [python, "-m", "test", *present]


def library_tests(module, *tests):
    """A chosen part of a Python library's own tests, in the virtual environment of the repository."""
    try:
        for needed in ("pytest", "hypothesis", module):
            python = venv_with(needed)
    except Missing as missing:
        raise Skip(f"no {module} with its tests: {missing}") from missing
    return [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--pyargs", *(f"{module}.{test}" for test in tests)]


class Oracle:
    """One command, with what it needs."""

    def __init__(self, name, make, env=None, budget=None):
        self.name, self.make, self.env, self.budget = name, make, env or {}, budget
        self.swaps = name.split()[-1] not in LITTLE


def stressor(line):
    """An oracle of one line of STRESSORS."""
    budget, _, line = line.rpartition(": ")

    def make():
        name = line.split()[0]
        program = need("stress-ng", "stress-ng")
        known = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if not re.search(rf"--{name} N", known.stdout):
            raise Skip("this stress-ng has no such stressor")
        # This one refuses to run as root.
        user = ["setpriv", "--reuid", "65534", "--clear-groups"] if name == "mlockmany" and os.geteuid() == 0 else []
        return [*user, program, "--temp-path", "/var/tmp", "--seed", "7", "--verify", "--timeout", "600", *shlex.split("--" + line)]
    return Oracle("stress-ng " + line.split()[0], make, budget=budget)


def allocator(name, package, library):
    """A program of ours on another allocator, which is preloaded beside the library of `run`."""
    def make():
        install(package)
        env = need("env", "coreutils")
        # Behind whatever is preloaded already: the shell expands it inside of folioswap.
        shell = f'exec {env} LD_PRELOAD="$LD_PRELOAD {library}" {sys.executable} -c "$1"'
        return [need("sh", "dash"), "-c", shell, "-", ALLOCATING]
    return Oracle(name, make, {"PYTHONMALLOC": "malloc"})


def every_oracle():
    """All of them, in the order in which they run."""
    for line in STRESSORS.strip().splitlines():
        yield stressor(line)
    for name, program, budget, command in OTHERS:
        def make(program=program, command=command):
            need(program, program)
            return shlex.split(command)
        yield Oracle(name, make, budget=budget)
    yield Oracle("cpython", lambda: python_tests(sys.executable), budget="16M")
    for module, *tests in PYTHON_TESTS:
        yield Oracle(module, lambda module=module, tests=tests: library_tests(module, *tests), budget="48M")
    for name, package, library in LIBRARIES:
        yield allocator(name, package, library)


def outcome_of(command, limit_s, env):
    """Runs one command in a folder of its own: (status or None, standard output and error, seconds)."""
    with tempfile.TemporaryDirectory(prefix="folioswap-oracle-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        status, texts, took_s = run(["env", *(f"{key}={value}" for key, value in env.items()), *command], limit_s, folder)
    return status, "".join(texts), took_s


def attempt(oracle, command, prefix, limit_s, label, must_swap):
    """One run under folioswap, printed at once. Returns whether it was right, and what it swapped out."""
    status, text, took_s = outcome_of([*prefix, *command], limit_s, oracle.env)
    swapped = swapped_out_bytes(text) or 0
    wrong = None
    if status is None:
        wrong = f"killed after {limit_s:.0f} s"
    elif "panicked" in text:
        wrong = "a panic of ours"
    elif status != 0:
        wrong = f"exit status {status}"
    elif swapped == 0 and must_swap:
        wrong = "nothing was swapped out, so this showed nothing"
    if wrong is None:
        print(f"PASS {label} ({took_s:.1f} s, {swapped // MIB} MiB swapped out)", flush=True)
        return True, swapped
    tail = [f"  {line[:300]}" for line in text.splitlines() if not line.startswith('{"')][-TAIL_LINES:]
    shown = shlex.join([*prefix, *command])
    print("\n".join([f"FAIL {label}: {wrong} ({took_s:.1f} s)", f"  {shown[:600]}", *tail]), flush=True)
    return False, swapped


def try_oracle(index, oracle, folioswap, is_long):
    """Runs one oracle without folioswap and then in every chosen way. Returns whether all were right, and the bytes
    that were swapped out."""
    try:
        command = oracle.make()
        status, text, took_s = outcome_of(command, ALONE_LIMIT_S, oracle.env)
        if status != 0:
            last = (text.strip().splitlines() or ["?"])[-1]
            raise Skip(f"does not run here without folioswap: {CANNOT.get(status, status)}: {last[:200]}")
    except (Skip, subprocess.TimeoutExpired) as reason:
        print(f"SKIP {oracle.name}: {reason}", flush=True)
        return True, 0
    good, swapped = True, 0
    for shift, mode in enumerate(MODES):
        for budget in BUDGETS if is_long else [oracle.budget or BUDGETS[(index + shift) % len(BUDGETS)]]:
            # What fits is not paged, so in the short form all is managed from the start.
            eager = ["--eager"] if not is_long or budget != BUDGETS[0] else []
            prefix = [folioswap, "run", "--memory", budget, "--faults", mode, *eager, "--stats=json", "--"]
            limit_s = took_s * TIMES + MORE_S
            label, must_swap = f"{oracle.name} {mode} {budget}", oracle.swaps and not is_long
            is_right, out_bytes = attempt(oracle, command, prefix, limit_s, label, must_swap)
            good, swapped = good and is_right, swapped + out_bytes
    return good, swapped


def main():
    """Runs the named oracles, or all. Exit status 1 if one failed."""
    words = [word for word in sys.argv[2:] if word != "--long"]
    folioswap, is_long = os.path.abspath(sys.argv[1]), "--long" in sys.argv
    chosen = [
        (index, oracle) for index, oracle in enumerate(every_oracle())
        if not words or oracle.name in words or oracle.name.split()[-1] in words
    ]
    become_reaper()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = [pool.submit(try_oracle, index, oracle, folioswap, is_long) for index, oracle in chosen]
        outcomes = [run.result() for run in runs]
    good = all(is_right for is_right, _ in outcomes)
    print(f"{sum(swapped for _, swapped in outcomes) // MIB} MiB swapped out in all", flush=True)
    kill_remains()
    return 0 if good and chosen else 1


if __name__ == "__main__":
    sys.exit(main())
