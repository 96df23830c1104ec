/* jemalloc over a pool: an arena whose extents are folioswap's. Needs libjemalloc-dev; link with -ljemalloc. */
#include <folioswap.h>
#include <jemalloc/jemalloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static folioswap *pool;

static void *extent_alloc(extent_hooks_t *hooks, void *addr, size_t size, size_t alignment, bool *zero, bool *commit,
                          unsigned arena) {
    (void)hooks, (void)arena;
    if (addr) /* folioswap chooses the address */
        return NULL;
    *commit = true;
    if (alignment > (2 << 20))
        return NULL;
    void *extent = *zero ? folioswap_calloc(pool, 1, size < (2 << 20) ? 2 << 20 : size)
                         : folioswap_aligned_alloc(pool, alignment, size < (2 << 20) ? 2 << 20 : size);
    return extent;
}

/* true: jemalloc keeps the extent and uses it again. */
static bool extent_dalloc(extent_hooks_t *hooks, void *addr, size_t size, bool committed, unsigned arena) {
    (void)hooks, (void)addr, (void)size, (void)committed, (void)arena;
    return true;
}

static bool extent_purge(extent_hooks_t *hooks, void *addr, size_t size, size_t offset, size_t length, unsigned arena) {
    (void)hooks, (void)size, (void)arena;
    return folioswap_advise(pool, (char *)addr + offset, length, FOLIOSWAP_DONTNEED) != 0;
}

int main(void) {
    static extent_hooks_t hooks = {.alloc = extent_alloc, .dalloc = extent_dalloc, .purge_forced = extent_purge};
    extent_hooks_t *ours = &hooks;
    folioswap_options options = FOLIOSWAP_OPTIONS;
    unsigned arena;
    size_t length = sizeof arena;
    char *blocks[3000];

    options.memory = 32 << 20;
    if (folioswap_open(&options, &pool)) {
        fprintf(stderr, "%s\n", folioswap_message());
        return 1;
    }
    if (mallctl("arenas.create", &arena, &length, &ours, sizeof ours))
        return 2;
    for (int i = 0; i < 3000; i++) {
        blocks[i] = mallocx((size_t)i * 20 + 1, MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE); /* 86 MiB together */
        memset(blocks[i], i, (size_t)i * 20 + 1);
    }
    for (int i = 0; i < 3000; i++) {
        for (int at = 0; at <= i * 20; at++)
            if (blocks[i][at] != (char)i)
                return 3;
        dallocx(blocks[i], MALLOCX_TCACHE_NONE);
    }
    puts("right");
    return 0;
}
