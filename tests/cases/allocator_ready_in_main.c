// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A program's own allocator is not ready before main has begun, as that of GCL, in which maxima runs. Nobody asks it
// for memory earlier.
#include <stddef.h>
#include <stdio.h>
#include <string.h>
static int is_ready, nr_early;
static char room[1 << 20] __attribute__((aligned(16)));
static size_t used;
void *malloc(size_t len) {
    if (!is_ready) nr_early++;
    len = (len + 31) & ~15ul;
    if (used + len > sizeof room) return NULL;
    char *block = room + used + 16;
    *(size_t *)(block - 16) = len - 16;
    used += len;
    return block;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t len) {
    void *block = malloc(count * len);
    return block ? memset(block, 0, count * len) : NULL;
}
void *realloc(void *block, size_t len) {
    void *other = malloc(len);
    size_t before = block ? ((size_t *)block)[-2] : 0;
    return block && other ? memcpy(other, block, before < len ? before : len) : other;
}
int main(void) {
    is_ready = 1;
    if (nr_early) printf("%d requests before main\n", nr_early);
    puts(nr_early ? "FAIL" : "ok");
    return nr_early != 0;
}
