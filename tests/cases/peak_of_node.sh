#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 256M
# NEEDS: program:node
# 800 MiB of node's heap: what the process has in RAM stays near its budget.
set -eu
exec node --max-old-space-size=2000 - <<'P'
const MOST_MIB = 400;
const fs = require("fs");
const all = [];
for (let number = 0; number < 3_000_000; number++) {
  all.push({ number, values: new Array(30).fill(number), next: all[number - 1] });
}
const heapMib = process.memoryUsage().heapUsed / (1 << 20);
for (let number = 0; number < all.length; number += 7) {
  if (all[number].values[number % 30] !== number) throw new Error(`object ${number} is wrong`);
}
const peakMib = /VmHWM:\s*(\d+)/.exec(fs.readFileSync("/proc/self/status", "ascii"))[1] >> 10;
const isLimited = fs.readFileSync("/proc/self/maps", "ascii").includes("libfolioswap_preload");
if (heapMib < 800) throw new Error(`only ${heapMib} MiB`);
console.log(isLimited && peakMib > MOST_MIB ? `${peakMib} MiB in RAM` : "ok");
P
