"""Does what daemons do with file descriptors at start, with more memory than the budget. Usage: daemon_work.py BYTES

Real programs make each of these steps: python-daemon and subprocess close all descriptors, shells and loggers dup their
files to numbers of their choice. The memory is hashed after each step.
"""

import hashlib
import os
import sys


def pattern(length):
    """Bytes that differ from page to page."""
    block = b"".join(number.to_bytes(8, "little") * 512 for number in range(1, 257))
    return bytearray(block * (length // len(block)))


def main():
    """Prints a hash after each step, and the content of the log at the end."""
    memory = pattern(int(sys.argv[1]))

    def check(step):
        print(f"{step}: {hashlib.blake2b(memory, digest_size=16).hexdigest()}", flush=True)
        for at in range(0, len(memory), 4096):
            memory[at] = memory[at] ^ 0xFF  # makes all of it dirty again

    check("filled")
    os.closerange(3, 100_000)
    check("after os.closerange")
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:
            try:
                os.close(number)
            except OSError:
                pass
    check("after closing what is listed")
    log = os.open("log", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    print(f"the log is {log}")
    for number in range(3, 64):
        os.dup2(log, number)
    check("after os.dup2")
    os.write(log, b"one line\n")
    check("at the end")
    with open("log", "rb") as file:
        print(file.read())


if __name__ == "__main__":
    main()
