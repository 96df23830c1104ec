#!/bin/bash
# A shell script that redirects and closes numbers of its own choice, with a variable larger than the budget.
# (What it forks executes at once: a child that goes on with memory that is out is not supported yet.)
set -u
text=$(seq 1 4000000)
echo "${#text} characters"
exec 3>log 4>&3 7>&3 8>&4
echo "first line" >&7
exec 9<<<"$text"
cksum <&9
for number in {3..64}; do
    eval "exec $number>&-"
done
exec 9<<<"$text"
cksum <&9
for number in {3..32}; do
    eval "exec $number>>log"
done
text=$text$text
echo "last line" >&20
exec 9<<<"$text"
cksum <&9
cat log
