#!/usr/bin/env python3
"""The demo: numpy creates and sorts 1 GiB (2 GiB touched) in 512 MiB, compared with no limit and with kernel swap.

Usage: demo.py FOLIOSWAP [--size SIZE] [--memory SIZE] [--json FILE]. Each leg has a time limit and ends with this
process. The comparison with kernel swap needs root, for a memory cgroup and a swap file.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from numpy_venv import Missing, faster_sort, numpy_python  # noqa: E402

LIMIT_S = {"no limit": 120, "folioswap": 240, "kernel": 420}


def leg(title, name, command, settings):
    """Runs one leg and shows its progress. Returns (seconds, fingerprint), or None if it failed."""
    print(f"\n{title}", flush=True)
    start = time.monotonic()
    child = subprocess.Popen(
        ["timeout", "-k", "10", str(LIMIT_S[name]), *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings},
    )
    fingerprint = None
    try:
        for line in child.stdout:
            if line.startswith("fingerprint "):
                fingerprint = line.split()[1]
            else:
                print(line, end="", flush=True)
        status = child.wait(LIMIT_S[name] + 30)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.wait(60)  # kernel swap is undone meanwhile
    took_s = time.monotonic() - start
    if status in (124, 137) and took_s >= LIMIT_S[name]:
        print(f"  ended: over its limit of {LIMIT_S[name]} s")
        return None
    if status != 0 or fingerprint is None:
        about = " (killed; the kernel's log says why)" if status == 137 else ""
        print(f"  failed after {took_s:.1f} s: exit status {status}{about}")
        return None
    print(f"  {took_s:6.1f} s  in all", flush=True)
    return took_s, fingerprint


def size_bytes(text):
    """Parses a size such as 512M or 1G."""
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folioswap")
    parser.add_argument("--size", default="1G", help="bytes to sort; twice as many are touched (default 1G)")
    parser.add_argument("--memory", default="512M", help="budget (default 512M)")
    parser.add_argument("--json", help="write the times to this file")
    return parser.parse_args()


def legs(chosen, python):
    """Name, title and command of each leg that can run here."""
    work = [python, os.path.join(HERE, "sort_work.py"), str(size_bytes(chosen.size))]
    folioswap = os.path.abspath(chosen.folioswap)
    yield "no limit", "with all the RAM it wants", work
    yield "folioswap", f"folioswap run --memory {chosen.memory}", [folioswap, "run", "--memory", chosen.memory, "--stats", "--", *work]
    if os.geteuid() == 0:
        swap_size = str(4 * size_bytes(chosen.size))
        command = [folioswap, "__kernel", "--memory", chosen.memory, "--swap-size", swap_size, "--", *work]
        yield "kernel", f"the kernel's swap, in a memory cgroup of {chosen.memory} (slow; this takes a while)", command
    else:
        print("\nThe kernel's swap is left out: a memory cgroup and a swap file need root. `sudo make demo` includes it.")


def main():
    """Runs the legs, compares the results, prints the times. Exit status 1 if a result was wrong or missing."""
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        print("getting numpy into .venv", flush=True)
        python = numpy_python()
    except Missing as missing:
        print(f"numpy is missing: {missing}", file=sys.stderr)
        return 1
    touched = 2 * size_bytes(chosen.size)
    print(f"sorting {chosen.size} of float64: {touched >> 20} MiB touched, {touched / size_bytes(chosen.memory):.1f} times {chosen.memory}")
    settings = {"OPENBLAS_NUM_THREADS": "2", **faster_sort(python)}
    if "NPY_DISABLE_CPU_FEATURES" in settings:
        print("without numpy's AVX-512, in every leg: on this processor it sorts faster so")
    results = {}
    for name, title, command in legs(chosen, python):
        if name == "no limit":
            # The first touch of memory is slow in a virtual machine. Without this, only the first leg would pay for it.
            leg("warming up: the same with all the RAM it wants, not counted", name, command, settings)
        results[name] = leg(title, name, command, settings)
        if name == "kernel" and results[name] is None:
            print("  once more: under load the kernel may kill a program in a small cgroup before its swap is full")
            results[name] = leg(title, name, command, settings)
    good = all(results[name] for name in ("no limit", "folioswap"))
    fingerprints = {result[1] for result in results.values() if result}
    print("\nresult: " + ("the same numbers in the same order, every time" if good and len(fingerprints) == 1 else "WRONG"))
    for name, result in results.items():
        print(f"  {name:<10} {f'{result[0]:7.1f} s' if result else '      - (failed)'}")
    if good and results.get("kernel"):
        print(f"folioswap was {results['kernel'][0] / results['folioswap'][0]:.1f} times as fast as the kernel's swap")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({name: result and result[0] for name, result in results.items()}, file)
    return 0 if good and len(fingerprints) == 1 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
