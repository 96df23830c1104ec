#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M 64M
# NEEDS: program:make program:gcc
# A build: make has two compilers at work, each of them starts others, and the link starts the compiler again. Few of
# these processes are large. What was built then runs by way of a shell, env, nice, timeout and xargs.
set -eu
python3 - <<'P'
import random

random.seed(3)
TABLES, ENTRIES = 2, 30_000
total = 0
for table in range(TABLES):
    numbers = [random.getrandbits(32) for _ in range(ENTRIES)]
    total += sum(number * (place + 1) + len(f"entry {number:x}") for place, number in enumerate(numbers))
    with open(f"table{table}.c", "w") as file:
        file.write('#include "entry.h"\nconst struct entry table%d[] = {\n' % table)
        file.writelines('{"entry %x", %uu},\n' % (number, number) for number in numbers)
        file.write("};\n")
with open("entry.h", "w") as file:
    file.write("struct entry { const char *name; unsigned number; };\n")
    file.writelines(f"extern const struct entry table{table}[{ENTRIES}];\n" for table in range(TABLES))
with open("main.c", "w") as file:
    file.write('#include <stdio.h>\n#include <string.h>\n#include "entry.h"\nint main(void) {\nunsigned long total = 0;\n')
    for table in range(TABLES):
        file.write(f"for (unsigned long at = 0; at < {ENTRIES}; at++)\n")
        file.write(f"total += table{table}[at].number * (at + 1) + strlen(table{table}[at].name);\n")
    file.write('printf("%lu\\n", total);\n}\n')
with open("wanted", "w") as file:
    file.write(f"{total % (1 << 64)}\n")
with open("Makefile", "w") as file:
    file.write("program: main.o table0.o table1.o\n\t$(CC) -O1 -flto -o $@ $^\n")
    file.write("%.o: %.c entry.h\n\t$(CC) -O1 -flto -ffat-lto-objects -c -o $@ $<\n")
P
make -s -j2 program
wanted=$(cat wanted)
[ "$(sh -c 'exec ./program')" = "$wanted" ]
[ "$(env KEPT=1 nice -n 1 timeout 60 ./program)" = "$wanted" ]
[ "$(echo ./program | xargs -I{} sh -c '{}')" = "$wanted" ]
echo ok
