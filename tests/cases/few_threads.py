# EXPECT: exit 0, last line "six at most"
# BUDGETS: 64M
# The engine's threads while memory is short: each kind counts once, because there are more of some on many CPUs or
# NUMA nodes.
import os

blocks = [bytearray(1 << 20) for _ in range(160)]
for _ in range(2):
    for block in blocks:
        for page in range(0, len(block), 4096):
            block[page] = 1
tasks = os.listdir("/proc/self/task")
names = [open(f"/proc/self/task/{task}/comm", encoding="ascii").read().strip() for task in tasks]
own = {name for name in names if name.startswith("folioswap-")}
print("six at most" if len(own) <= 6 else sorted(own))
