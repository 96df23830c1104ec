"""Runs the steps of the test suite so that none of them can hang the run, and counts what they report.

Each step runs under timeout(1) in a session of its own, without input. It writes to a log file, never to a pipe of
ours. This process is the subreaper of all processes below it: what a step leaves behind is found by parentage and
killed. All waits here are bounded. Of other processes only /proc/PID/stat is read: cmdline and environ need the lock of
their address space, and a process stuck in a fault could block us.
"""

import ctypes
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

PR_SET_CHILD_SUBREAPER = 36
KILL_AFTER_S = 5
LOG_LIMIT_BYTES = 256 << 20
TAIL_LINES = 80
CLOSING_COLUMNS = 300
# No colours and no progress bars in the logs.
PLAIN = {"CARGO_TERM_COLOR": "never", "CARGO_TERM_PROGRESS_WHEN": "never", "NO_COLOR": "1", "TERM": "dumb"}


class Step:
    """One command with a time limit. `needs` lists the steps that must have passed before, `may_panic` the tests that
    provoke a panic though they are not marked with `should_panic`."""

    def __init__(self, name, command, limit_s, needs=(), env=None, may_panic=()):
        self.name, self.command, self.limit_s, self.needs, self.env = name, command, limit_s, needs, env or {}
        self.may_panic = may_panic


class Counts:
    """The results that one step reported."""

    def __init__(self, passed=0, failed=0, skips=(), failures=()):
        self.passed, self.failed, self.skips, self.failures = passed, failed, list(skips), list(failures)


def become_reaper():
    """Makes this process the subreaper: orphans below it become its children, whatever session they moved to."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants():
    """All descendants of this process, zombies included: (pid, command name, state)."""
    parent_of, about = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        state, parent = text[text.rindex(")") + 2 :].split()[:2]
        parent_of[int(entry)] = int(parent)
        about[int(entry)] = (name, state)
    found, me = [], os.getpid()
    for pid in parent_of:
        ancestor, hops = parent_of[pid], 0
        while ancestor in parent_of and ancestor != me and hops < 1000:
            ancestor, hops = parent_of[ancestor], hops + 1
        if ancestor == me:
            found.append((pid, *about[pid]))
    return found


def kill_remains(wait_s=5.0):
    """Kills and reaps every descendant. Returns the names of those that were alive at the start."""
    alive = [f"{name}[{pid}]" for pid, name, state in descendants() if state != "Z"]
    deadline = time.monotonic() + wait_s
    while True:
        left = descendants()
        for pid, _, state in left:
            if state != "Z":
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    stuck = [f"{name}[{pid}] in state {state}" for pid, name, state in descendants()]
    if stuck:
        print("  could not be killed: " + ", ".join(stuck), flush=True)
    return alive


def run_bounded(command, limit_s, log_path, cwd, env):
    """Runs `command` with output to `log_path`. Returns (exit status, or None if its time was up; leftovers)."""
    full = ["timeout", "-k", str(KILL_AFTER_S), str(limit_s), *command]
    with open(log_path, "wb") as log:
        child = subprocess.Popen(
            full, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, env=env, start_new_session=True
        )
    start = time.monotonic()
    deadline = start + limit_s + KILL_AFTER_S + 3
    status = None
    while time.monotonic() < deadline:
        status = child.poll()
        if status is not None:
            break
        if os.path.getsize(log_path) > LOG_LIMIT_BYTES:
            break
        time.sleep(0.05)
    leftovers = kill_remains()
    if status is None:
        child.poll()
    killed = status in (137, -signal.SIGKILL) and time.monotonic() - start >= limit_s
    over = status is None or status == 124 or killed
    return (None if over else status), leftovers if not over else []


def count(log_text, status):
    """Parses the counts of cargo test, and the PASS, FAIL and SKIP lines of this suite's own programs."""
    passed = failed = 0
    skips, failures, counted = [], [], False
    for line in log_text.splitlines():
        cargo = re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line)
        if cargo:
            counted = True
            passed += int(cargo[1])
            failed += int(cargo[2])
        elif line.startswith("PASS "):
            passed += 1
        elif line.startswith("FAIL "):
            failed += 1
            failures.append(line[5:])
        elif re.match(r"test .* \.\.\. FAILED$", line):
            failures.append(line[5:])
        elif re.match(r"SKIP\b", line):
            skips.append(line[4:].lstrip(": "))
        elif re.match(r"test .* \.\.\. ignored", line):
            skips.append(line[5:])
    if status == 0 and not counted and passed + failed + len(skips) == 0:
        passed = 1
    if status != 0 and failed == 0:
        failed = 1
    return Counts(passed, failed, skips, failures)


def panics(log_text, may_panic=()):
    """The lines of a log that tell of a panic, but for those in the output of tests that are to panic. A step with such
    a line has failed, whatever its exit status."""
    exempt = {*may_panic, *re.findall(r"^test (\S+) - should panic \.\.\. ok$", log_text, re.MULTILINE)}
    found, section = [], None
    for line in log_text.splitlines():
        begun = re.match(r"---- (\S+)(?: - should panic)? stdout ----$", line)
        if begun:
            section = begun[1]
        elif re.match(r"(successes|failures|test result):", line):
            section = None
        elif re.search(r"\bpanicked\b", line) and section not in exempt:
            found.append(line)
    return found


def tail(log_path):
    """The last lines of a log, indented to set them off from lines of ours."""
    with open(log_path, "rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - (64 << 10)))
        lines = log.read().decode("utf-8", "replace").splitlines()
    plain = ["  | " + re.sub(r"\x1b[\[(][0-9;]*[A-Za-z]", "", line) for line in lines[-TAIL_LINES:]]
    return [*plain, f"  (log: {log_path})"]


def cpu_seconds():
    """The CPU time of all children that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Run:
    """A run of steps within one time budget."""

    def __init__(self, root, log_dir, budget_s):
        self.root, self.log_dir = root, log_dir
        self.deadline = time.monotonic() + budget_s
        self.total = Counts()
        self.passed_steps = set()
        os.makedirs(log_dir, exist_ok=True)
        become_reaper()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.stop)

    def stop(self, number, _frame):
        """Handles a signal: kills what runs, prints the counts so far, and exits."""
        signal.signal(number, signal.SIG_IGN)
        kill_remains(2.0)
        print(f"ended by signal {number}")
        self.total.failed += 1
        self.close()
        os._exit(1)

    def step(self, step, known):
        """Runs one step, or says why it cannot, and adds its results. `known` has the names of this run's steps."""
        missing = [need for need in step.needs if need in known and need not in self.passed_steps]
        if missing:
            self.skip(step, f"needs {', '.join(missing)}, which did not pass")
            return
        left_s = int(self.deadline - time.monotonic())
        if left_s < 5:
            self.fail(step, "no time left in the whole run's budget")
            return
        limit_s = min(step.limit_s, left_s)
        log_path = os.path.join(self.log_dir, re.sub(r"[^a-z0-9]+", "-", step.name.lower()).strip("-") + ".log")
        start, before_s = time.monotonic(), cpu_seconds()
        try:
            status, leftovers = run_bounded(step.command, limit_s, log_path, self.root, {**os.environ, **PLAIN, **step.env})
        except OSError as error:
            self.fail(step, error)
            return
        took_s = time.monotonic() - start
        self.report(step, status, limit_s, (took_s, (cpu_seconds() - before_s) / took_s), log_path)
        if leftovers:
            print("  left behind and killed: " + ", ".join(leftovers), flush=True)

    def steps(self, steps, known, at_a_time):
        """Runs steps, begun in this order, some at a time. A step that needs another must come so much later that this
        one has ended. Each runs below one of several processes, which ends what the step leaves."""
        with ProcessPoolExecutor(at_a_time, multiprocessing.get_context("fork")) as pool:
            left, running = list(steps), set()
            while left or running:
                while left and len(running) < at_a_time:
                    running.add(pool.submit(self.apart, left.pop(0), known))
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for step in ended:
                    self.add(*step.result())

    def add(self, total, passed_steps):
        """Adds the results of a step that ran in another process."""
        self.total.passed += total.passed
        self.total.failed += total.failed
        self.total.skips += total.skips
        self.total.failures += total.failures
        self.passed_steps |= passed_steps

    def apart(self, step, known):
        """Runs a step in this process, a child. Returns its counts, and the names of all that have passed here."""
        become_reaper()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self.total = Counts()
        self.step(step, known)
        return self.total, self.passed_steps

    def report(self, step, status, limit_s, took, log_path):
        """Prints a line for a step, and the end of its log if it failed. `took`: seconds, and CPUs that were busy."""
        with open(log_path, encoding="utf-8", errors="replace") as log:
            text = log.read(LOG_LIMIT_BYTES)
        panicked = panics(text, step.may_panic)
        counts = count(text, (status or 1) if panicked else status)
        self.total.passed += counts.passed
        self.total.failed += counts.failed
        self.total.skips += counts.skips
        took = f"{took[0]:.1f} s, {took[1]:.1f} CPUs"
        what = f"{counts.passed} passed" + (f", {counts.failed} failed" if counts.failed else "")
        if counts.failed == 0:
            self.passed_steps.add(step.name)
            lines = [f"ok       {step.name}: {what} ({took})"]
        else:
            why = f"over its limit of {limit_s} s" if status is None else f"exit status {status}"
            why += f"; it says: {panicked[0].strip()}" if panicked else ""
            lines = [f"FAILED   {step.name}: {what}; {why} ({took})", *tail(log_path)]
            self.total.failures += [f"{step.name}: {failure}" for failure in counts.failures or [why]]
        lines += [f"  skipped: {reason}" for reason in counts.skips]
        print("\n".join(lines), flush=True)  # at once: another step may end, too

    def fail(self, step, reason):
        """Records a step that cannot be run."""
        self.total.failed += 1
        self.total.failures.append(f"{step.name}: {reason}")
        print(f"FAILED   {step.name}: {reason}", flush=True)

    def skip(self, step, reason):
        """Records a step that is not run."""
        self.total.skips.append(f"{step.name}: {reason}")
        print(f"skipped  {step.name}: {reason}", flush=True)

    def close(self):
        """Prints the closing lines; CI reads the last one. Returns the exit status."""
        for title, lines in (("skipped", self.total.skips), ("failed", self.total.failures)):
            if lines:
                print(f"\n{title}:")
            for line in lines:
                print(f"  {line[:CLOSING_COLUMNS]}")
        print(f"\n{self.total.passed} passed, {self.total.failed} failed, {len(self.total.skips)} skipped", flush=True)
        return 1 if self.total.failed or not self.total.passed else 0
