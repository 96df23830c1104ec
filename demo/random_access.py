#!/usr/bin/env python3
"""Programs with random access to 1.5 times their budget of data, compared with kernel swap.

Usage: random_access.py FOLIOSWAP [--memory SIZE] [--repeats N] [--only redis|sort] [--no-kernel] [--json FILE]

redis: operations per second of redis-benchmark. It gets uniformly random keys from a redis-server that does not save
and has values of 1 KiB. sort: seconds that GNU sort takes for random lines, all in memory. Both systems take turns
(A B A B) with the same data on the same disk. `redis_vs_kernel` and `sort_vs_kernel` are medians of the ratios of
matching turns, above 1 if folioswap is faster. Results are checked. The kernel's turn needs root, for a memory cgroup
and a swap file.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

DATA_PER_BUDGET = 1.5
LIMIT_S = 900  # for any single step of a turn
KERNEL_SWAP_PER_BUDGET = 4

VALUE_BYTES = 1024
FILL_BATCH = 1000
CHECKED_KEYS = 2000
CLIENTS = 4
FIRST_REQUESTS = 5000  # for a first estimate of the rate

LINE_BYTES = 17  # 16 letters and the newline
# What GNU sort (9.1, two threads) was seen to use per line, besides the line itself: a record of 32 bytes, and nearly
# as much to merge.
LINE_RECORD_BYTES = 60


class Skip(Exception):
    """Why something cannot be measured here."""


class Failed(Exception):
    """Why a turn gave no figure."""


def size_bytes(text):
    """Parses a size such as 512M or 1G."""
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)


def need(program, package):
    """The path of a program. Raises Skip if it is missing."""
    path = shutil.which(program)
    if not path:
        raise Skip(f"{program} is missing. Get it: apt-get install {package}")
    return path


def stop(child):
    """Ends a child and waits for it. The folioswap command forwards the signal and undoes its set-up."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(10)


class System:
    """One of the compared systems: what it puts before a program's own command line."""

    def __init__(self, name, prefix, env):
        self.name, self.prefix, self.env = name, prefix, env

    def start(self, command, folder, **streams):
        """Starts a program with its standard error in a file in the folder."""
        with open(os.path.join(folder, "messages"), "wb") as messages:
            return subprocess.Popen(
                [*self.prefix, "--", *command], stdin=subprocess.DEVNULL, stderr=messages, env=self.env, **streams
            )


def systems(chosen):
    """folioswap, and kernel swap if it is available."""
    folioswap, env = os.path.abspath(chosen.folioswap), dict(os.environ)
    if chosen.swap_dir:
        env["FOLIOSWAP_DIR"] = os.path.abspath(chosen.swap_dir)
    run = [folioswap, "run", "--memory", chosen.memory, "--folio", chosen.folio, "--swap-in", chosen.swap_in, "--faults", chosen.faults]
    found = [System("folioswap", run, env)]
    if chosen.no_kernel:
        print("The kernel's swap is left out, as asked.")
    elif os.geteuid() != 0:
        print("The kernel's swap is left out: a memory cgroup and a swap file need root.")
    else:
        swap = ["--swap-size", str(KERNEL_SWAP_PER_BUDGET * size_bytes(chosen.memory))]
        # Without this option, both use the same default directory.
        swap += ["--swap-dir", env["FOLIOSWAP_DIR"]] if chosen.swap_dir else []
        found.append(System("kernel", [folioswap, "__kernel", "--memory", chosen.memory, *swap], env))
    return found


def last_words(folder):
    """The end of a program's standard error."""
    with open(os.path.join(folder, "messages"), encoding="utf-8", errors="replace") as file:
        return file.read()[-400:].strip() or "it said nothing"


class Redis:
    """A connection with the part of redis's protocol that is needed here."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb")

    def close(self):
        """Closes the connection."""
        self.replies.close()
        self.socket.close()

    def send(self, *commands):
        """Sends commands, each a list of bytes objects. One reply follows for each."""
        text = []
        for words in commands:
            text.append(b"*%d\r\n" % len(words))
            text += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(text))

    def reply(self):
        """Reads one reply: bytes, or None for a missing key."""
        line = self.replies.readline()
        if line[:1] in (b"+", b":"):
            return line[1:-2]
        if line[:1] == b"$":
            length = int(line[1:])
            return None if length < 0 else self.replies.read(length + 2)[:-2]
        raise Failed(f"redis-server answered {line!r}")

    def used_bytes(self):
        """The memory that redis-server reports as used."""
        self.send([b"INFO", b"memory"])
        for line in self.reply().splitlines():
            if line.startswith(b"used_memory:"):
                return int(line.split(b":")[1])
        raise Failed("redis-server does not say how much memory it uses")


def key(number):
    """A key in the format of redis-benchmark."""
    return b"key:%012d" % number


def value(number):
    """1 KiB that differs from key to key."""
    return (b"%016x" % (number * 0x9E3779B97F4A7C15 % (1 << 64))) * (VALUE_BYTES // 16)


def connected(path, server, folder):
    """Connects to a server that was just started."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return Redis(path)
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"redis-server did not start: {last_words(folder)}") from None
            time.sleep(0.05)


def fill(redis, data_bytes, nr_keys):
    """Sets `nr_keys` keys, or if that is 0, keys until they take `data_bytes`. Returns the number of keys."""
    done = 0
    while done < nr_keys if nr_keys else redis.used_bytes() < data_bytes:
        redis.send(*([b"SET", key(number), value(number)] for number in range(done, done + FILL_BATCH)))
        for _ in range(FILL_BATCH):
            redis.reply()
        done += FILL_BATCH
    return done


def rate_of(path, nr_keys, nr_requests):
    """Operations per second of one call of redis-benchmark."""
    command = ["redis-benchmark", "-s", path, "-c", str(CLIENTS), "-n", str(nr_requests), "-r", str(nr_keys), "-t", "get", "--csv"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    rates = [line.split(",")[1].strip('"') for line in result.stdout.splitlines() if line.startswith('"GET')]
    if result.returncode != 0 or not rates:
        raise Failed(f"redis-benchmark: {(result.stderr or result.stdout)[-400:].strip()}")
    return float(rates[0])


def get_at_random(path, nr_keys, seconds):
    """Operations per second, after a warm-up of a fifth of the time. Only one call is counted: several calls could use
    the same keys, if their times and process ids happen to give the same seed."""
    rate = rate_of(path, nr_keys, FIRST_REQUESTS)
    rate = rate_of(path, nr_keys, int(rate * seconds / 5) + 1)
    return rate_of(path, nr_keys, int(rate * seconds) + 1)


def check_values(redis, nr_keys):
    """Checks random keys. Raises Failed if one does not have the value that was set."""
    rng = random.Random(11)
    for _ in range(CHECKED_KEYS):
        number = rng.randrange(nr_keys)
        redis.send([b"GET", key(number)])
        if redis.reply() != value(number):
            raise Failed(f"{key(number).decode()} holds what was not set")


class RedisWork:
    """redis-server and redis-benchmark."""

    name, unit, more_is_better = "redis", "ops/s", True

    def __init__(self, chosen, _folder):
        self.server = need("redis-server", "redis-server")
        need("redis-benchmark", "redis-tools")
        self.data_bytes, self.seconds = int(size_bytes(chosen.memory) * DATA_PER_BUDGET), chosen.seconds
        self.nr_keys = 0

    def turn(self, system, folder):
        """Runs a turn. Returns operations per second."""
        path = os.path.join(folder, "socket")
        command = [self.server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", folder]
        server = system.start(command, folder, stdout=subprocess.DEVNULL)
        try:
            redis = connected(path, server, folder)
            self.nr_keys = fill(redis, self.data_bytes, self.nr_keys)
            rate = get_at_random(path, self.nr_keys, self.seconds)
            check_values(redis, self.nr_keys)
            redis.send([b"SHUTDOWN", b"NOSAVE"])
            redis.close()
            if server.wait(120) != 0:
                raise Failed(f"exit status {server.returncode}: {last_words(folder)}")
            return rate
        except OSError as error:
            raise Failed(f"{error}: {last_words(folder)}") from error
        finally:
            stop(server)


class SortWork:
    """GNU sort, all in memory."""

    name, unit, more_is_better = "sort", "s", False

    def __init__(self, chosen, folder):
        self.sort = need("sort", "coreutils")
        data_bytes = int(size_bytes(chosen.memory) * DATA_PER_BUDGET)
        self.lines, self.buffer_bytes = os.path.join(folder, "lines"), 2 * data_bytes
        self.digest = None
        left, rng = data_bytes // (LINE_BYTES + LINE_RECORD_BYTES), random.Random(3)
        with open(self.lines, "wb") as file:
            while left > 0:
                count = min(left, 1 << 16)
                letters = rng.randbytes(count * 8).hex().encode()
                file.write(b"".join(letters[at : at + 16] + b"\n" for at in range(0, len(letters), 16)))
                left -= count

    def turn(self, system, folder):
        """Runs a turn. Returns seconds."""
        # This folder does not exist. A sort that does not fit in memory fails instead of writing temporary files.
        nowhere = os.path.join(folder, "nowhere")
        command = ["env", "LC_ALL=C", self.sort, "-S", f"{self.buffer_bytes}b", "-T", nowhere, "--parallel=2", self.lines]
        hasher, begin = hashlib.blake2b(digest_size=16), time.monotonic()
        child = system.start(command, folder, stdout=subprocess.PIPE)
        watch = threading.Timer(LIMIT_S, child.terminate)
        try:
            watch.start()
            while chunk := child.stdout.read(1 << 20):
                hasher.update(chunk)
            child.wait(120)
            took_s = time.monotonic() - begin
        finally:
            watch.cancel()
            child.stdout.close()
            stop(child)
        if child.returncode != 0:
            raise Failed(f"exit status {child.returncode}: {last_words(folder)}")
        self.digest = self.digest or hasher.hexdigest()
        if hasher.hexdigest() != self.digest:
            raise Failed("the lines came out in another order, or others")
        return took_s


def one_turn(work, system, repeat):
    """The figure of one turn. A turn under kernel swap is tried twice: the kernel may kill a program in a small cgroup
    before its swap is full."""
    for last in (system.name != "kernel", True):
        with tempfile.TemporaryDirectory(prefix="folioswap-random-") as folder:
            try:
                figure = work.turn(system, folder)
                print(f"{work.name:<8} {system.name:<10} {repeat:>4} {figure:>12.1f} {work.unit}", flush=True)
                return figure
            except (Failed, subprocess.TimeoutExpired) as reason:
                print(f"{work.name:<8} {system.name:<10} {repeat:>4}       failed: {reason}", flush=True)
                if last:
                    return None
    return None


def measure(work, all_systems, repeats, rows):
    """Runs all turns of a program. Returns its measures, and whether every turn of folioswap gave a figure."""
    figures = {system.name: [] for system in all_systems}
    for repeat in range(1, repeats + 1):
        for system in all_systems:
            figure = one_turn(work, system, repeat)
            figures[system.name].append(figure)
            rows.append({"program": work.name, "system": system.name, "run": repeat, "figure": figure, "unit": work.unit})
    measures = {}
    for name, taken in figures.items():
        if any(taken):
            unit = "ops" if work.more_is_better else "seconds"
            measures[f"{work.name}_{name}_{unit}"] = statistics.median(figure for figure in taken if figure)
    pairs = [(ours, theirs) for ours, theirs in zip(figures["folioswap"], figures.get("kernel", [])) if ours and theirs]
    if pairs:
        ratios = [ours / theirs if work.more_is_better else theirs / ours for ours, theirs in pairs]
        measures[f"{work.name}_vs_kernel"] = statistics.median(ratios)
    return measures, all(figures["folioswap"])


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folioswap")
    parser.add_argument("--memory", default="256M", help="budget (default 256M)")
    parser.add_argument("--repeats", type=int, default=2, help="times that both take their turns (default 2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long redis-benchmark runs in a turn (default 10)")
    parser.add_argument("--only", choices=["redis", "sort"], action="append", help="only this program, repeatable")
    parser.add_argument("--no-kernel", action="store_true", help="leave the kernel's turns out")
    parser.add_argument("--swap-dir", help="where both swap (default $FOLIOSWAP_DIR, else /var/tmp)")
    parser.add_argument("--folio", default="auto", help="as of `folioswap run` (default auto)")
    parser.add_argument("--swap-in", default="always", help="as of `folioswap run` (default always)")
    parser.add_argument("--faults", default="auto", help="as of `folioswap run` (default auto)")
    parser.add_argument("--json", help="write the figures to this file too")
    chosen = parser.parse_args()
    if not os.access(chosen.folioswap, os.X_OK):
        parser.error(f"{chosen.folioswap} is no program. Get it: make build")
    return chosen


def main():
    """Runs all turns, prints a table and the measures. Exit status 1 if folioswap failed or nothing was measured."""
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows, measures, good = [], {}, True
    all_systems = systems(chosen)
    print(f"{'program':<8} {'system':<10} {'run':>4} {'figure':>12}", flush=True)
    with tempfile.TemporaryDirectory(prefix="folioswap-random-", dir="/var/tmp") as folder:
        for make in (RedisWork, SortWork):
            if chosen.only and make.name not in chosen.only:
                continue
            try:
                taken, complete = measure(make(chosen, folder), all_systems, chosen.repeats, rows)
                measures.update(taken)
                good = good and complete
            except Skip as reason:
                print(f"SKIP {make.name}: {reason}", flush=True)
    print()
    for name, number in measures.items():
        print(f"{name:<24} {number:.3f}")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "random_access", "memory": chosen.memory, "measures": measures, "rows": rows}, file, indent=1)
            file.write("\n")
    return 0 if good and measures else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
