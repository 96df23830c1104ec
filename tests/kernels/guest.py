#!/usr/bin/env python3
"""What runs on the other kernels, inside the virtual machine: guest.py FOLIOSWAP short|long SECONDS CASE....

Sweeps with both mappers and on two NUMA nodes, programs of tests/cases, an unprivileged user, huge pages `never`,
stress-ng. What the kernel cannot do must be refused with one line and status 125. Nothing begins after SECONDS; what
has begun has its full limit.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path[:0] = [TESTS, os.path.join(TESTS, "programs"), os.path.join(TESTS, "cases")]
import oracles  # noqa: E402
from compare import Skip  # noqa: E402
from run import MOVES_SINCE, Case, complaint, kernel_release, run  # noqa: E402

FOLIOSWAP = sys.argv[1]
IS_SHORT = sys.argv[2] == "short"
DEADLINE = time.monotonic() + int(sys.argv[3])
LIMIT_S = 240 if IS_SHORT else 300
HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"
NODES = "/sys/devices/system/node/online"
COMPILED = os.path.join(os.path.dirname(os.path.dirname(FOLIOSWAP)), "cases")
STRESSORS = ("vm", "mremap", "madvise", "mprotect", "fork", "malloc", "mlock", "io-uring")
SHORT_STRESSORS = ("mremap 1 --mremap-bytes 16M --mremap-ops 1", "vm 1 --vm-bytes 40M --vm-method zero-one --vm-keep --vm-ops 2")
# folioswap's exit status when it does not start a program.
FAILED = 125
failures = []


def say(word, text):
    """Prints one result and remembers failures."""
    if word == "FAIL":
        failures.append(text)
    print(word, text, flush=True)


def has_time(label):
    """Whether there is time to start something."""
    if time.monotonic() < DEADLINE:
        return True
    say("SKIP", f"{label}: no time left" + (" in the short form" if IS_SHORT else ""))
    return False


def refusal(status, text):
    """The line with which a run was refused; None if it was not."""
    lines = [line for line in text.splitlines() if line.startswith("folioswap: ")]
    return lines[-1] if status == FAILED and lines else None


def sweep(label, faults, mapper, prefix=(), swap=()):
    """A small sweep, every word of which is checked."""
    if not has_time(label):
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        report = os.path.join(folder, "json")
        command = [*prefix, FOLIOSWAP, "bench", "sweep", "--size", "32M", "--memory", "16M", "--threads", "2", *swap]
        command += ["--rounds", "1", "--read-rounds", "1", "--faults", faults, "--mapper", mapper, "--json", report]
        status, texts, took_s = run(command, LIMIT_S, folder)
        said = refusal(status, "".join(texts))
        if mapper == "move" and kernel_release() < MOVES_SINCE:
            say("PASS" if said else "FAIL", f"{label}: refused: {said or (status, texts)}")
            return
        bad = "?"
        if status == 0:
            with open(report, encoding="utf-8") as file:
                bad = json.load(file)["measures"]["bad_words"]
        tail = "" if bad == 0 else f": status {status}, bad words {bad}, {''.join(texts)[-600:]!r}"
        say("PASS" if bad == 0 else "FAIL", f"{label} ({took_s:.0f} s){tail}")


def nodes():
    """A sweep on two nodes with a device each."""
    label = "two NUMA nodes: sweep direct"
    with open(NODES, encoding="utf-8") as file:
        if file.read().strip() != "0-1":
            say("FAIL", f"{label}: the guest has not two nodes")
    swap = [word for node in range(2) for word in ("--swap", f"/var/tmp/swap{node}:64M,node={node}")]
    sweep(label, "direct", "auto", swap=swap)


def case(name, faults):
    """One of tests/cases with its smallest budget. A failure counts if it does not fail alone too."""
    one = Case(os.path.join(TESTS, "cases", name))
    label = f"case {name} {faults} {one.budgets[0]}"
    if not has_time(label):
        return
    one.limit_s = LIMIT_S
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        try:
            one.find_needs()
            command = [os.path.join(COMPILED, name[:-2])] if name.endswith(".c") else one.ready(folder)
            how = ["--memory", one.budgets[0], "--faults", faults, *(["--eager"] if len(name) % 2 else [])]
            outcome = run([FOLIOSWAP, "run", *how, "--", *command], LIMIT_S, folder)
            wrong = complaint(one, outcome)
            alone = wrong and complaint(one, run(command, LIMIT_S, folder))
        except (Skip, OSError) as reason:
            say("SKIP", f"{label}: {reason}")
            return
    if alone:
        say("SKIP", f"{label}: fails on this kernel without folioswap too: {alone}")
        return
    tail = f": {wrong}: {''.join(outcome[1])[-500:]!r}" if wrong else ""
    say("FAIL" if wrong else "PASS", f"{label} ({outcome[2]:.0f} s){tail}")


def stressors():
    """stress-ng in both fault modes; in the short form in one, in turn."""
    known = [one for one in oracles.every_oracle() if one.name.startswith("stress-ng") and one.name.split()[-1] in STRESSORS]
    for index, oracle in enumerate([oracles.stressor(line) for line in SHORT_STRESSORS] if IS_SHORT else known):
        for faults in [oracles.MODES[1 - index % 2]] if IS_SHORT else oracles.MODES:
            budget = "24M" if IS_SHORT else "48M"
            label = f"{oracle.name} {faults} {budget}"
            if not has_time(label):
                continue
            prefix = [FOLIOSWAP, "run", "--memory", budget, "--faults", faults, "--eager", "--stats=json", "--"]
            try:
                is_right, _ = oracles.attempt(oracle, oracle.make(), prefix, LIMIT_S, label, False)
                if not is_right:
                    failures.append(label)
            except Skip as reason:
                say("SKIP", f"{label}: {reason}")


def unprivileged():
    """A user who may not have a userfaultfd for the kernel's faults: direct works, monitor is refused."""
    with open("/proc/sys/vm/unprivileged_userfaultfd", "w", encoding="utf-8") as file:
        file.write("0")
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if subprocess.run([*user, "test", "-x", FOLIOSWAP], timeout=LIMIT_S).returncode != 0:
        say("SKIP", f"unprivileged: another user cannot reach {FOLIOSWAP}")
        return
    sweep("unprivileged: sweep direct copy", "direct", "copy", user)
    for faults in ("auto", "monitor"):
        label = f"unprivileged: run {faults}"
        if not has_time(label):
            return
        command = [*user, FOLIOSWAP, "run", "--memory", "32M", "--faults", faults, "--", "/bin/echo", "works"]
        status, texts, _ = run(command, LIMIT_S, "/var/tmp")
        said = refusal(status, "".join(texts))
        right = said is not None if faults == "monitor" else status == 0 and "works" in texts[0]
        say("PASS" if right else "FAIL", f"{label}: {said or status}")


def cases(turn):
    """The named cases, each in one of its fault modes: in turn 1 in the other one, if it has two."""
    for index, name in enumerate(sys.argv[4:]):
        modes = Case(os.path.join(TESTS, "cases", name)).modes
        if turn < len(modes):
            case(name, modes[(index + turn) % len(modes)])


def without_huge_pages():
    """Sweeps with the kernel's huge pages off."""
    with open(HUGE, "w", encoding="utf-8") as file:
        file.write("never")
    sweep("huge pages never: sweep direct copy", "direct", "copy")
    sweep("huge pages never: sweep monitor move", "monitor", "move")
    with open(HUGE, "w", encoding="utf-8") as file:
        file.write("always")


def main():
    """All of it, the most important first. Exit status 1 if something failed."""
    for mapper in ("copy", "move"):
        for faults in ("direct", "monitor"):
            sweep(f"sweep {faults} {mapper}", faults, mapper)
    unprivileged()
    if IS_SHORT:
        cases(0)
    nodes()
    without_huge_pages()
    if not IS_SHORT:
        cases(0)
    stressors()
    if not IS_SHORT:
        cases(1)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
