#!/usr/bin/env python3
"""Bad input and bad days: each must give one line that says why and an exit status, and leave nothing behind.

Usage: bad_days.py FOLIOSWAP. Prints PASS, FAIL and SKIP lines. It unmounts what it mounted on every exit.
"""

import glob
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 100
NOBODY = 65534
ROOT_NEEDED = "needs root"
TMPFS = "/dev/shm"
# From less than `run` needs for itself to more than most machines have.
ADDRESSES_MIB = (20, 72, 256, 512, 1024, 4096, 65536)
# The exit statuses of the command (`folioswap --help`) that are tested here.
FAILED, NOT_EXECUTABLE, NOT_FOUND, OUT_OF_MEMORY = 125, 126, 127, 70


# Uses its swap, drops all, fills the disk of this folder, and uses its swap again.
REFILL = """
import mmap, os, sys, time
memory = mmap.mmap(-1, 190 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
piece = os.urandom(1 << 20)
def fill():
    for at in range(0, len(memory), 1 << 20):
        memory[at:at + (1 << 20)] = piece
fill()
memory.madvise(mmap.MADV_DONTNEED)
time.sleep(2.5)
path = os.path.join(sys.argv[1], "hog")
with open(path, "wb", buffering=0) as hog:
    try:
        while hog.write(piece):
            pass
    except OSError:
        pass
fill()
print("right" if all(memory[at:at + (1 << 20)] == piece for at in range(0, len(memory), 1 << 20)) else "wrong")
os.unlink(path)
"""


class Leftovers:
    """Finds what a test left behind: new files, swaps, cgroups, loop devices and processes of ours."""

    def __init__(self, folders, bin_dir):
        self.folders, self.bin = folders, bin_dir
        self.before = self.now()

    def now(self):
        """The names of all that is there now."""
        found = set()
        for folder in self.folders:
            ours = folder.startswith(os.path.dirname(self.bin))
            found |= {os.path.join(folder, name) for name in os.listdir(folder) if ours or "folioswap" in name}
        with open("/proc/swaps", encoding="utf-8") as swaps:
            found |= {"swap on " + line.split()[0] for line in swaps.readlines()[1:]}
        for pattern in ("/sys/fs/cgroup/*folioswap*", "/sys/fs/cgroup/*/*folioswap*"):
            found |= set(glob.glob(pattern))
        for path in glob.glob("/sys/block/loop*/loop/backing_file"):
            with open(path, encoding="utf-8") as backing:
                found.add("loop device on " + backing.read().strip())
        for path in glob.glob("/proc/[0-9]*/exe"):
            try:
                program = os.readlink(path)
            except OSError:
                continue
            if program.startswith(self.bin):
                found.add(f"process {path.split('/')[2]} {os.path.basename(program)}")
        return found

    def new(self, wait_s=8.0):
        """What is there that was not there before. Waits a while for things that are being removed."""
        deadline = time.monotonic() + wait_s
        while True:
            new = sorted(self.now() - self.before)
            if not new or time.monotonic() > deadline:
                return new
            time.sleep(0.1)


class Suite:
    """The bad days, and what they share."""

    def __init__(self, folioswap, scratch):
        self.scratch = scratch
        self.swap_dir = os.path.join(scratch, "swap")
        self.bin = os.path.join(scratch, "bin")
        self.mounted = None
        self.failed = False
        os.makedirs(self.swap_dir)
        os.makedirs(self.bin)
        # A copy, because an ordinary user may not have access to the build directory.
        self.folioswap = shutil.copy(folioswap, self.bin)
        shutil.copy(os.path.join(os.path.dirname(folioswap), "libfolioswap_preload.so"), self.bin)
        self.fill = os.path.join(self.bin, "folioswap-fill")
        source = os.path.join(HERE, "programs", "fill.c")
        subprocess.run(["timeout", "30", "gcc", "-O2", "-o", self.fill, source], stdin=subprocess.DEVNULL, check=True)
        os.chmod(scratch, 0o755)
        self.leftovers = Leftovers([self.swap_dir, "/var/tmp", "/dev/shm"], self.bin)
        self.env = {**os.environ, "FOLIOSWAP_DIR": self.swap_dir}

    def say(self, name, wrong):
        """Prints one PASS or FAIL line. `wrong` is a list of complaints."""
        self.failed |= bool(wrong)
        print(f"FAIL {name}: {'; '.join(wrong)}" if wrong else f"PASS {name}", flush=True)

    def run(self, *arguments, user=None):
        """Runs folioswap with a time limit. Returns (exit status, standard output, standard error)."""
        prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        result = subprocess.run(
            ["timeout", "-k", "5", str(LIMIT_S), *prefix, self.folioswap, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=self.env,
        )
        if "panicked" in result.stderr:
            print(result.stderr, flush=True)  # and so this step fails
        return result.returncode, result.stdout, result.stderr

    def judge(self, status, errors, expected, reason):
        """Complaints about an end that should give one line with the reason and the expected status, and leave nothing behind."""
        wrong = []
        if status != expected:
            wrong.append(f"exit status {status}, not {expected}")
        lines = [line for line in errors.splitlines() if line.strip()]
        if len(lines) != 1:
            wrong.append(f"{len(lines)} lines on standard error: {' / '.join(lines)[:600]}")
        if reason not in errors:
            wrong.append(f"`{reason}` is not said")
        new = self.leftovers.new()
        if new:
            wrong.append("left behind: " + ", ".join(new))
        return wrong

    def refused(self, name, expected, reason, *options, program=None, user=None):
        """Checks that `folioswap run` refuses these options with the expected status and reason."""
        status, out, errors = self.run("run", *options, "--", *(program or [self.fill, "1"]), user=user)
        wrong = self.judge(status, errors, expected, reason)
        if "filled" in out:
            wrong.append("the program was started all the same")
        print(f"  {name}: {status}: {errors.strip()[:300]}")
        self.say(name, wrong)

    def bad_input(self):
        """Input that cannot work must be refused before the program starts."""
        self.refused("budget under 16M", FAILED, "at least 16M", "--memory", "8M")
        self.refused("unknown suffix", FAILED, "64Q", "--memory", "64Q")
        self.refused("swap path is a directory", FAILED, "is a directory", "--memory", "32M", "--swap", self.swap_dir)
        self.refused("program does not exist", NOT_FOUND, "was not found", "--memory", "32M", program=["/does/not/exist"])
        self.refused("program is a directory", NOT_EXECUTABLE, "is a directory", "--memory", "32M", program=["/etc"])
        unwritable = os.path.join(self.scratch, "unwritable")
        os.makedirs(unwritable, mode=0o555)
        user = NOBODY if os.geteuid() == 0 else None
        options = ["--memory", "32M", "--swap", os.path.join(unwritable, "swap")]
        self.refused("unwritable swap path", FAILED, "is not writable", *options, user=user)
        status, out, errors = self.run("run", "--memory", "32M", "--", self.fill, "64", user=user)
        wrong = [] if status == 0 else [f"exit status {status}: {errors[-300:]}"]
        if user and status != 0 and not os.access(self.swap_dir, os.W_OK):
            wrong.append("the swap folder is not writable")
        self.say("an ordinary user", wrong)

    def swap_in_tmpfs(self):
        """Swap in tmpfs is RAM outside of the budget, whoever names it."""
        kind = subprocess.run(["stat", "-f", "-c", "%T", TMPFS], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if kind.stdout.strip() != "tmpfs":
            print(f"SKIP swap in tmpfs: {TMPFS} is none here")
            return
        path = os.path.join(TMPFS, f"folioswap-test-{os.getpid()}")
        for name, device in (("", path), (" with a size", f"{path}:64M")):
            options = ["--memory", "32M", "--swap", device]
            self.refused(f"swap path in tmpfs{name}", FAILED, "lies on tmpfs", *options, program=[self.fill, "64"])
        self.env["FOLIOSWAP_DIR"] = TMPFS
        self.refused("swap folder in tmpfs", FAILED, "lies on tmpfs", "--memory", "32M", program=[self.fill, "64"])
        self.env["FOLIOSWAP_DIR"] = self.swap_dir

    def few_addresses(self):
        """Limits of addresses (ulimit -v) on `run` itself: the program runs, or one sentence says why it cannot."""
        script = 'ulimit -v "$1" && shift && exec "$@"'
        for mib, mode in itertools.product(ADDRESSES_MIB, ("direct", "monitor")):
            command = [self.folioswap, "run", "--memory", "32M", "--faults", mode, "--", self.fill, "48"]
            result = subprocess.run(
                ["timeout", "-k", "5", str(LIMIT_S), "bash", "-c", script, "-", str(mib << 10), *command],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=self.env,
            )
            if result.returncode == 0 and "0 bad words" in result.stdout:
                wrong = [f"left behind: {name}" for name in self.leftovers.new()]
            else:
                wrong = self.judge(result.returncode, result.stderr, FAILED, "folioswap: ")
            wrong += [f"it says {words!r}" for words in ("panicked", "memory allocation of") if words in result.stderr]
            self.say(f"{mib} MiB of addresses, {mode}: exit status {result.returncode}", wrong)

    def small_disk(self):
        """A small ext4 that has too little space: before the start, and in the middle."""
        if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
            print(f"SKIP small disk: {ROOT_NEEDED} and mkfs.ext4, to mount one")
            return
        image, folder = os.path.join(self.scratch, "disk.img"), os.path.join(self.scratch, "disk")
        os.makedirs(folder)
        with open(image, "wb") as file:
            file.truncate(260 << 20)
        for command in (["mkfs.ext4", "-q", "-F", "-m", "0", image], ["mount", "-o", "loop", image, folder]):
            result = subprocess.run(["timeout", "30", *command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if result.returncode != 0:
                print(f"SKIP small disk: {' '.join(command)}: {result.stderr.strip()}")
                return
        self.mounted = folder
        self.leftovers = Leftovers([*self.leftovers.folders, folder], self.bin)
        options = ["--memory", "32M", "--swap", os.path.join(folder, "swap") + ":4G"]
        self.refused("disk too small", FAILED, "are wanted", *options)
        self.remove(os.path.join(folder, "swap"))
        self.env["FOLIOSWAP_DIR"] = folder
        status, out, errors = self.run("run", "--memory", "32M", "--", self.fill, "96")
        wrong = [] if status == 0 and "0 bad words" in out else [f"exit status {status}: {errors[-400:]}"]
        self.say("a small disk that suffices", wrong + self.leftovers.new())
        swap = os.path.join(folder, "swap") + ":200M"
        program = [sys.executable, "-c", REFILL, folder]
        status, out, errors = self.run("run", "--memory", "32M", "--swap", swap, "--", *program)
        wrong = [] if (status, out) == (0, "right\n") else [f"exit status {status}: {out}{errors[-400:]}"]
        self.say("reserved space is kept while it is not used", wrong + self.leftovers.new())
        status, out, errors = self.run("run", "--memory", "32M", "--", self.fill, "400")
        print(f"  disk full: {status}: {errors.strip()[:400]}")
        self.say("disk full in the middle", self.judge(status, errors, OUT_OF_MEMORY, "out of memory"))
        self.env["FOLIOSWAP_DIR"] = self.swap_dir

    def remove(self, path):
        """Removes a file if it exists."""
        if os.path.exists(path):
            os.unlink(path)

    def until(self, condition, wait_s):
        """Waits for a condition. Returns whether it was met in time."""
        deadline = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def started(self, *arguments):
        """Starts folioswap in a session of its own. Returns the child and the path of its output file."""
        log_path = os.path.join(self.scratch, "started.log")
        with open(log_path, "wb") as log:
            child = subprocess.Popen(
                ["timeout", "-k", "5", str(2 * LIMIT_S), self.folioswap, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True,
            )
        return child, log_path

    def folioswap_below(self, timeout_pid):
        """The pid of the folioswap that this timeout(1) started."""
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path, encoding="utf-8", errors="replace") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == timeout_pid:
                return int(path.split("/")[2])
        return None

    def ended_by(self, name, number, arguments, ready, expected):
        """Starts folioswap, waits for `ready(log)`, signals folioswap alone, and checks that nothing is left behind."""
        child, log_path = self.started(*arguments)

        def log():
            with open(log_path, encoding="utf-8", errors="replace") as file:
                return file.read()

        wrong = []
        try:
            if not self.until(lambda: ready(log()) or child.poll() is not None, LIMIT_S) or child.poll() is not None:
                wrong.append(f"did not get going: {child.poll()}: {log()[-400:]}")
            else:
                os.kill(self.folioswap_below(child.pid) or child.pid, number)
                try:
                    status = child.wait(LIMIT_S)
                    if status not in expected:
                        wrong.append(f"exit status {status}, not {expected}: {log()[-400:]}")
                except subprocess.TimeoutExpired:
                    wrong.append("does not end")
        finally:
            new = self.leftovers.new()
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                pass
        self.say(name, wrong + [f"left behind: {', '.join(new)}"] * bool(new))

    def killed(self):
        """kill -9, SIGTERM and Ctrl-C in `run`; kill -9 and Ctrl-C in a comparison with kernel swap."""
        fill = ["run", "--memory", "32M", "--", self.fill, "96", "hold"]
        filled = re.compile(r"^filled", re.M).search
        # timeout(1) ends by the signal that has ended its child, or with a status that names it.
        self.ended_by("kill -9 of run", signal.SIGKILL, fill, filled, (137, -9))
        self.ended_by("SIGTERM to run", signal.SIGTERM, fill, filled, (143, -15))
        self.ended_by("Ctrl-C in run", signal.SIGINT, fill, filled, (130, -2))
        if os.geteuid() != 0:
            print(f"SKIP kill -9 and Ctrl-C in the comparison with the kernel's swap: {ROOT_NEEDED}")
            return
        with open("/proc/swaps", encoding="utf-8") as swaps:
            if swaps.read().count("\n") > 1:
                print("SKIP kill -9 and Ctrl-C in the comparison with the kernel's swap: other swap is on, see /proc/swaps")
                return
        bench = ["bench", "sweep", "--size", "512M", "--memory", "64M", "--threads", "1", "--rounds", "20"]
        bench += ["--read-rounds", "1", "--versus", "kernel"]

        def cgroup(_log):
            return any("/sys/fs/cgroup" in name for name in self.leftovers.now() - self.leftovers.before)

        self.ended_by("Ctrl-C in the comparison with the kernel's swap", signal.SIGINT, bench, cgroup, (130,))
        self.ended_by("kill -9 of the comparison with the kernel's swap", signal.SIGKILL, bench, cgroup, (137, -9))

    def undo(self):
        """Undoes mounts and whatever a killed comparison left, in any case."""
        new = self.leftovers.now() - self.leftovers.before
        for name in new:
            if name.startswith("process "):
                try:
                    os.kill(int(name.split()[1]), signal.SIGKILL)
                except OSError:
                    pass
        for name in new:
            if name.startswith("swap on "):
                subprocess.run(["timeout", "20", "swapoff", name[8:]], stdin=subprocess.DEVNULL)
        for name in sorted(new, reverse=True):
            if name.startswith("/sys/fs/cgroup"):
                self.until(lambda: not os.path.isdir(name) or self.try_rmdir(name), 3)
        if self.mounted:
            for command in (["umount", self.mounted], ["umount", "-l", self.mounted]):
                if subprocess.run(["timeout", "20", *command], stdin=subprocess.DEVNULL).returncode == 0:
                    break

    def try_rmdir(self, path):
        """Removes an empty cgroup. Returns whether it is gone."""
        try:
            os.rmdir(path)
            return True
        except OSError:
            return False


def main():
    """Runs all bad days. Undoes the set-up on every exit."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    scratch = tempfile.mkdtemp(prefix="folioswap-bad-", dir="/var/tmp")
    suite = None
    try:
        suite = Suite(os.path.abspath(sys.argv[1]), scratch)
        os.chmod(suite.swap_dir, 0o777)
        suite.bad_input()
        suite.swap_in_tmpfs()
        suite.few_addresses()
        suite.small_disk()
        suite.killed()
        return 1 if suite.failed else 0
    finally:
        if suite:
            suite.undo()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
