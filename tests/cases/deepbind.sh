#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# Libraries that are opened with RTLD_DEEPBIND, which would find the C library's functions first: blocks go to and from
# them, they read into memory that is not in RAM, and they map. The caller of dlopen is still known: a library with a
# RUNPATH opens its neighbour by a bare name.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir apart

cat > library.c <<'C'
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
char *give(void) { return strcpy(malloc(100), "given"); }
void take(char *block) { free(block); }
long fill(int fd, void *at, long len) { return read(fd, at, len); }
char *map_over(char *at, long len) {
    return mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
C
cat > outer.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int open_neighbours(void) {
    return dlopen("neighbour.so", RTLD_NOW | RTLD_DEEPBIND) && dlopen("$ORIGIN/second.so", RTLD_NOW | RTLD_DEEPBIND) &&
           dlmopen(LM_ID_BASE, "third.so", RTLD_NOW | RTLD_DEEPBIND);
}
C
echo 'int number = 1;' > neighbour.c
cat > program.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#define BYTES (64l << 20)
#define CHECK(right) if (!(right)) return printf("line %d: %s\n", __LINE__, dlerror()), 1
static int try(void *library, char *memory) {
    CHECK(library);
    char *(*give)(void) = dlsym(library, "give");
    void (*take)(char *) = dlsym(library, "take");
    long (*fill)(int, void *, long) = dlsym(library, "fill");
    char *(*map_over)(char *, long) = dlsym(library, "map_over");
    for (long at = 0; at < BYTES; at += 4096) memory[at] = 1;
    free(give());
    take(malloc(100000));
    int fd = open("/proc/self/exe", O_RDONLY);
    CHECK(fill(fd, memory + 4096, 100) == 100 && memory[4097] == 'E');
    CHECK(map_over(memory + BYTES / 2, BYTES / 4) == memory + BYTES / 2);
    for (long at = 8192; at < BYTES; at += 4096)
        CHECK(memory[at] == (at < BYTES / 2 || at >= BYTES / 4 * 3));
    return 0;
}
int main(void) {
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(!try(dlopen("./library.so", RTLD_NOW | RTLD_DEEPBIND), memory));
    CHECK(!try(dlmopen(LM_ID_BASE, "./again.so", RTLD_LAZY | RTLD_DEEPBIND), memory));
    CHECK(!dlopen("neighbour.so", RTLD_NOW));
    void *outer = dlopen("apart/outer.so", RTLD_NOW);
    CHECK(outer);
    CHECK(((int (*)(void))dlsym(outer, "open_neighbours"))());
    puts("ok");
    return 0;
}
C
gcc -shared -fPIC -O1 -o library.so library.c
cp library.so again.so
for name in neighbour second third; do gcc -shared -fPIC -o apart/$name.so neighbour.c; done
gcc -shared -fPIC -O1 -Wl,--enable-new-dtags,-rpath,'$ORIGIN' -o apart/outer.so outer.c -ldl
gcc -O1 -o program program.c -ldl
./program
