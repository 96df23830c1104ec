#!/usr/bin/env python3
"""One sweep over four times its budget, with the given fault delivery and mapping. No word may be wrong.

The share of huge pages is printed but not checked, because the kernel may have none free. `bench sweep` measures it.

Usage: sweep.py FOLIOSWAP direct|monitor move|copy
"""

import json
import os
import subprocess
import sys
import tempfile

LIMIT_S = 200
OVER_BUDGET_LIMIT_BYTES = 32 << 20


def main():
    """Runs the sweep and checks its measures."""
    folioswap, faults, mapping = sys.argv[1:]
    name = f"sweep {faults} {mapping}"
    with tempfile.TemporaryDirectory(prefix="folioswap-sweep-") as folder:
        report = os.path.join(folder, "sweep.json")
        command = ["timeout", "-k", "5", str(LIMIT_S), folioswap, "bench", "sweep", "--size", "512M", "--memory", "128M"]
        command += ["--threads", "4", "--rounds", "2", "--read-rounds", "1", "--faults", faults, "--mapper", mapping]
        result = subprocess.run([*command, "--json", report], stdin=subprocess.DEVNULL, timeout=LIMIT_S + 10)
        if result.returncode != 0:
            print(f"FAIL {name}: exit status {result.returncode}")
            return 1
        with open(report, encoding="utf-8") as file:
            measures = json.load(file)["measures"]
    print(json.dumps(measures, indent=1))
    wrong = []
    if measures["bad_words"] != 0:
        wrong.append(f"{measures['bad_words']} words were wrong")
    if measures["over_budget_bytes"] >= OVER_BUDGET_LIMIT_BYTES:
        wrong.append(f"{measures['over_budget_bytes']} bytes over the budget")
    if wrong:
        print(f"FAIL {name}: {'; '.join(wrong)}")
        return 1
    print(f"PASS {name}: huge_share {measures['huge_share']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
