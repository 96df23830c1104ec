#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# A library that is loaded at run time has much zeroed data, which the loader maps with its locks held. Another one
# allocates and starts a thread in its constructor, while the loader is locked.
set -e
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
cat > library.c <<'C'
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
char *block;
static void *fill(void *unused) { memset(block, 7, 64 << 20); return unused; }
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    block = malloc(64 << 20);
    if (!block || pthread_create(&thread, NULL, fill, NULL) || pthread_join(thread, NULL)) abort();
}
C
cat > zeros.c <<'C'
char zeros[64 << 20];
C
cat > program.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *first = dlopen("./zeros.so", RTLD_NOW);
    char *zeros = first ? dlsym(first, "zeros") : NULL;
    if (!zeros) return printf("FAIL %s\n", dlerror()), 1;
    for (long at = 0; at < 64 << 20; at += 1 << 20)
        if (zeros[at]++) return printf("FAIL zero %ld\n", at), 1;
    void *library = dlopen("./library.so", RTLD_NOW);
    char **block = library ? dlsym(library, "block") : NULL;
    if (!block) return printf("FAIL %s\n", dlerror()), 1;
    for (long at = 0; at < 64 << 20; at += 4096)
        if ((*block)[at] != 7) return printf("FAIL byte %ld\n", at), 1;
    printf("ok\n");
    return 0;
}
C
gcc -shared -fPIC -pthread -O1 -o library.so library.c
gcc -shared -fPIC -O1 -o zeros.so zeros.c
gcc -O1 -o program program.c -ldl
./program
