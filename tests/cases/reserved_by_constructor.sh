#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 32M
# What a library's constructor reserves before this library's runs, and the program opens later, is limited.
set -e
cases=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > reserves.c <<'C'
#include <sys/mman.h>
char *reserved, *given_up;
__attribute__((constructor)) static void reserve(void) {
    reserved = mmap(0, 1ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    given_up = mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(given_up, 1 << 20);
}
C
cat > uses.c <<'C'
#define _GNU_SOURCE
#include <sys/mman.h>
#include "peak.h"
extern char *reserved, *given_up;
int main(void) {
    const size_t len = 160 << 20, part = 1 << 20;
    /* A file's pages, where something was reserved for a moment. */
    FILE *file = tmpfile();
    for (size_t at = 0; at < part; at++) fputc('f', file);
    fflush(file);
    char *mapped = mmap(given_up, part, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    if (mprotect(reserved, len, PROT_READ | PROT_WRITE) != 0) return perror("mprotect"), 1;
    if (mprotect(mapped, part, PROT_READ | PROT_WRITE) != 0) return perror("mprotect"), 1;
    for (size_t at = 0; at < len; at += 4096) *(size_t *)(reserved + at) = at;
    for (size_t at = 0; at < len; at += 4096)
        if (*(size_t *)(reserved + at) != at) return printf("%zu is wrong\n", at), 1;
    for (size_t at = 0; at < part; at++)
        if (mapped[at] != 'f') return puts("the file's pages are wrong"), 1;
    return say_peak(48);
}
C
gcc -O2 -shared -fPIC -o libreserves.so reserves.c
gcc -O2 -I"$cases" -o uses uses.c -L. -lreserves -Wl,-rpath,"$folder"
./uses
