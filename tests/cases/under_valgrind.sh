#!/bin/bash
# EXPECT: exit 0, last line "ok"
# NEEDS: program:valgrind
# A valgrind that is started inside of run, and that has few addresses to give: the program runs, managed or not.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
cat > program.c <<'C'
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    size_t count = 8 << 20;
    long *numbers = malloc(count * sizeof *numbers);
    for (size_t at = 0; at < count; at += 512) numbers[at] = at;
    for (size_t at = 0; at < count; at += 512)
        if (numbers[at] != (long)at) return printf("wrong: %zu\n", at), 1;
    free(numbers);
    puts("ok");
}
C
gcc -g -O1 -o program program.c && valgrind -q --error-exitcode=3 ./program
