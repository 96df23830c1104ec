#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# Functions of the C library that are found by a handle of it, as run times for other languages do: what they do with
# memory is known. Likewise a function of a library that calls the C library's own, a block from `__libc_malloc` and its
# kin, and what a library finds behind itself (RTLD_NEXT).
set -e
cases=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > counting.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
int nr_reads;
ssize_t read(int fd, void *buffer, size_t len) {
    static ssize_t (*next)(int, void *, size_t);
    if (!next) next = (ssize_t (*)(int, void *, size_t))dlsym(dlopen("libc.so.6", RTLD_NOW), "read");
    nr_reads++;
    return next(fd, buffer, len);
}
C
cat > use.c <<'C'
#include "cold.h"
#include <dlfcn.h>
#include <malloc.h>
void *__libc_malloc(size_t), *__libc_realloc(void *, size_t), __libc_free(void *);
static void *library;
#define FOUND(name) ((__typeof__(&name))dlsym(library, #name))
static void on_bus(int number) { (void)number; }
int use(int is_next) {
    library = is_next ? RTLD_NEXT : dlopen("libc.so.6", RTLD_NOW);
    CHECK(!dlsym(library, "no_such_function") && dlerror(), "no error");
    char *text = strdup("a text"), *content = __libc_malloc(100);
    FOUND(free)(text);
    for (size_t size = 10; size < 4 * MIB; size *= 20) {
        char *block = FOUND(malloc)(size);
        memset(block, 1, size);
        block = realloc(block, 2 * size);
        CHECK(malloc_usable_size(block) >= 2 * size && block[size - 1] == 1, "%zu bytes", size);
        FOUND(free)(block);
        free(FOUND(calloc)(size, 1));
    }
    strcpy(content, "content");
    CHECK(malloc_usable_size(content) >= 100, "no size");
    content = realloc(content, 2000);
    CHECK(strcmp(content, "content") == 0, "'%s'", content);
    free(content);
    __libc_free(strdup("another"));
    __libc_free(__libc_realloc(malloc(20), 5000));
    start_engine();
    char *memory = FOUND(mmap)(0, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(memory, 16 * MIB);
    send_out(memory, 16 * MIB);
    int zero = open("/dev/zero", O_RDONLY);
    for (int i = 0; i < 64; i++) CHECK(FOUND(read)(zero, memory + i * 64 * 1024, 8) == 8, "read %d", i);
    struct sigaction action = {.sa_handler = on_bus};
    CHECK(FOUND(sigaction)(SIGBUS, &action, NULL) == 0, "sigaction");
    for (size_t at = 0; at < 16 * MIB; at += PAGE)
        CHECK(*(uint64_t *)(memory + at) == (at % 65536 ? at + 1 : at < 4 * MIB ? 0 : at + 1), "at %zx", at);
    CHECK(FOUND(madvise)(memory, 8 * MIB, MADV_DONTNEED) == 0, "madvise");
    for (size_t at = 0; at < 8 * MIB; at += PAGE) CHECK(memory[at] == 0, "not empty at %zx", at);
    CHECK(FOUND(munmap)(memory, 16 * MIB) == 0, "munmap");
    memory = mmap(memory, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t at = 0; at < 16 * MIB; at += PAGE) CHECK(memory[at] == 0, "not new at %zx", at);
    DONE;
}
C
cat > by_handle.c <<'C'
#include <dlfcn.h>
int main(int count, char **unused) {
    (void)unused;
    void *library = dlopen("./libuse.so", RTLD_NOW);
    return !library || ((int (*)(int))dlsym(library, "use"))(count > 1);
}
C
cat > linked.c <<'C'
int use(int);
int main(void) { return use(1); }
C
cat > between.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
int nr_reads;
ssize_t read(int fd, void *buffer, size_t len) {
    static ssize_t (*next)(int, void *, size_t);
    if (!next) next = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    nr_reads++;
    return next(fd, buffer, len);
}
C
cat > counts.c <<'C'
#include "cold.h"
extern int nr_reads;
int main(void) {
    start_engine();
    char *memory = anonymous(4 * MIB);
    fill(memory, 4 * MIB);
    send_out(memory, 4 * MIB);
    int zero = open("/dev/zero", O_RDONLY);
    for (int i = 0; i < 64; i++) CHECK(read(zero, memory + i * 64 * 1024, 8) == 8, "read %d", i);
    CHECK(nr_reads >= 64, "only %d reads of the other library", nr_reads);
    DONE;
}
C
gcc -shared -fPIC -O1 -I"$cases" -o libuse.so use.c
gcc -O1 by_handle.c -o by_handle
gcc -O1 linked.c -o linked -L. -luse -Wl,-rpath,"$folder"
for program in ./by_handle "./by_handle next" ./linked; do
    $program > out || { echo "$program"; cat out; exit 1; }
done
for library in counting between; do
    gcc -shared -fPIC -O1 -o lib$library.so $library.c
    gcc -O1 -I"$cases" counts.c -o counts_$library -L. -l$library -Wl,-rpath,"$folder"
    ./counts_$library > out || { echo "$library"; cat out; exit 1; }
done
echo ok
