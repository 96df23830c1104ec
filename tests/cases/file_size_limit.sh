#!/bin/bash
# EXPECT: exit 0, last line "255"
# A limit of file sizes (ulimit -f) set before the program starts is for the program's files, not for swap.
set -eu
ulimit -f 40960
python3 -c 'b = bytearray(range(256)) * (1 << 20); assert b[::4096] == bytes(1 << 16); print(b[-1])'
