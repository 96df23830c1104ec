#!/usr/bin/env python3
"""The kernel as the oracle: seeded sequences of memory calls, with and without folioswap, must print the same.

Usage: fuzz.py FOLIOSWAP [--seconds N] [--seeds FIRST-LAST] [--mode direct|monitor] [--allowed N] [--no-shrink]
               [--at-a-time N]

The program is oracle.c: it prints every result, error number, byte and signal. It touches eight times its budget. The
seeds of fuzz_seeds.txt, which failed once, come first. A seed that fails is shrunk: steps are left out as long as the
difference stays.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "cases")]
from run import AT_A_TIME, run  # noqa: E402
from steps import become_reaper, kill_remains  # noqa: E402

SOURCE = os.path.join(os.path.dirname(HERE), "crates/preload/tests/c/oracle.c")
KEPT = os.path.join(HERE, "fuzz_seeds.txt")
STEPS = 120
LIMIT_S = 120
SHRINK_S = 120
BOLD, FAMILY, REMOTE, REFERRED = 1, 2, 4, 8
# What oracle.c may do in each mode. What is missing is documented as different.
ALLOWED = {"direct": FAMILY, "monitor": BOLD | FAMILY}
MAPPERS = ("move", "copy")


def is_documented(alone, ours):
    """Whether these lines differ as the documentation says: an mremap that resizes a range which the kernel keeps in
    several mappings fails there (EFAULT). Under folioswap it does what it does on one mapping: it succeeds, or has no room
    where it may not move (ENOMEM)."""
    lines = [re.fullmatch(r"((?:seed \d+ step \d+: )?mremap \d+ (\d+) (\d+) (\w+) \d+: )(.*)", line) for line in (alone, ours)]
    if not all(lines) or lines[0][1] != lines[1][1] or lines[0][2] == lines[0][3]:
        return False
    flags, (theirs, mine) = lines[0][4], (line[5] for line in lines)
    return theirs == "error 14" and (mine.isdigit() or (mine, flags) == ("error 12", "0"))


class Sequence:
    """A seed in one mode, less some steps."""

    def __init__(self, program, folioswap, seed, mode, allowed=None):
        self.program, self.folioswap, self.seed, self.mode = program, folioswap, seed, mode
        self.allowed = ALLOWED[mode] if allowed is None else allowed

    def shown(self, is_ours, left_out=()):
        """What the program prints, and how it ends."""
        command = [self.program, str(self.seed), "1", str(STEPS), str(self.allowed), ",".join(map(str, left_out))]
        with tempfile.TemporaryDirectory(prefix="folioswap-fuzz-", dir="/var/tmp") as folder:
            command = ["env", f"TEST_FOLDER={folder}", f"FOLIOSWAP_DIR={folder}", *command]
            if is_ours:
                # Each mode with both mappers, and managed from the start or not.
                mapper = MAPPERS[self.seed % len(MAPPERS)]
                how = ["--memory", "16M", "--faults", self.mode, "--mapper", mapper, "--swap", "ram:512M"]
                if self.seed // len(MAPPERS) % 2:
                    how.append("--eager")
                command = [self.folioswap, "run", *how, "--", *command]
            status, (out, err), _ = run(command, LIMIT_S, folder)
        # The note on what was not managed is no difference.
        notes = [line for line in err.splitlines() if not line.startswith("folioswap: note:")]
        return out.splitlines() + notes + [f"exit status {status}"]

    def difference(self, left_out=()):
        """The first lines that differ, with the step; None if there is no difference."""
        alone, ours = self.shown(False, left_out), self.shown(True, left_out)
        if alone == ours:
            return None
        place = next((at for at, pair in enumerate(zip(alone, ours)) if pair[0] != pair[1]), min(len(alone), len(ours)))
        steps = [line for line in alone[: place + 1] if line.startswith("seed")]
        texts = [lines[place] if place < len(lines) else "nothing" for lines in (alone, ours)]
        if is_documented(*texts):
            return None  # from here on the two hold different memory
        return (steps or ["before the first step"])[-1], texts[0], texts[1], ours[-1]

    def shrunk(self):
        """The steps to leave out so that the difference stays, and the difference that is left."""
        left_out, found = set(), self.difference()
        deadline = time.monotonic() + SHRINK_S
        size = STEPS // 2
        while size >= 1:
            for first in range(0, STEPS, size):
                more = set(range(first, min(first + size, STEPS))) - left_out
                if not more or time.monotonic() > deadline:
                    continue
                now = self.difference(sorted(left_out | more))
                if now is not None:
                    left_out |= more
                    found = now
            size //= 2
        return sorted(left_out), found


def one(program, folioswap, seed, mode, is_shrunk):
    """Tries one seed in one mode. Returns whether there was no difference."""
    sequence = Sequence(program, folioswap, seed, mode)
    found = sequence.difference()
    if found is None:
        return True
    steps = ""
    if is_shrunk:
        left_out, smaller = sequence.shrunk()
        if smaller is not None:
            found = smaller
            steps = f"\n  steps {[step for step in range(STEPS) if step not in left_out]}; allowed {sequence.allowed}"
    mapper = MAPPERS[seed % len(MAPPERS)]
    text = f"FAIL seed {seed} {mode} {mapper}: {found[0]}\n  alone {found[1]}\n  ours  {found[2]} ({found[3]}){steps}"
    print(text, flush=True)
    return False


def kept_seeds():
    """Pairs of seed and mode that failed once."""
    if not os.path.exists(KEPT):
        return []
    with open(KEPT, encoding="utf-8") as file:
        rows = [line.split("#")[0].split() for line in file]
    return [(int(row[0]), mode) for row in rows if row for mode in row[1:] or ALLOWED]


def main():
    """Runs the kept seeds, then new ones while there is time. Exit status 1 after a difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folioswap")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seeds", default="1-1000000")
    parser.add_argument("--mode", choices=sorted(ALLOWED))
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--allowed", type=int, help="a sum of oracle.c's enum allowed, in place of ALLOWED")
    parser.add_argument("--at-a-time", type=int, choices=range(1, 100), default=AT_A_TIME, metavar="N",
                        help="sequences that run side by side")
    options = parser.parse_args()
    first, last = (int(part) for part in (options.seeds + "-" + options.seeds).split("-")[:2])
    deadline = time.monotonic() + options.seconds
    if options.allowed is not None:
        ALLOWED.update(dict.fromkeys(ALLOWED, options.allowed))
    modes = [options.mode] if options.mode else sorted(ALLOWED)
    become_reaper()
    with tempfile.TemporaryDirectory(prefix="folioswap-fuzz-", dir="/var/tmp") as folder:
        program = os.path.join(folder, "oracle")
        subprocess.run(["gcc", "-O1", "-g", "-pthread", "-o", program, SOURCE], check=True, timeout=120)
        # Alternating modes, so that both have been tried when the time is up.
        kept = [pair for pair in kept_seeds() if pair[1] in modes]
        todo = iter([*kept, *((seed, mode) for seed in range(first, last + 1) for mode in modes)])
        nr_kept, done, good = len(kept), [], True

        def work():
            count = bad = 0
            for seed, mode in todo_safely(todo, lambda: time.monotonic() > deadline and len(done) >= nr_kept):
                done.append(seed)
                count += 1
                bad += not one(program, os.path.abspath(options.folioswap), seed, mode, not options.no_shrink)
            return count, bad

        with ThreadPoolExecutor(options.at_a_time) as pool:
            results = [future.result() for future in [pool.submit(work) for _ in range(options.at_a_time)]]
        kill_remains()
    count, bad = (sum(column) for column in zip(*results))
    good = bad == 0
    print(f"{'PASS' if good else 'FAIL'} fuzz: {count} sequences, {nr_kept} of them kept ones, {bad} differ", flush=True)
    return 0 if good else 1


def todo_safely(todo, is_over):
    """Takes items of a shared iterator one by one. `next` of a plain iterator is atomic here."""
    while not is_over():
        item = next(todo, None)
        if item is None:
            return
        yield item


if __name__ == "__main__":
    sys.exit(main())
