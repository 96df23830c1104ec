#!/bin/bash
# A shell script that redirects and closes descriptors of its own choice, with a variable larger than the budget.
# (Its children exec at once. A forked child cannot use memory that is swapped out, until it executes a program.)
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
