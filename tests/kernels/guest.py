#!/usr/bin/env python3
"""What runs on the other kernels, inside the virtual machine: guest.py FOLIOSWAP short|long SECONDS.

Sweeps with both mappers, small programs of tests/cases, stress-ng, an unprivileged user, huge pages `never`. What the
kernel cannot do must be refused with one line and status 125. What does not fit into the time is skipped.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path[:0] = [TESTS, os.path.join(TESTS, "programs"), os.path.join(TESTS, "cases")]
import oracles  # noqa: E402
from run import Case, complaint, run  # noqa: E402

FOLIOSWAP = sys.argv[1]
IS_SHORT = sys.argv[2] == "short"
DEADLINE = time.monotonic() + int(sys.argv[3]) - 10
HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"
SHORT_CASES = ("own_clock.c", "fork.c")
STRESSORS = ("vm", "mremap", "madvise", "mprotect", "fork", "malloc", "mlock", "io-uring")
# The first kernel with UFFDIO_MOVE.
MOVES_SINCE = (6, 8)
# folioswap's exit status when it does not start a program.
FAILED = 125
LIMIT_S = 300
RELEASE = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
good = True


def say(word, text):
    """Prints one result and remembers failures."""
    global good
    good &= word != "FAIL"
    print(word, text, flush=True)


def has_time(label, least_s=15):
    """Whether enough time is left to start something."""
    if time.monotonic() + least_s < DEADLINE:
        return True
    say("SKIP", f"{label}: no time left in the short form" if IS_SHORT else f"{label}: no time left")
    return False


def limit_s():
    """The seconds that one run may take."""
    return max(5, min(LIMIT_S, DEADLINE - time.monotonic()))


def refusal(status, text):
    """The line with which a run was refused; None if it was not."""
    lines = [line for line in text.splitlines() if line.startswith("folioswap: ")]
    return lines[-1] if status == FAILED and lines else None


def sweep(label, faults, mapper, prefix=()):
    """A small sweep, every word of which is checked."""
    if not has_time(label):
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        report = os.path.join(folder, "json")
        command = [*prefix, FOLIOSWAP, "bench", "sweep", "--size", "96M", "--memory", "32M", "--threads", "2"]
        command += ["--rounds", "1", "--read-rounds", "1", "--faults", faults, "--mapper", mapper, "--json", report]
        status, texts, took_s = run(command, limit_s(), folder)
        said = refusal(status, "".join(texts))
        if mapper == "move" and RELEASE < MOVES_SINCE:
            say("PASS" if said else "FAIL", f"{label}: refused: {said or (status, texts)}")
            return
        bad = "?"
        if status == 0:
            with open(report, encoding="utf-8") as file:
                bad = json.load(file)["measures"]["bad_words"]
        tail = "" if bad == 0 else f": status {status}, bad words {bad}, {''.join(texts)[-600:]!r}"
        say("PASS" if bad == 0 else "FAIL", f"{label} ({took_s:.0f} s){tail}")


def case(name, faults, budget="96M"):
    """One of tests/cases, without the run alone."""
    label = f"case {name} {faults} {budget}"
    if not has_time(label):
        return
    one = Case(os.path.join(TESTS, "cases", name))
    one.limit_s = limit_s()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        built = os.path.join(os.path.dirname(FOLIOSWAP), "..", "kernels", "cases", os.path.splitext(name)[0])
        command = [built] if name.endswith(".c") else one.ready(folder)
        outcome = run([FOLIOSWAP, "run", "--memory", budget, "--faults", faults, "--", *command], one.limit_s, folder)
    wrong = complaint(one, outcome)
    tail = f": {wrong}: {''.join(outcome[1])[-500:]!r}" if wrong else ""
    say("FAIL" if wrong else "PASS", f"{label} ({outcome[2]:.0f} s){tail}")


def stressors(names):
    """stress-ng in both fault modes."""
    for oracle in oracles.every_oracle():
        if oracle.name.split()[-1] not in names:
            continue
        for faults in ("direct", "monitor"):
            label = f"{oracle.name} {faults} 48M"
            if has_time(label):
                prefix = [FOLIOSWAP, "run", "--memory", "48M", "--faults", faults, "--stats=json", "--"]
                if not oracles.attempt(oracle, oracle.make(), prefix, limit_s(), label):
                    say("FAIL", label)


def unprivileged():
    """A user who may not have a userfaultfd for the kernel's faults: direct works, monitor is refused."""
    with open("/proc/sys/vm/unprivileged_userfaultfd", "w", encoding="utf-8") as file:
        file.write("0")
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    sweep("unprivileged: sweep direct copy", "direct", "copy", user)
    for faults in ("auto", "monitor"):
        label = f"unprivileged: run {faults}"
        if not has_time(label):
            return
        command = [*user, FOLIOSWAP, "run", "--memory", "32M", "--faults", faults, "--", "/bin/echo", "works"]
        status, texts, _ = run(command, limit_s(), "/var/tmp")
        said = refusal(status, "".join(texts))
        right = said is not None if faults == "monitor" else status == 0 and "works" in texts[0]
        say("PASS" if right else "FAIL", f"{label}: {said or status}")


def main():
    """All of it, the most important first. Exit status 1 if something failed."""
    for mapper in ("copy", "move"):
        for faults in ("direct", "monitor"):
            sweep(f"sweep {faults} {mapper}", faults, mapper)
    files = [name for name in sorted(os.listdir(os.path.join(TESTS, "cases"))) if name != "run.py"]
    for name in files:
        if name.endswith((".c", ".sh", ".py")) and (name in SHORT_CASES or not IS_SHORT):
            modes = Case(os.path.join(TESTS, "cases", name)).modes
            for faults in modes[:1] if IS_SHORT else modes:
                case(name, faults)
    unprivileged()
    with open(HUGE, "w", encoding="utf-8") as file:
        file.write("never")
    sweep("huge pages never: sweep direct copy", "direct", "copy")
    sweep("huge pages never: sweep monitor move", "monitor", "move")
    with open(HUGE, "w", encoding="utf-8") as file:
        file.write("always")
    stressors(STRESSORS[:2] if IS_SHORT else STRESSORS)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
