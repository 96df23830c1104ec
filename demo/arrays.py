#!/usr/bin/env python3
"""Programs on NumPy arrays of 4 times the budget: a pool against the kernel, which has the same RAM and disk.

Usage: arrays.py FOLIOSWAP [--python PYTHON] [--memory SIZE] [--repeats N] [--only WORK...] [--dir DIR] [--json FILE]

PYTHON has the package and what is measured (numpy, pandas, scikit-learn, faiss-cpu, dask). The kernel's side runs in a
memory cgroup of the budget and what the interpreter with these libraries takes, so it needs root. Both sides take turns
(A B A B) and must have the same result; ratios are medians of matching turns, above 1 if the pool is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from numpy_venv import faster_sort  # noqa: E402

LIMIT_S = 420
# What each program is compared with, and the ratio that it is asked to reach.
AGAINST = {
    "sort": ("memmap", 3.0), "fit": ("memory", 2.0), "groupby": ("memory", 2.0), "vectors": ("memory", 2.0),
    "expression": ("dask", 1.0),
}
# The sum of a pool's array, in turn with raw reads of 2 MiB from the same disk, into one huge page
# that stays in the cache and into as much memory as the budget: bytes a second.
SUM = """
import json, mmap, os, sys, time
import folioswap, numpy
budget, directory = int(sys.argv[1]), sys.argv[2]
size = 4 * budget
array = folioswap.Pool(budget, swap=os.path.join(directory, "swap")).empty(size // 8)
for part in numpy.array_split(array, 64):
    part[:] = numpy.random.default_rng(1).random(part.size)
memory = mmap.mmap(-1, budget + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
memory.write(os.urandom(1 << 20) * (len(memory) >> 20))
start = -numpy.frombuffer(memory, "u1").ctypes.data % (2 << 20)
pieces = [memoryview(memory)[at : at + (2 << 20)] for at in range(start, start + budget, 2 << 20)]  # huge pages
file = os.open(os.path.join(directory, "raw"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
os.posix_fallocate(file, 0, size)
for at in range(0, size, 2 << 20):
    os.pwritev(file, pieces[:1], at)
rates = {"sum": [], "raw": [], "raw into RAM": []}
for _ in range(int(sys.argv[3])):
    for name, used in (("raw", pieces[:1]), ("raw into RAM", pieces)):
        begun = time.monotonic()
        for number, at in enumerate(range(0, size, 2 << 20)):
            os.preadv(file, [used[number % len(used)]], at)
        rates[name].append(size / (time.monotonic() - begun))
    begun = time.monotonic()
    array.sum()
    rates["sum"].append(size / (time.monotonic() - begun))
print(json.dumps(rates))
"""
# Microseconds of a small array by the pool and by NumPy.
SMALL = """
import json, timeit
import folioswap, numpy
pool = folioswap.Pool("64M")
calls = {"pool": lambda: pool.empty((16,)), "numpy": lambda: numpy.empty((16,))}
print(json.dumps({name: min(timeit.repeat(call, number=20000, repeat=7)) / 20000 * 1e6 for name, call in calls.items()}))
"""


def ask(command, limit_s=LIMIT_S):
    """Runs a command. Returns what it prints as JSON in its last line, or None, and says why."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"  ended: over its limit of {limit_s} s")
        return None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        print(f"  failed: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return None
    return json.loads(lines[-1])


def turn(chosen, work, system, base_bytes, budget):
    """One turn of one side, in a scratch folder of its own. Returns (seconds, digest) or None."""
    with tempfile.TemporaryDirectory(prefix="folioswap-arrays-", dir=chosen.dir) as directory:
        command = [chosen.python, os.path.join(HERE, "arrays_work.py"), work, system, str(budget), directory]
        if system != "pool":
            kernel = [chosen.folioswap, "__kernel", "--memory", str(budget + base_bytes), "--swap-size", str(12 * budget), "--"]
            command = [*kernel, *command]
        answer = ask(command)
    if answer:
        print(f"  {work:10} {system:7} {answer['seconds']:7.2f} s", flush=True)
    return answer and (answer["seconds"], answer["digest"])


def compare(chosen, work, budget):
    """Turns of both sides of one program. Returns the measures."""
    base_bytes = ask([chosen.python, os.path.join(HERE, "arrays_work.py"), work, "imports", "0", "-"])["bytes"]
    print(f"{work}: the kernel has {base_bytes >> 20} MiB more than {chosen.memory}, for the interpreter")
    other, wanted = AGAINST[work]
    ratios, times = [], {"pool": [], other: []}
    for _ in range(chosen.repeats):
        ours, theirs = (turn(chosen, work, system, base_bytes, budget) for system in ("pool", other))
        if ours and theirs and ours[1] != theirs[1]:
            raise SystemExit(f"{work}: the results differ")
        if ours and theirs:
            ratios.append(theirs[0] / ours[0])
        for system, one in (("pool", ours), (other, theirs)):
            times[system] += [one[0]] if one else []
    about = {"seconds": {system: statistics.median(some) if some else None for system, some in times.items()}, "asked": wanted}
    about["ratio"] = statistics.median(ratios) if ratios else None
    return about


def size_bytes(text):
    """Parses a size such as 512M or 1G."""
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def main():
    """Runs what was chosen. Prints one line a measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folioswap")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--memory", default="256M", help="budget (default 256M)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*AGAINST, "sum", "small"], default=["sum", "small", *AGAINST])
    parser.add_argument("--dir", default="/var/tmp", help="where swap and files lie (default /var/tmp)")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    chosen.folioswap = os.path.abspath(chosen.folioswap)
    budget, measures = size_bytes(chosen.memory), {}
    if "sum" in chosen.only:
        with tempfile.TemporaryDirectory(prefix="folioswap-arrays-", dir=chosen.dir) as directory:
            rates = ask([chosen.python, "-c", SUM, str(budget), directory, str(2 * chosen.repeats + 1)])
        if rates:
            ratios = {
                name: statistics.median(ours / raw for ours, raw in zip(rates["sum"][1:], rates[name][1:]))
                for name in ("raw", "raw into RAM")
            }
            rates = {name: statistics.median(some[1:]) / 1e9 for name, some in rates.items()}
            measures["sum"] = {"GB_per_s": rates, "ratio": ratios, "asked": 0.9}
    if "small" in chosen.only:
        measures["small"] = {"us": ask([chosen.python, "-c", SMALL])}
    programs = [work for work in chosen.only if work in AGAINST]
    if programs and os.geteuid() != 0:
        print("SKIP programs: a memory cgroup and a swap file need root")
    elif programs:
        os.environ.update(faster_sort(chosen.python))  # of both sides
        measures.update({work: compare(chosen, work, budget) for work in programs})
    for name, about in measures.items():
        print(name, json.dumps(about))
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(measures, file)


if __name__ == "__main__":
    main()
