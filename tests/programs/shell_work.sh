#!/bin/bash
# A shell script that redirects and closes numbers of its own choice, with a variable larger than the budget.
set -u
text=$(seq 1 4000000)
echo "${#text} characters"
exec 3>log 4>&3 7>&3 8>&4
echo "first line" >&7
printf '%s' "$text" | cksum
for number in {3..64}; do
    eval "exec $number>&-"
done
printf '%s' "$text" | cksum
for number in {3..32}; do
    eval "exec $number>>log"
done
text=$text$text
echo "last line" >&20
printf '%s' "$text" | cksum
cat log
