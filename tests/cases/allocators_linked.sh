#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# Programs that are linked with a library which has an allocator, only some functions of one, or functions that count
# calls and pass them on: none mixes the blocks of two allocators, and what is counted stays within the budget.
set -e
cases=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > some.c <<'C'
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { MARK = 0x12345678 };
static char *at;
static size_t *take(size_t alignment, size_t size) {
    static char lock;
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {}
    if (!at) at = mmap(0, 1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    at = (char *)(((size_t)at + 16 + alignment - 1) / alignment * alignment);
    size_t *block = (size_t *)at;
    block[-1] = size, block[-2] = MARK, at += size;
    __atomic_clear(&lock, __ATOMIC_RELEASE);
    return block;
}
void *malloc(size_t size) { return take(16, size); }
void *calloc(size_t count, size_t size) { return take(16, count * size); }
void free(void *block) {
    if (!block || ((size_t *)block)[-2] == MARK) return;
    write(2, "a block of another allocator\n", 29);
    _exit(3);
}
void *realloc(void *block, size_t size) {
    void *moved = take(16, size);
    if (block) memcpy(moved, block, ((size_t *)block)[-1] < size ? ((size_t *)block)[-1] : size);
    return moved;
}
int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = take(alignment, size);
    return 0;
}
int library;
C
cat > counts.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int library;
void *malloc(size_t size) {
    static void *(*next)(size_t);
    if (!next) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    library++;
    return next(size);
}
C
cat > uses.c <<'C'
#include <stdlib.h>
#include "peak.h"
extern int library;
enum { MOST_MIB = 48, NR_BLOCKS = 150000, LEN = 1000 };
int main(void) {
    static char *blocks[NR_BLOCKS];
    void *aligned;
    library++;
    if (posix_memalign(&aligned, 4096, 5000)) return 2;
    memset(aligned, 1, 5000);
    free(aligned);
    free(realloc(strdup("text"), 5000));
    for (int i = 0; i < NR_BLOCKS; i++) memset(blocks[i] = malloc(LEN), i, LEN);
    for (int i = 0; i < NR_BLOCKS; i++)
        if (blocks[i][LEN / 2] != (char)i) return printf("block %d\n", i), 1;
    return say_peak(MOST_MIB);
}
C
gcc -DONLY_ALLOCATOR -fno-builtin -shared -fPIC -O1 -I"$cases" "$cases/forked_thread_values.c" -o liball.so
gcc -DLINKED -fno-builtin -O1 -I"$cases" "$cases/forked_thread_values.c" -o values -Wl,--no-as-needed -L. -lall -Wl,-rpath,"$folder" -pthread
for kind in some counts; do
    gcc -fno-builtin -shared -fPIC -O1 $kind.c -o lib$kind.so
    gcc -O1 -I"$cases" uses.c -o uses_$kind -L. -l$kind -Wl,-rpath,"$folder"
    ./uses_$kind > out || { echo "FAIL $kind: $(cat out)"; exit 1; }
done
./values
