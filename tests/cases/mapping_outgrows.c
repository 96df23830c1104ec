// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// A small mapping that mremap makes larger and larger, in place and elsewhere, stays within the budget.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define K (1ul << 10)
#define M (1ul << 20)
#define LARGEST (96 * M)
#define MOST_RESIDENT (56 * M)

static size_t resident(void) {
    size_t pages, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%zu %zu", &pages, &resident) != 2) exit(3);
    fclose(file);
    return resident * 4096;
}

static void check(const unsigned char *memory, size_t bytes, unsigned seed) {
    for (size_t at = 0; at < bytes; at += 4096) {
        if (memory[at] == (unsigned char)(at / 4096 * 7 + seed)) continue;
        printf("wrong byte at %zu of %zu\n", at, bytes);
        exit(1);
    }
}

/* Grows by half again and again, and shrinks once. */
static void grow(unsigned seed, int is_in_the_way) {
    size_t bytes = 64 * K;
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t filled = 0;
    int has_shrunk = 0;
    for (;;) {
        for (; filled < bytes; filled += 4096) memset(memory + filled, (int)(filled / 4096 * 7 + seed), 4096);
        if (bytes >= LARGEST) break;
        size_t wanted = (bytes + bytes / 2 + 4095) / 4096 * 4096;
        if (bytes > 20 * M && !has_shrunk) wanted = 3 * M, has_shrunk = 1;
        if (is_in_the_way) mmap(memory + bytes, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *moved = mremap(memory, bytes, wanted, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) {
            perror("mremap");
            exit(2);
        }
        memory = moved;
        bytes = wanted;
        if (filled > bytes) filled = bytes;
        check(memory, filled, seed);
    }
    check(memory, bytes, seed);
    if (getenv("FOLIOSWAP_DIR") || getenv("FOLIOSWAP") || getenv("LD_PRELOAD")) {
        if (resident() > MOST_RESIDENT) {
            printf("%zu MiB resident\n", resident() / M);
            exit(4);
        }
    }
    munmap(memory, bytes);
}

int main(void) {
    for (unsigned round = 0; round < 4; round++) grow(round, round % 2);
    puts("ok");
    return 0;
}
