"""Runs a program with and without `folioswap run` and compares its output byte for byte.

timeout(1) limits every run. Both must exit with status 0. Standard output and the named output files must be the same.
"""

import hashlib
import os
import re
import subprocess
import time

MIB = 1 << 20
SMALLEST_BUDGET = 16 * MIB


class Skip(Exception):
    """Why a program cannot be run here."""


class Outcome:
    """The result of one run of a program."""

    def __init__(self, status, wall_s, peak_bytes, digests, messages):
        self.status, self.wall_s, self.peak_bytes = status, wall_s, peak_bytes
        self.digests, self.messages = digests, messages


def digest(path):
    """A hash of a file, or `absent`."""
    if not os.path.exists(path):
        return "absent"
    hasher = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(4 * MIB):
            hasher.update(chunk)
    return f"{os.path.getsize(path)} bytes, {hasher.hexdigest()}"


def run(command, folder, limit_s, outputs=(), env=None):
    """Runs `command` in `folder`. The outcome has digests of standard output and of the files in `outputs`."""
    out, err = os.path.join(folder, "stdout"), os.path.join(folder, "stderr")
    for name in outputs:
        if os.path.exists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    start = time.monotonic()
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        child = subprocess.Popen(
            ["timeout", "-k", "5", str(limit_s), *command],
            stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, cwd=folder, env={**os.environ, **(env or {})},
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - start
    digests = {name: digest(os.path.join(folder, name)) for name in ("stdout", *outputs)}
    with open(err, encoding="utf-8", errors="replace") as file:
        messages = file.read()
    return Outcome(child.returncode, wall_s, usage.ru_maxrss * 1024, digests, messages)


def budget_for(peak_bytes, code_bytes, times):
    """A budget that the program's data exceeds `times` times: in whole 2 MiB folios, never below the minimum.
    `code_bytes` of the peak are the program itself and its libraries, which are not managed."""
    return max(SMALLEST_BUDGET, int((peak_bytes - code_bytes) / times) // (2 * MIB) * (2 * MIB))


def swapped_out_bytes(messages):
    """The bytes that all processes swapped out, as `--stats=json` reports them. None without a report."""
    found = re.findall(r'"swapped_out_bytes"\s*:\s*(\d+)', messages)
    return int(found[-1]) if found else None


def compare(
    name, folioswap, command, folder, limit_s,
    times=1.2, code=4 * MIB, budget=None, outputs=(), env=None, faults="auto", options=(), plain=None, counts=True,
):
    """Runs `command` both ways. Prints PASS or FAIL. Returns whether everything was the same. The default budget is
    the peak of the run without a limit, less `code` bytes, divided by `times`. `options` are further options of
    `folioswap run`. `plain` is the outcome of an earlier run without a limit. Without `counts`, what was swapped out is
    not checked: processes of another user cannot open the counters."""
    plain = plain or run(command, folder, limit_s, outputs, env)
    if plain.status != 0:
        print(f"FAIL {name}: without folioswap: exit status {plain.status}: {plain.messages[-500:]}", flush=True)
        return False
    budget = budget or budget_for(plain.peak_bytes, code, times)
    prefix = [folioswap, "run", "--memory", str(budget), "--faults", faults, *options, "--stats=json", "--"]
    swapped = run([*prefix, *command], folder, limit_s, outputs, env)
    sizes = f"peak {plain.peak_bytes // MIB} MiB, budget {budget // MIB} MiB"
    times_s = f"{plain.wall_s:.1f} s without a limit, {swapped.wall_s:.1f} s under folioswap"
    if "panicked" in swapped.messages:
        print(f"FAIL {name}: {swapped.messages[-800:]}", flush=True)
        return False
    if swapped.status != 0:
        why = "over its limit" if swapped.wall_s >= limit_s else f"exit status {swapped.status}"
        print(f"FAIL {name}: {why}; {sizes}; {times_s}; last words: {swapped.messages[-800:]}", flush=True)
        return False
    different = [file for file, value in plain.digests.items() if swapped.digests[file] != value]
    for file in different:
        print(f"  {file}: {plain.digests[file]} became {swapped.digests[file]}")
    out_bytes = swapped_out_bytes(swapped.messages)
    if different:
        print(f"FAIL {name}: differs: {', '.join(different)}; {sizes}; {times_s}", flush=True)
        return False
    if out_bytes == 0 and counts:
        print(f"FAIL {name}: nothing was swapped out, so this showed nothing; {sizes}; {times_s}", flush=True)
        return False
    about = "" if out_bytes is None else f"; {out_bytes // MIB} MiB swapped out"
    print(f"PASS {name}: {sizes}; {times_s}{about}", flush=True)
    return True
