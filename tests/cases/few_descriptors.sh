#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 96M
# A program that may open few files needs more memory than its budget.
set -eu
for limit in 14 17 20; do
    [ "$(ulimit -n $limit; perl -e 'print length(q(a) x (150 << 20))')" = 157286400 ]
done
echo ok
