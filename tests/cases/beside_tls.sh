#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 16M
# Memory that a library's constructor maps directly beside the main thread's thread-local storage is limited. The
# storage itself stays in RAM: the kernel writes there whenever it delivers a signal (rseq).
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > beside.c <<'C'
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
char *beside = MAP_FAILED;
unsigned long beside_bytes;
static char *map(unsigned long at, unsigned long len) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    return (char *)syscall(SYS_mmap, at, beside_bytes = len, PROT_READ | PROT_WRITE, flags, -1, 0);
}
__attribute__((constructor)) static void begin(void) {
    unsigned long thread, start = 0, end = 0;
    char line[300];
    FILE *maps = fopen("/proc/self/maps", "r");
    __asm__("mov %%fs:0, %0" : "=r"(thread));
    while (fgets(line, sizeof line, maps) && sscanf(line, "%lx-%lx", &start, &end) == 2 && end <= thread)
        ;
    fclose(maps);
    for (unsigned long len = 4 << 20; len >= 1040 << 10 && beside == MAP_FAILED; len -= 4096)
        if ((beside = map(start - len, len)) == MAP_FAILED)
            beside = map(end, len);
}
C
cat > main.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
extern char *beside;
extern unsigned long beside_bytes;
int main(void) {
    unsigned long len = 64ul << 20, wrong = 0;
    if (beside == MAP_FAILED)
        return 9; // there is no gap
    memset(beside, 7, beside_bytes);
    char *memory = calloc(len, 1);
    for (int round = 1; round <= 8; round++)
        for (unsigned long at = 0; at < len; at += 4096)
            wrong += memory[at]++ != round - 1;
    for (unsigned long at = 0; at < beside_bytes; at++)
        wrong += beside[at] != 7;
    return wrong != 0;
}
C
gcc -shared -fPIC -O1 -o libbeside.so beside.c
gcc -O1 -o main main.c -L. -lbeside -Wl,-rpath,"$PWD"
found=0
for ((turn = 0; turn < 200 && found < 8; turn++)); do
    status=0
    ./main || status=$?
    ((status == 9)) && continue
    ((status == 0)) || { echo "status $status"; exit 1; }
    found=$((found + 1))
done
((found > 0)) || echo "no gap beside the storage in $turn turns"
echo ok
