/* The malloc family with several times the budget: content, alignment, zeroing, growing, threads. */
#include "check.h"
#include <malloc.h>

#define BLOCKS 1000

struct block {
    void *at;
    size_t len;
    uint64_t seed;
};

static size_t some_len(unsigned *random) {
    unsigned kind = rand_r(random) % 100;
    if (kind < 70)
        return rand_r(random) % 2000 + 1;
    if (kind < 97)
        return rand_r(random) % 100000 + 1;
    if (kind < 99)
        return rand_r(random) % (2 * MIB) + 1;
    return rand_r(random) % (12 * MIB) + 1;
}

static void *churn(void *argument) {
    unsigned random = (unsigned)(uintptr_t)argument;
    struct block *blocks = calloc(BLOCKS, sizeof *blocks);
    size_t total = 0;
    for (int step = 0; step < 2500; step++) {
        struct block *block = &blocks[rand_r(&random) % BLOCKS];
        if (block->at) {
            CHECK(holds(block->at, block->len, block->seed));
            total -= block->len;
        }
        switch (rand_r(&random) % 4) {
        case 0: {
            size_t len = some_len(&random), kept = block->len < len ? block->len : len;
            block->at = realloc(block->at, len);
            CHECK(block->at && holds(block->at, kept, block->seed));
            block->len = len;
            break;
        }
        case 1:
            free(block->at);
            block->len = some_len(&random);
            block->at = calloc(1, block->len);
            CHECK(block->at && is_zero(block->at, block->len));
            break;
        case 2: {
            size_t align = (size_t)16 << rand_r(&random) % 18;
            free(block->at);
            block->len = some_len(&random);
            CHECK(posix_memalign(&block->at, align, block->len) == 0);
            CHECK((uintptr_t)block->at % align == 0);
            break;
        }
        default:
            free(block->at);
            block->len = some_len(&random);
            block->at = malloc(block->len);
            CHECK(block->at && (uintptr_t)block->at % 16 == 0);
        }
        CHECK(malloc_usable_size(block->at) >= block->len);
        block->seed = random;
        fill(block->at, block->len, block->seed);
        total += block->len;
        while (total > 20 * MIB) {
            struct block *victim = &blocks[rand_r(&random) % BLOCKS];
            total -= victim->len;
            free(victim->at);
            *victim = (struct block){0};
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(holds(blocks[i].at, blocks[i].len, blocks[i].seed));
        free(blocks[i].at);
    }
    free(blocks);
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    churn((void *)99);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    /* One block that grows to several times the budget, like a vector. */
    size_t len = MIB;
    char *vector = malloc(len);
    fill(vector, len, 5);
    while (len < 64 * MIB) {
        vector = realloc(vector, len * 3 / 2 / 8 * 8);
        CHECK(vector && holds(vector, len, 5));
        len = len * 3 / 2 / 8 * 8;
        fill(vector, len, 5);
    }
    vector = realloc(vector, 3 * MIB);
    CHECK(holds(vector, 3 * MIB, 5));
    free(vector);

    volatile size_t most = SIZE_MAX / 2;
    CHECK(malloc(most) == NULL && errno == ENOMEM);
    volatile size_t much = (size_t)1 << 40;
    CHECK(calloc(much, much) == NULL && errno == ENOMEM);
    void *none = malloc(0);
    CHECK(none);
    free(none);
    free(NULL);
    return 0;
}
