#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# Libraries with thread-local storage are loaded and unloaded while threads use managed memory, without and with an
# auditor of the loader (LD_AUDIT): then the loader asks for memory when a thread first looks for such storage.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > auditor.c <<'C'
#define _GNU_SOURCE
#include <link.h>
unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) { return LA_FLG_BINDTO | LA_FLG_BINDFROM; }
C
cat > library.c <<'C'
static __thread char storage[300000];
int use(int number) { for (int at = 0; at < 300000; at += 100) storage[at] = number; return storage[77700]; }
C
cat > program.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define BYTES (96ul << 20)
#define NR_LIBRARIES 40
static char *memory;
static volatile int is_over;
static void *sweep(void *start) {
    while (!is_over)
        for (size_t at = (size_t)start; at < BYTES && !is_over; at += 4096)
            if (memory[at] != 3) { puts("wrong: content"); exit(1); }
    return NULL;
}
static void *call(void *use) { return (void *)(long)((int (*)(int))use)(5); }
int main(void) {
    memory = malloc(BYTES);
    memset(memory, 3, BYTES);
    pthread_t sweepers[2], caller;
    for (long at = 0; at < 2; at++) pthread_create(&sweepers[at], NULL, sweep, (void *)(at * 100));
    for (int round = 0; round < 2; round++) {
        void *libraries[NR_LIBRARIES];
        for (int at = 0; at < NR_LIBRARIES; at++) {
            char name[64];
            snprintf(name, sizeof name, "./library%d.so", at);
            libraries[at] = dlopen(name, RTLD_NOW);
            if (!libraries[at]) { puts(dlerror()); return 1; }
            void *use = dlsym(libraries[at], "use"), *result;
            pthread_create(&caller, NULL, call, use);
            pthread_join(caller, &result);
            if ((long)result != 5 || ((int (*)(int))use)(at) != at) { puts("wrong: storage"); return 1; }
            free(malloc(100));
        }
        for (int at = 0; at < NR_LIBRARIES; at++) dlclose(libraries[at]);
    }
    is_over = 1;
    for (int at = 0; at < 2; at++) pthread_join(sweepers[at], NULL);
    puts("done");
    return 0;
}
C
gcc -shared -fPIC -o auditor.so auditor.c
gcc -shared -fPIC -o library0.so library.c
for number in $(seq 39); do cp library0.so library$number.so; done
gcc -O1 -o program program.c -ldl -pthread
[ "$(./program)" = done ]
[ "$(LD_AUDIT=./auditor.so ./program)" = done ]
echo ok
