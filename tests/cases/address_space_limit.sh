#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 32M
# A user's limit of addresses (ulimit -v) leaves the program room for its data, but for little more, or somebody says
# that it does not; or the program sets RLIMIT_AS or RLIMIT_DATA itself, and then what is too large fails as it should
# and the rest goes on.
set -eu
cat > limited.py <<'P'
import resource
import sys

MIB = 1 << 20


def made(number):
    """A block that differs from page to page."""
    block = bytearray(24 * MIB)
    for at in range(0, len(block), 4096):
        block[at : at + 8] = (number << 32 | at).to_bytes(8, "little")
    return block


blocks = [made(number) for number in range(6)]
kind = sys.argv[1]
if kind == "as":
    resource.setrlimit(resource.RLIMIT_AS, (320 * MIB, 320 * MIB))
elif kind == "more":
    with open("/proc/self/status", encoding="ascii") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + 100 * MIB, used + 100 * MIB))
elif kind == "data":
    with open("/proc/self/status", encoding="ascii") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + 100 * MIB, used + 100 * MIB))
try:
    too_large = bytearray(1 << 30)
    sys.exit(f"FAIL {kind}: a GiB is had in spite of the limit")
except MemoryError:
    pass
blocks.append(made(len(blocks)))
for number, block in enumerate(blocks):
    for at in range(0, len(block), 4096):
        if int.from_bytes(block[at : at + 8], "little") != number << 32 | at:
            sys.exit(f"FAIL {kind}: block {number} at {at}")
print("right")
P
for mib in 600 900; do
    [ "$(ulimit -v $((mib << 10)); exec python3 limited.py none)" = right ]
done
# With little more, it may lack addresses; then somebody says why.
for mib in 120 150 170 190 220 260; do
    said=$( (ulimit -v $((mib << 10)); exec python3 -c 'bytearray(24 << 20); print("right")') 2>&1 ) || case $said in
        *"limit of addresses"* | *"is not paged"*) ;;
        *) echo "FAIL $mib MiB of addresses: $said"; exit 1 ;;
    esac
done
[ "$(python3 limited.py as)" = right ]
[ "$(python3 limited.py more)" = right ]
[ "$(python3 limited.py data)" = right ]
for kib in 30000 45000 60000 80000 120000; do
    said=$( (ulimit -v $kib; exec sort /etc/passwd) 2> few.err | wc -l)
    [ "$said" = "$(wc -l < /etc/passwd)" ] || { echo "FAIL $kib KiB: $said lines, $(cat few.err)"; exit 1; }
done
echo ok
