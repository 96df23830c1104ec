// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Calls that succeed leave errno as it was, also the first ones of their kind.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int is_changed;

static void check(const char *what) {
    if (errno != EDOM) {
        printf("FAIL after %s: errno %d\n", what, errno);
        is_changed = 1;
    }
    errno = EDOM;
}

int main(void) {
    errno = EDOM;
    for (size_t size = 1; size < 64 << 20; size = size * 3 / 2 + 1) {
        char *block = malloc(size), *zeroed = calloc(1, size);
        check("malloc and calloc");
        if (!block || !zeroed) return 2;
        memset(block, 1, size);
        block = realloc(block, size * 2);
        check("realloc");
        void *aligned = aligned_alloc(4096, (size + 4095) & ~4095ul);
        check("aligned_alloc");
        if (!block || !aligned || block[size - 1] != 1) return 2;
        free(block), free(zeroed), free(aligned);
        check("free");
        char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return 2;
        memset(mapped, 2, size);
        check("mmap");
        if (madvise(mapped, size, MADV_DONTNEED) || mprotect(mapped, size, PROT_READ) || munmap(mapped, size)) return 2;
        check("madvise, mprotect and munmap");
    }
    printf(is_changed ? "FAIL\n" : "ok\n");
    return is_changed;
}
