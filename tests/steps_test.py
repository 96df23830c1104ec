#!/usr/bin/env python3
"""Tests of steps.py: a step that hangs, detaches or ignores signals neither blocks the run nor survives it."""

import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from steps import Run, Step, count, descendants, panics  # noqa: E402

STUBBORN = "trap '' TERM INT HUP; (setsid sh -c \"trap '' TERM INT HUP; sleep 601\" &) ; sleep 602"
DETACHED = "(setsid sleep 603 &); echo PASS detached"


def expect(name, condition, about=""):
    """Prints one PASS or FAIL line."""
    print(f"PASS {name}" if condition else f"FAIL {name}: {about}", flush=True)
    return condition


def inner(folder):
    """The run under test. It needs a process of its own, because it becomes the subreaper of all processes below it."""
    run = Run(folder, os.path.join(folder, "logs"), 200)
    steps = [
        Step("detached", ["sh", "-c", DETACHED], 20),
        Step("stubborn", ["sh", "-c", STUBBORN], 1),
        Step("needs stubborn", ["true"], 5, ["stubborn"]),
        Step("absent program", ["/does/not/exist"], 5),
        Step("reads nothing", ["cat"], 5),
        Step("says that it has failed", ["echo", "folioswap: panicked at a line"], 5),
    ]
    known = {step.name for step in steps}
    for step in steps:
        run.step(step, known)
    begun = time.monotonic()
    slow = [Step(f"slow {n}", ["sleep", "2"], 20) for n in "ab"]
    run.steps([Step("detached beside others", ["sh", "-c", DETACHED], 20), *slow], known, 2)
    print(f"beside {len(run.passed_steps)} {time.monotonic() - begun < 5.5}")
    chain = [Step(name, ["true"], 20, needs) for name, needs in (("one", []), ("two", ["one"]), ("three", ["two"]))]
    run.steps(chain, {step.name for step in chain}, 1)
    print(f"chain {[step.name in run.passed_steps for step in chain]}")
    print(f"left {len(descendants())}")
    run.deadline = time.monotonic() + 2
    run.step(Step("late", ["true"], 5), known)
    return run.close()


def main():
    """Runs the inner run with a time limit and checks its output."""
    if len(sys.argv) > 1:
        return inner(sys.argv[1])
    good = True
    with tempfile.TemporaryDirectory(prefix="folioswap-steps-") as folder:
        start = time.monotonic()
        command = ["timeout", "-k", "1", "200", sys.executable, os.path.abspath(__file__), folder]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=210)
        took_s = time.monotonic() - start
        lines = result.stdout.splitlines()
        good &= expect("a hanging step ends in time", took_s < 150, f"took {took_s:.1f} s")
        good &= expect("a detached process is killed", "left 0" in lines and "sleep[" in result.stdout, result.stdout)
        good &= expect("steps run side by side and spare each other", "beside 5 True" in lines, result.stdout)
        good &= expect("a step finds that what it needs has passed", "chain [True, True, True]" in lines, result.stdout)
        good &= expect("the closing line", lines[-1:] == ["8 passed, 4 failed, 1 skipped"], lines[-1:])
        named = ["failed:", "  stubborn: over its limit of 1 s", "  absent program: ", "  says that it has failed: exit status 0; it"]
        good &= expect("what failed is named at the end", all(f"\n{name}" in result.stdout for name in named), lines[-12:])
        good &= expect("failure is the exit status", result.returncode == 1, result.returncode)
    counts = count("test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured\nSKIP: no root\n", 101)
    good &= expect("cargo's counts are read", (counts.passed, counts.failed, counts.skips) == (3, 1, ["no root"]))
    counts = count("FAIL a: why\ntest b::c ... FAILED\nPASS d\n", 1)
    good &= expect("what failed is noted by name", counts.failures == ["a: why", "b::c ... FAILED"], counts.failures)
    marked = "test a - should panic ... ok\n---- a stdout ----\nthread 'a' panicked at x\n"
    other = "---- b stdout ----\nthread 'b' panicked at y\n"
    good &= expect("a panic that a test provokes is exempt", panics(marked) == [] and panics(other, ["b"]) == [])
    good &= expect("no other panic is", panics(marked + other) == ["thread 'b' panicked at y"], panics(marked + other))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
