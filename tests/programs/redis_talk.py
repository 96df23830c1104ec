"""Starts redis-server without saving, fills it with redis-cli, reads it back in random order, and shuts it down.

Usage: redis_talk.py NR_KEYS. Writes what it read to standard output, and exits with redis-server's status. The server
is a child of this process and inherits its environment, so that `folioswap run` manages it like any other program.
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


def talk(socket, folder, nr_keys):
    """Sets all keys, overwrites some, deletes some, then gets some in random order."""
    cli = ["timeout", "-k", "2", str(LIMIT_S), "redis-cli", "-s", socket]
    fill = os.path.join(folder, "fill")
    numbers = list(range(nr_keys))
    sets = ([b"SET", b"key:%d" % n, value(n)] for n in numbers)
    again = ([b"SET", b"key:%d" % n, value(n + 1)] for n in numbers[::7])
    gone = ([b"DEL", b"key:%d" % n] for n in numbers[::11])
    for batch in (sets, again, gone):
        command_lines(batch, fill)
        with open(fill, "rb") as file:
            subprocess.run([*cli, "--pipe"], stdin=file, stdout=subprocess.DEVNULL, check=True)
    random.Random(6).shuffle(numbers)
    gets = "".join(f"GET key:{n}\n" for n in numbers[: nr_keys // 20]).encode()
    sys.stdout.flush()
    subprocess.run([*cli], input=gets, check=True)
    subprocess.run([*cli, "DBSIZE"], stdin=subprocess.DEVNULL, check=True)
    subprocess.run([*cli, "SHUTDOWN", "NOSAVE"], stdin=subprocess.DEVNULL, check=False)


def main():
    """Waits until the server listens, talks to it, and waits for its end."""
    with tempfile.TemporaryDirectory(prefix="folioswap-redis-") as folder:
        socket = os.path.join(folder, "socket")
        command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
        server = subprocess.Popen([*command, "--dir", folder], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            deadline = time.monotonic() + 20
            while not os.path.exists(socket):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"redis-server did not start: {server.poll()}")
                time.sleep(0.05)
            talk(socket, folder, int(sys.argv[1]))
            return server.wait(20)
        finally:
            if server.poll() is None:
                server.kill()
                server.wait(5)


if __name__ == "__main__":
    sys.exit(main())
