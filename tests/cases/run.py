#!/usr/bin/env python3
"""Small programs that must behave under `folioswap run` as without it: every C, bash and Python file in this folder.

Usage: run.py FOLIOSWAP [NAME...]. A NAME is a file name with or without its ending, or a path to a file elsewhere.

Comments in the first lines of a file say how it is run:
  EXPECT: exit 0, last line "TEXT"    the exit status and the last line of standard output; `exit 0` alone is the default
  ARGS: WORD...       one more run with these arguments, for each such line
  MODES: direct monitor               BUDGETS: 96M 160M               MAPPERS: move
  NEEDS: root move device:PATH python:MODULE program:NAME package:NAME    what must be there; packages of Debian's are
                      installed. `move` is UFFDIO_MOVE: without it run refuses io_uring and libaio with ENOSYS
  LIMIT_S: 120        seconds for each run
  MAY SAY: fewer threads              words that are no failure here
  CFLAGS: -lm         more arguments for gcc; C programs are compiled with -O2 -g -pthread, outside of folioswap

Each is run without folioswap first, and by turns with --eager. The words "panicked" and "fewer threads" in any output
are a failure. Three runs at a time at most.
"""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path[:0] = [TESTS, os.path.join(TESTS, "programs"), os.path.join(os.path.dirname(TESTS), "demo")]
from compare import Skip  # noqa: E402
from numpy_venv import Missing, python_with  # noqa: E402
from steps import become_reaper, kill_remains  # noqa: E402
from suite import need  # noqa: E402

# The first kernel with UFFDIO_MOVE.
MOVES_SINCE = (6, 8)
HEADER_LINES = 15
AT_A_TIME = 3
TAIL_LINES = 15
KEYS = ("EXPECT", "ARGS", "MODES", "BUDGETS", "MAPPERS", "NEEDS", "LIMIT_S", "CFLAGS", "MAY SAY")


def kernel_release():
    """The version of the running kernel, as two numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


class Case:
    """One file and what its header says."""

    def __init__(self, path):
        self.path, self.name = path, os.path.basename(path)
        found = {key: [] for key in KEYS}
        with open(path, encoding="utf-8") as file:
            for line in file.readlines()[:HEADER_LINES]:
                for key, value in re.findall(rf"\b({'|'.join(KEYS)}): *((?:(?!\b(?:{'|'.join(KEYS)}):).)*)", line):
                    found[key].append(value.replace("*/", "").strip())
        words = lambda key, default: (found[key][-1] if found[key] else default).split()  # noqa: E731
        self.modes, self.budgets = words("MODES", "direct monitor"), words("BUDGETS", "96M 160M")
        self.mappers, self.needs = words("MAPPERS", "move"), words("NEEDS", "")
        self.limit_s, self.cflags = int(words("LIMIT_S", "120")[0]), " ".join(found["CFLAGS"]).split()
        self.arguments = [[], *(shlex.split(line) for line in found["ARGS"])]
        expect = found["EXPECT"][-1] if found["EXPECT"] else "exit 0"
        self.status = int(re.search(r"exit (\d+)", expect)[1])
        last = re.search(r'last line "(.*?)"', expect)
        self.last = last[1] if last else None
        self.forbidden = [words for words in ("panicked", "fewer threads") if words not in found["MAY SAY"]]

    def ready(self, folder):
        """The command that runs the case, after what it needs was found or made. Raises Skip."""
        python = self.find_needs()
        if self.name.endswith(".c"):
            return [self.compile(folder)]
        return [python if self.name.endswith(".py") else need("bash", "bash"), self.path]

    def compile(self, folder):
        """Compiles a C program. Returns its path. Raises Skip without a compiler, RuntimeError with what it says."""
        need("gcc", "gcc")
        program = os.path.join(folder, self.name[:-2])
        command = ["gcc", "-O2", "-g", "-pthread", "-o", program, self.path, *self.cflags]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if made.returncode != 0:
            raise RuntimeError(f"gcc: {made.stderr[-800:]}")
        return program

    def find_needs(self):
        """Finds or installs what the case needs. Returns the Python to run it with. Raises Skip."""
        python = sys.executable
        for what in self.needs:
            kind, _, name = what.partition(":")
            if kind == "root" and os.geteuid() != 0:
                raise Skip("needs root")
            if kind == "move" and kernel_release() < MOVES_SINCE:
                raise Skip("this kernel has no UFFDIO_MOVE: io_uring and libaio are refused")
            if kind == "device" and not os.access(name, os.R_OK | os.W_OK):
                raise Skip(f"{name} is missing, or may not be used")
            if kind == "program":
                need(name, name)
            if kind == "package":
                install(name)
            if kind == "python":
                try:
                    python = python_with(name)
                except Missing as missing:
                    raise Skip(f"no {name} for Python: {missing}") from missing
        return python


def install(package):
    """Installs a package of Debian's that has no program to look for. Raises Skip."""
    if subprocess.run(["dpkg", "-s", package], capture_output=True, timeout=60).returncode == 0:
        return
    try:
        need(f"a program of {package}", package)
    except Skip:
        if subprocess.run(["dpkg", "-s", package], capture_output=True, timeout=60).returncode != 0:
            raise


def run(command, limit_s, folder):
    """Runs a command in its own process group. Returns (exit status or None if it ran too long, output, seconds)."""
    begun = time.monotonic()
    with open(os.path.join(folder, "stdout"), "w+b") as out, open(os.path.join(folder, "stderr"), "w+b") as err:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, start_new_session=True,
        )
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait(10)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return status, texts, time.monotonic() - begun


def complaint(case, outcome):
    """What is wrong with the outcome of a run; None if nothing is."""
    status, (out, err), _ = outcome
    if status is None:
        return f"killed after {case.limit_s} s"
    for words in case.forbidden:
        if words in out + err:
            return f"it says {words!r}"
    if status != case.status:
        return f"exit status {status}, {case.status} expected"
    last = (out.splitlines() or [""])[-1]
    if case.last is not None and last != case.last:
        return f"last line {last!r}, {case.last!r} expected"
    return None


def attempt(case, command, limit_s, label):
    """One run, and what it came to, printed at once. Returns whether it was right."""
    with tempfile.TemporaryDirectory(prefix="folioswap-case-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)
        try:
            outcome = run(command, limit_s, folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"FAIL {label}: {error}", flush=True)
            return False
    wrong = complaint(case, outcome)
    if wrong is None:
        print(f"PASS {label} ({outcome[2]:.1f} s)", flush=True)
        return True
    tail = [f"  {line[:300]}" for text in outcome[1] for line in text.splitlines()[-TAIL_LINES:]]
    print("\n".join([f"FAIL {label}: {wrong} ({outcome[2]:.1f} s)", *tail]), flush=True)
    return False


def try_case(case, folioswap, folder, pool):
    """Runs one case without folioswap, then hands its other runs to the pool. Returns their futures."""
    try:
        command = case.ready(folder)
    except Skip as reason:
        print(f"SKIP {case.name}: {reason}", flush=True)
        return []
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"FAIL {case.name}: {error}", flush=True)
        return [pool.submit(lambda: False)]
    runs = []
    for arguments in case.arguments:
        name = " ".join([case.name, *arguments])
        if not pool.submit(attempt, case, [*command, *arguments], case.limit_s, f"{name} alone").result():
            runs.append(pool.submit(lambda: False))
            continue
        for mode in case.modes:
            for budget in case.budgets:
                for mapper in case.mappers:
                    how = ["--memory", budget, "--faults", mode, "--mapper", mapper]
                    label = f"{name} {mode} {budget}" + ("" if case.mappers == ["move"] else f" {mapper}")
                    if (case.modes.index(mode) + case.budgets.index(budget)) % 2 == 0:
                        how, label = [*how, "--eager"], f"{label} eager"
                    ours = [folioswap, "run", *how, "--", *command, *arguments]
                    runs.append(pool.submit(attempt, case, ours, case.limit_s, label))
    return runs


def chosen(names):
    """The paths of the named cases, or of all."""
    files = [name for name in sorted(os.listdir(HERE)) if name.endswith((".c", ".sh", ".py")) and name != "run.py"]
    if not names:
        return [os.path.join(HERE, name) for name in files]
    paths = []
    for name in names:
        if os.sep in name:
            paths.append(os.path.abspath(name))
            continue
        found = [file for file in files if name in (file, os.path.splitext(file)[0])]
        if not found:
            raise SystemExit(f"FAIL {name}: there is no such case")
        paths += [os.path.join(HERE, file) for file in found]
    return paths


def main():
    """Runs the named cases, or all. Exit status 1 if one failed."""
    if len(sys.argv) < 2 or not shutil.which(sys.argv[1]):
        raise SystemExit("usage: run.py FOLIOSWAP [NAME...]")
    folioswap = os.path.abspath(shutil.which(sys.argv[1]))
    become_reaper()
    with tempfile.TemporaryDirectory(prefix="folioswap-cases-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            runs = [run for path in chosen(sys.argv[2:]) for run in try_case(Case(path), folioswap, folder, pool)]
            good = all([run.result() for run in runs])
        kill_remains()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
