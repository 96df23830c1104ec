/* Mappings that are much larger than all RAM are managed as they are touched. */
#include "check.h"

#define TIB ((size_t)1 << 40)

static void *map_sparse(size_t len) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void ends(char *at, size_t len) {
    CHECK(at != MAP_FAILED);
    fill(at, MIB, 5);
    fill(at + len - MIB, MIB, 6);
    CHECK(holds(at, MIB, 5) && holds(at + len - MIB, MIB, 6) && is_zero(at + len / 2, MIB));
}

int main(void) {
    /* With strict overcommit the kernel refuses this mapping, with and without the library. */
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    if (file && fgetc(file) == '2') {
        puts("SKIP: vm.overcommit_memory=2");
        return 0;
    }
    char *large = map_sparse(3 * TIB);
    ends(large, 3 * TIB);
    char *first = map_sparse(TIB * 5 / 8), *second = map_sparse(TIB * 5 / 8);
    ends(first, TIB * 5 / 8);
    ends(second, TIB * 5 / 8);
    char *grown = map_sparse(8 * MIB);
    fill(grown, 8 * MIB, 7);
    CHECK(mremap(grown, 8 * MIB, TIB, 0) == MAP_FAILED && errno == ENOMEM);
    grown = mremap(grown, 8 * MIB, TIB, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED && holds(grown, 8 * MIB, 7) && is_zero(grown + 8 * MIB, 8 * MIB));
    /* A length that no system has is refused as before. */
    CHECK(map_sparse((size_t)1 << 62) == MAP_FAILED && errno == ENOMEM);
    CHECK(munmap(grown, TIB) == 0 && munmap(first, TIB * 5 / 8) == 0 && munmap(second, TIB * 5 / 8) == 0);
    CHECK(munmap(large, 3 * TIB) == 0);
    ends(map(64 * MIB), 64 * MIB);
    return 0;
}
