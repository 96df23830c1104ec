"""Starts redis-server, fills it with redis-cli, and has it saved by forked children (BGSAVE, BGREWRITEAOF) while keys
change. Reads it back in random order, shuts it down, and reads what was saved in a second server.

Usage: redis_talk.py NR_KEYS. Writes what it read to standard output, and exits with redis-server's status. The servers
are children of this process and inherit its environment, so that `folioswap run` manages them like any other program.
"""

import os
import random
import subprocess
import sys
import tempfile
import time

LIMIT_S = 200


def command_lines(commands, path):
    """Writes commands in redis's protocol, the input format of `redis-cli --pipe`."""
    with open(path, "wb") as file:
        for words in commands:
            file.write(b"*%d\r\n" % len(words))
            for word in words:
                file.write(b"$%d\r\n%s\r\n" % (len(word), word))


def value(number):
    """A value of 64 to 1087 letters that differs from key to key."""
    return (b"%016x" % (number * 0x9E3779B97F4A7C15 % (1 << 64))) * (4 + number * 7919 % 65)


def wait_for_save(cli, running, status):
    """Waits until a save by a child has ended, and prints how."""
    while True:
        info = subprocess.run([*cli, "INFO", "persistence"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
        fields = dict(line.split(":", 1) for line in info.stdout.decode().splitlines() if ":" in line)
        if fields[running] == "0":
            print(status, fields[status], flush=True)
            return
        time.sleep(0.1)


def call(cli, *words):
    """A command to the server, whose answer is printed."""
    sys.stdout.flush()
    subprocess.run([*cli, *words], stdin=subprocess.DEVNULL, check=True)


def read_back(cli, numbers):
    """Gets keys."""
    gets = "".join(f"GET key:{n}\n" for n in numbers).encode()
    sys.stdout.flush()
    subprocess.run([*cli], input=gets, check=True)
    call(cli, "DBSIZE")


def fill(cli, folder, commands):
    """Sends many commands."""
    path = os.path.join(folder, "fill")
    command_lines(commands, path)
    with open(path, "rb") as file:
        subprocess.run([*cli, "--pipe"], stdin=file, stdout=subprocess.DEVNULL, check=True)


def talk(cli, folder, nr_keys):
    """Sets all keys. While they are saved, overwrites some and deletes some. Then gets some in random order."""
    numbers = list(range(nr_keys))
    fill(cli, folder, ([b"SET", b"key:%d" % n, value(n)] for n in numbers))
    call(cli, "BGSAVE")
    fill(cli, folder, ([b"SET", b"key:%d" % n, value(n + 1)] for n in numbers[::7]))
    wait_for_save(cli, "rdb_bgsave_in_progress", "rdb_last_bgsave_status")
    call(cli, "BGREWRITEAOF")
    fill(cli, folder, ([b"DEL", b"key:%d" % n] for n in numbers[::11]))
    wait_for_save(cli, "aof_rewrite_in_progress", "aof_last_bgrewrite_status")
    random.Random(6).shuffle(numbers)
    read_back(cli, numbers[: nr_keys // 20])


def with_server(folder, work):
    """Starts a server on what is saved in a folder, works with it, and returns its exit status."""
    socket = os.path.join(folder, "socket")
    command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([*command, "--dir", folder], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    cli = ["timeout", "-k", "2", str(LIMIT_S), "redis-cli", "-s", socket]
    try:
        deadline = time.monotonic() + 60
        ping = [*cli, "PING"]
        while subprocess.run(ping, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout != b"PONG\n":
            if server.poll() is not None or time.monotonic() > deadline:
                print("redis-server does not answer", file=sys.stderr)
                return server.poll() or 1
            time.sleep(0.05)
        work(cli)
        subprocess.run([*cli, "SHUTDOWN", "NOSAVE"], stdin=subprocess.DEVNULL, check=False)
        return server.wait(LIMIT_S)
    finally:
        if server.poll() is None:
            server.kill()


def main():
    """Talks to a server, and then to one that has what the first one saved."""
    nr_keys = int(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="folioswap-redis-") as folder:
        status = with_server(folder, lambda cli: talk(cli, folder, nr_keys))
        if status:
            return status
        saved = list(range(0, nr_keys, 20))
        return with_server(folder, lambda cli: read_back(cli, saved))


if __name__ == "__main__":
    sys.exit(main())
