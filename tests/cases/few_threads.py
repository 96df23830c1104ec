# EXPECT: exit 0, last line "few"
# BUDGETS: 64M
# The engine's threads while memory is short: one of each kind, six at most, but a reclaim thread for each NUMA node and
# a monitor for every so many CPUs.
import collections
import ctypes
import glob
import os

CPUS_PER_MONITOR, MOST_MONITORS, MONITORS_WITHOUT_RINGS = 4, 4, 8
IO_URING_SETUP = 425


def monitors():
    """How many monitors there may be: more where reads block them, for lack of io_uring."""
    ring = ctypes.CDLL(None).syscall(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))
    if ring < 0:
        return MONITORS_WITHOUT_RINGS
    os.close(ring)
    return min(-(-len(os.sched_getaffinity(0)) // CPUS_PER_MONITOR), MOST_MONITORS)


blocks = [bytearray(1 << 20) for _ in range(160)]
for _ in range(2):
    for block in blocks:
        for page in range(0, len(block), 4096):
            block[page] = 1
threads = collections.Counter()
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm", encoding="ascii") as file:
        threads[file.read().strip()] += 1
own = {name: number for name, number in threads.items() if name.startswith("folioswap-")}
# The kernel cuts a name to 15 characters.
most = {"folioswap-recla": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or 1, "folioswap-monit": monitors()}
too_many = {name: number for name, number in own.items() if number > most.get(name, 1)}
print("few" if len(own) <= 6 and not too_many else sorted(own.items()))
