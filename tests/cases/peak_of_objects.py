# EXPECT: exit 0, last line "ok"
# BUDGETS: 256M
# 3 million strings in a dict, in arenas of 1 MiB: what the process has in RAM stays near its budget.
import re

MOST_MIB = 330
strings = {number: f"the string of number {number}" for number in range(3_000_000)}
if any(strings[number] != f"the string of number {number}" for number in range(0, 3_000_000, 7)):
    raise SystemExit("wrong")
with open("/proc/self/status", encoding="ascii") as status, open("/proc/self/maps", encoding="utf-8") as maps:
    peak_mib = int(re.search(r"VmHWM:\s*(\d+)", status.read())[1]) >> 10
    is_limited = "libfolioswap_preload" in maps.read()
print(f"{peak_mib} MiB in RAM" if is_limited and peak_mib > MOST_MIB else "ok")
