"""The program of the demo: creates and sorts float64 numbers with numpy and checks the result.

Usage: sort_work.py BYTES. It touches twice as many bytes: the numbers and their sorted copy. It does not depend on
folioswap. The last line of its output is a fingerprint of the sorted numbers, the same on every run.
"""

import hashlib
import sys
import time

import numpy as np

CHUNK = 1 << 21  # numbers that are checked at a time: 16 MiB


def fingerprint(array):
    """Sum and exclusive or over the bits of all numbers. It does not depend on their order."""
    total, mixed = 0, 0
    for at in range(0, array.size, CHUNK):
        bits = array[at : at + CHUNK].view(np.uint64)
        total = (total + int(bits.sum(dtype=np.uint64))) % 2**64
        mixed ^= int(np.bitwise_xor.reduce(bits))
    return f"{total:016x}{mixed:016x}"


def is_sorted(array):
    """Whether each number is at least as large as the previous one. Chunks overlap by one number."""
    return all(
        bool(np.all(part[:-1] <= part[1:])) for part in (array[at : at + CHUNK + 1] for at in range(0, array.size, CHUNK))
    )


def ordered_hash(array):
    """A hash that depends on the order."""
    hasher = hashlib.blake2b(digest_size=16)
    for at in range(0, array.size, CHUNK):
        hasher.update(array[at : at + CHUNK].data)
    return hasher.hexdigest()


def main():
    """Creates, sorts and checks the numbers. Prints a line of progress for each."""
    start = time.monotonic()

    def say(text):
        print(f"  {time.monotonic() - start:6.1f} s  {text}", flush=True)

    count = int(sys.argv[1]) // 8
    numbers = np.random.default_rng(7).random(count)
    say(f"made {count:,} numbers")
    before = fingerprint(numbers)
    ordered = np.sort(numbers)
    say("sorted a copy")
    good = is_sorted(ordered) and fingerprint(ordered) == before and fingerprint(numbers) == before
    say("checked: in order, and the same numbers" if good else "WRONG: not in order, or not the same numbers")
    print(f"fingerprint {ordered_hash(ordered)}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
