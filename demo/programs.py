#!/usr/bin/env python3
"""Real programs with more memory than their budget, as one Markdown table.

Usage: programs.py FOLIOSWAP [--only NAME...] [--modes MODE,...] [--times N,...] [--runs N] [--slowest N] [--no-kernel]
                   [--json FILE]

Each program runs without a limit; under `folioswap run` in each mode with its memory 1.5, 2 and 4 times the budget; and
with the kernel's swap in a memory cgroup of the budget (as root). Its memory is the peak of its private anonymous
memory, of all its processes, sampled in every run alike. Cells of the table are times as slow as without a limit. A
run that is more than `--slowest` times as slow is ended, and larger factors are left out. A program of several
processes has a budget in each, by the largest of them; the cgroup is that much smaller than all. The managed share is
that of the largest process. Exit status 1 if a result differed or a run under folioswap failed.
"""

import argparse
import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from programs_work import PROGRAMS, Skip  # noqa: E402
from compare import MIB, budget_for, digest  # noqa: E402

SAMPLE_S = 0.05
FIRST_LIMIT_S = 120  # without a limit of memory
FAR_ABOVE = 1.2  # a peak that is this many times the budget is shown in bold
PR_SET_CHILD_SUBREAPER = 36


class Turn:
    """How one run ended: its exit status (None: over its limit of time), seconds, result, and peaks of memory."""

    def __init__(self):
        self.status, self.wall_s, self.result, self.messages = None, 0.0, None, ""
        self.all_bytes, self.largest_bytes = 0, 0  # all processes together, and the largest

    def stats(self):
        """What `--stats=json` printed."""
        found = [line for line in self.messages.splitlines() if line.startswith("{") and '"outside"' in line]
        return json.loads(found[-1]) if found else {}


def descendants():
    """The pids of all processes below this one. Orphans become children of this one."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def anonymous_bytes(pid):
    """The private anonymous memory of a process in RAM; what forked processes share counts once in all."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return int(re.search(r"Pss_Anon: *(\d+)", file.read())[1]) * 1024
    except (OSError, TypeError):
        return 0


def end(child):
    """Ends a child, whose supervisor then undoes its set-up, and what is left of its processes."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            pass
    while left := descendants():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                time.sleep(SAMPLE_S)  # its own parent ends it


def turn(program, folder, prefix, limit_s):
    """Runs a program once."""
    done, out, err = Turn(), os.path.join(folder, "stdout"), os.path.join(folder, "stderr")
    start = time.monotonic()
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        child = subprocess.Popen(
            [*prefix, *program.command], stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, cwd=folder,
            env={**os.environ, **program.env},
        )
    try:
        while child.poll() is None and time.monotonic() < start + limit_s:
            sizes = [anonymous_bytes(pid) for pid in descendants()]
            done.all_bytes, done.largest_bytes = max(done.all_bytes, sum(sizes)), max([done.largest_bytes, *sizes])
            try:
                child.wait(SAMPLE_S)
            except subprocess.TimeoutExpired:
                pass
        done.wall_s, done.status = time.monotonic() - start, child.returncode
    finally:
        end(child)
    done.result = digest(out)
    with open(err, encoding="utf-8", errors="replace") as file:
        done.messages = file.read()
    return done


def turns(program, folder, prefix, limit_s, runs):
    """The middle one by time of several runs, with the highest peak; or the first that failed."""
    done = []
    for _ in range(runs):
        done.append(turn(program, folder, prefix, limit_s))
        if done[-1].status != 0:
            return done[-1]
    if len({one.result for one in done}) > 1:
        done[0].result = "differs from run to run"
        return done[0]
    middle = sorted(done, key=lambda one: one.wall_s)[len(done) // 2]
    middle.all_bytes = max(one.all_bytes for one in done)
    return middle


class Row:
    """A program in one mode: its cells, and what is left for a report."""

    def __init__(self, program, plain, mode):
        self.program, self.plain, self.mode = program, plain, mode
        self.cells, self.records, self.good = {}, [], True
        self.ended, self.outside_bytes, self.peak = True, None, (0.0, "")

    def add(self, factor, budget, allowed, done, slowest):
        """Takes the run with one budget, whose processes together are allowed `allowed` bytes."""
        times = done.wall_s / self.plain.wall_s
        right = done.result == self.plain.result
        self.ended = done.status == 0
        if done.status is None:
            self.cells[factor] = f"> {slowest:g}"
        elif self.mode == "kernel" and done.status == 125:
            self.cells[factor] = "not set up"
        elif done.status != 0:
            self.cells[factor] = f"**EXIT STATUS {done.status}**"
        else:
            self.cells[factor] = f"{times:.1f}" if right else "**WRONG RESULT**"
        self.good &= done.status is None or (done.status == 0 and right)
        peak = f"{done.all_bytes // MIB} / {allowed // MIB}"
        over = done.all_bytes / allowed
        self.peak = max(self.peak, (over, f"**{peak}**" if over > FAR_ABOVE else peak))
        stats = done.stats()
        outside = stats.get("outside", {"processes": [], "unnoted_bytes": 0})
        if stats and done.status == 0:
            most = max([outside["unnoted_bytes"], *(process["outside_bytes"] for process in outside["processes"])])
            self.outside_bytes = max(self.outside_bytes or 0, most)
        self.records.append({
            "program": self.program, "mode": self.mode, "times": factor, "budget": budget, "allowed": allowed,
            "plain_s": self.plain.wall_s, "data": self.plain.all_bytes, "status": done.status, "wall_s": done.wall_s,
            "right": right, "peak": done.all_bytes, "stats": stats,
            "last_words": "\n".join(line for line in done.messages.splitlines() if not line.startswith("{"))[-1500:],
        })
        print(f"  {self.mode}, {factor:g} times, budget {budget >> 20} MiB: {done.wall_s:.1f} s, {self.cells[factor]}, "
              f"peak {peak}", file=sys.stderr, flush=True)
        if done.status:
            print(self.records[-1]["last_words"], file=sys.stderr, flush=True)


def measure(name, chosen, folder):
    """All runs of a program. Returns its version, its run without a limit, and its rows."""
    program = PROGRAMS[name](folder)
    shown = subprocess.run(program.version, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    version = re.search(r"\d+\.\d[\w.]*|\d+", (shown.stdout + shown.stderr).replace("x86_64", ""))
    first = turn(program, folder, [], FIRST_LIMIT_S)  # it warms up, and is not counted
    plain = turns(program, folder, [], FIRST_LIMIT_S, chosen.runs)
    if plain.status != 0 or plain.result != first.result:
        raise Skip(f"without a limit: exit status {plain.status}, {plain.result}: {plain.messages[-500:]}")
    plain.all_bytes = max(plain.all_bytes, first.all_bytes)
    plain.largest_bytes = max(plain.largest_bytes, first.largest_bytes)
    print(f"{name}: {plain.wall_s:.1f} s, {plain.all_bytes >> 20} MiB, the largest process {plain.largest_bytes >> 20}",
          file=sys.stderr, flush=True)
    rows = [Row(name, plain, mode) for mode in chosen.modes]
    for factor in sorted(chosen.times):
        allowed = budget = budget_for(plain.all_bytes, 0, factor)
        if program.per_process:
            budget = budget_for(plain.largest_bytes, 0, factor)
        for row in filter(lambda row: row.ended, rows):
            prefix = [chosen.folioswap, "run", "--memory", str(budget), "--faults", row.mode, "--stats=json", "--"]
            if row.mode == "kernel":
                prefix = [chosen.folioswap, "__kernel", "--memory", str(allowed), "--swap-size", str(4 << 30), "--"]
            done = turns(program, folder, prefix, chosen.slowest * plain.wall_s, chosen.runs)
            row.add(factor, budget, allowed, done, chosen.slowest)
    return version[0] if version else "?", plain, rows


def table_row(name, version, plain, row, times):
    """One line of the table."""
    share = "" if row.outside_bytes is None else f"{max(0.0, 1 - row.outside_bytes / plain.largest_bytes):.0%}"
    cells = [row.cells.get(factor, "") for factor in times]
    return f"| {' | '.join([name, version, row.mode, share, row.peak[1], f'{plain.wall_s:.1f}', *cells])} |"


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folioswap", type=os.path.abspath)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME",
                        help=", ".join(PROGRAMS))
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["direct", "monitor"])
    parser.add_argument("--times", type=lambda text: [float(one) for one in text.split(",")], default=[1.5, 2.0, 4.0])
    parser.add_argument("--runs", type=int, default=3, help="the table has the median (default 3)")
    parser.add_argument("--slowest", type=float, default=20.0, help="times as slow, then a run is ended (default 20)")
    parser.add_argument("--no-kernel", action="store_true")
    parser.add_argument("--json", help="write all figures to this file")
    chosen = parser.parse_args()
    if not chosen.no_kernel and os.geteuid() != 0:
        print("The kernel's swap is left out: a memory cgroup and a swap file need root.", file=sys.stderr)
    elif not chosen.no_kernel:
        chosen.modes.append("kernel")
    return chosen


def main():
    """Runs the programs and prints the table."""
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    slower = [f"{factor:g} times" for factor in chosen.times]
    heads = ["program", "version", "mode", "managed", "peak / allowed, MiB", "no limit, s", *slower]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    records, bad = [], []
    for name in chosen.only:
        with tempfile.TemporaryDirectory(prefix="folioswap-program-", dir="/var/tmp") as folder:
            try:
                version, plain, rows = measure(name, chosen, folder)
            except Skip as reason:
                print(f"SKIP {name}: {reason}", file=sys.stderr, flush=True)
                continue
        for row in rows:
            print(table_row(name, version, plain, row, chosen.times), flush=True)
            records += row.records
            bad += [f"{name}, {row.mode}"] if not row.good and row.mode != "kernel" else []
        if chosen.json:
            with open(chosen.json, "w", encoding="utf-8") as file:
                json.dump(records, file, indent=1)
    for row in bad:
        print(f"WRONG OR FAILED: {row}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
