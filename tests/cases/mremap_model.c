// RUN: gcc -O2 -g -pthread -o mremap_model mremap_model.c && ./mremap_model    EXPECT: exit 0
// BUDGETS: 16M
// LIMIT_S: 200
/* Memory calls at random, above all mremap with all of its flags, on 40 MiB of addresses whose pages a model knows: the
   number that each holds, its protection, and the mapping that it belongs to. After each call the pages that it concerned
   are compared, and from time to time all of them. Arguments: the first seed, how many seeds, calls a seed. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define PAGES 10240
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { FREE, NONE, READ, WRITE };
static struct page {
    uint64_t number;
    unsigned mapping, offset; /* which mmap made it, and which of its pages it was */
    unsigned char access, is_locked;
} model[PAGES];
static char *base;
static uint64_t state, seed;
static unsigned nr_mappings;
static long nr_call;
static const char *what;

static uint64_t any(uint64_t below) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) % below;
}

static void fail(const char *why, size_t page) {
    printf("FAIL seed %lu call %ld (%s): %s, page %zu, errno %s\n", seed, nr_call, what, why, page, strerror(errno));
    exit(1);
}

static void check(size_t first, size_t nr) {
    for (size_t page = first; page < first + nr && page < PAGES; page++) {
        if (model[page].access < READ)
            continue;
        uint64_t *at = (uint64_t *)(base + page * PAGE), wanted = model[page].number;
        if (at[0] != wanted || at[511] != wanted * 7) {
            printf("%lx, should be %lx\n", at[0], wanted);
            fail("wrong content", page);
        }
    }
}

static void put(size_t page, uint64_t number) {
    uint64_t *at = (uint64_t *)(base + page * PAGE);
    at[0] = number, at[511] = number * 7;
    model[page].number = number;
}

/* A page number, often on a border of 64 KiB or 2 MiB or next to one. */
static size_t some_page(void) {
    size_t page = any(PAGES), unit = (size_t[]){1, 16, 512, 512}[any(4)];
    page = page / unit * unit;
    if (any(4) == 0)
        page += any(3) - 1;
    return page % PAGES;
}

static size_t some_length(void) {
    size_t nr = (size_t[]){1, 1, 1 + any(16), 16 * (1 + any(4)), 512, 512 * (1 + any(3)), 1 + any(1200)}[any(7)];
    return nr + (any(6) == 0);
}

static int is_uniform(size_t first, size_t nr) {
    for (size_t i = 0; i < nr; i++)
        if (model[first + i].access == FREE || model[first + i].mapping != model[first].mapping ||
            model[first + i].offset != model[first].offset + i || model[first + i].access != model[first].access ||
            model[first + i].is_locked != model[first].is_locked)
            return 0;
    return 1;
}

static int all(size_t first, size_t nr, int is_free) {
    for (size_t i = 0; i < nr; i++)
        if ((model[first + i].access == FREE) != is_free)
            return 0;
    return 1;
}

static void clear(size_t first, size_t nr) { memset(model + first, 0, nr * sizeof *model); }

static void map_new(size_t first, size_t nr) {
    int access = any(8) ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mmap(base + first * PAGE, nr * PAGE, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        fail("mmap failed", first);
    nr_mappings++;
    for (size_t i = 0; i < nr; i++)
        model[first + i] = (struct page){0, nr_mappings, i, access ? WRITE : NONE, 0};
    for (size_t i = 0; access && i < nr; i += 1 + any(3))
        put(first + i, 1 + any(UINT32_MAX));
}

/* After a call that failed: the kernel may have unmapped the target. */
static void look_again(size_t first, size_t nr) {
    unsigned char present;
    for (size_t i = first; i < first + nr && i < PAGES; i++)
        if (model[i].access != FREE && mincore(base + i * PAGE, PAGE, &present))
            clear(i, 1);
}

static void grown(size_t first, size_t old_nr, size_t new_nr) {
    for (size_t i = old_nr; i < new_nr; i++) {
        model[first + i] = model[first + old_nr - 1];
        model[first + i].number = 0;
        model[first + i].offset = model[first + old_nr - 1].offset + (i - old_nr + 1);
    }
}

static void in_place(size_t from, size_t old_nr, size_t new_nr) {
    what = "mremap in place";
    void *at = mremap(base + from * PAGE, old_nr * PAGE, new_nr * PAGE, 0);
    if (at == MAP_FAILED) {
        int may_grow = from + new_nr <= PAGES && new_nr > old_nr && all(from + old_nr, new_nr - old_nr, 1);
        if (is_uniform(from, old_nr) && (new_nr <= old_nr || (may_grow && errno != ENOMEM)))
            fail("refused", from);
        look_again(from, old_nr);
    } else if (new_nr <= old_nr) {
        clear(from + new_nr, old_nr - new_nr);
    } else {
        if (from + new_nr > PAGES)
            fail("grew beyond the end", from);
        grown(from, old_nr, new_nr);
    }
    check(from, new_nr < old_nr ? new_nr : old_nr);
}

static void to_target(size_t from, size_t old_nr, size_t new_nr, size_t to) {
    int stays = any(4) == 0 && old_nr == new_nr, flags = MREMAP_MAYMOVE | MREMAP_FIXED | (stays ? MREMAP_DONTUNMAP : 0);
    int overlap = from < to + new_nr && to < from + old_nr;
    what = stays ? "mremap fixed dontunmap" : "mremap fixed";
    static struct page moved[PAGES];
    size_t kept = old_nr < new_nr ? old_nr : new_nr;
    int uniform = is_uniform(from, old_nr);
    void *at = mremap(base + from * PAGE, old_nr * PAGE, new_nr * PAGE, flags, base + to * PAGE);
    if (at == MAP_FAILED) {
        if (!overlap && uniform)
            fail("refused", from);
        /* Before Linux 6.17 the kernel looks for the mapping first. */
        if (overlap && errno != EINVAL && !(errno == EFAULT && model[from].access == FREE))
            fail("overlap is not EINVAL", from);
        look_again(to, new_nr);
        look_again(from, old_nr);
    } else {
        if (overlap)
            fail("overlap is accepted", from);
        memcpy(moved, model + from, kept * sizeof *moved);
        if (stays)
            for (size_t i = 0; i < old_nr; i++)
                model[from + i].number = 0, model[from + i].is_locked = 0;
        else
            clear(from, old_nr);
        for (size_t i = 0; i < kept; i++)
            if (moved[i].access != FREE) /* what is at the target of a gap stays */
                model[to + i] = moved[i];
        grown(to, kept, new_nr);
    }
    check(to, new_nr);
    check(from, old_nr);
}

static void anywhere(size_t from, size_t nr) {
    what = "mremap there and back";
    size_t more = any(2) ? any(700) : 0;
    if (!is_uniform(from, nr) || model[from].is_locked)
        return;
    char *at = mremap(base + from * PAGE, nr * PAGE, (nr + more) * PAGE, MREMAP_MAYMOVE);
    if (at == MAP_FAILED)
        fail("refused", from);
    if (at == base + from * PAGE) { /* grew in place */
        if (from + nr + more > PAGES)
            fail("grew beyond the end", from);
        grown(from, nr, nr + more);
        return;
    }
    if (model[from].access >= READ)
        for (size_t i = 0; i < nr + more; i++)
            if (*(uint64_t *)(at + i * PAGE) != (i < nr ? model[from + i].number : 0))
                fail("wrong content elsewhere", from + i);
    if (mremap(at, (nr + more) * PAGE, nr * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + from * PAGE) == MAP_FAILED)
        fail("way back refused", from);
    check(from, nr);
}

static void one_call(void) {
    size_t from = some_page(), old_nr = some_length(), new_nr = any(3) ? old_nr : some_length(), to = some_page();
    if (from + old_nr > PAGES || to + new_nr > PAGES)
        return;
    nr_call++;
    switch (any(16)) {
    case 0: case 1: what = "mmap"; map_new(from, old_nr); break;
    case 2: what = "munmap"; if (munmap(base + from * PAGE, old_nr * PAGE)) fail("refused", from); clear(from, old_nr); break;
    case 3: case 4:
        what = "mprotect";
        if (all(from, old_nr, 0)) {
            int access = any(3);
            if (mprotect(base + from * PAGE, old_nr * PAGE, (int[]){PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE}[access]))
                fail("refused", from);
            for (size_t i = 0; i < old_nr; i++)
                model[from + i].access = NONE + access;
        }
        break;
    case 5:
        what = "write";
        for (size_t i = 0; i < old_nr; i++)
            if (model[from + i].access == WRITE)
                put(from + i, any(UINT32_MAX));
        break;
    case 6:
        what = "madvise";
        if (all(from, old_nr, 0)) {
            int drops = any(2), result = madvise(base + from * PAGE, old_nr * PAGE, drops ? MADV_DONTNEED : MADV_PAGEOUT), lock = 0;
            for (size_t i = 0; i < old_nr; i++)
                lock |= model[from + i].is_locked;
            if (result && !lock)
                fail("refused", from);
            /* The call ends at the first locked page. */
            for (size_t i = 0; drops && i < old_nr && !model[from + i].is_locked; i++)
                model[from + i].number = 0;
        }
        break;
    case 7:
        what = "mlock";
        if (old_nr <= 64 && is_uniform(from, old_nr) && model[from].access >= READ) {
            int on = any(3) == 0;
            if ((on ? mlock : munlock)(base + from * PAGE, old_nr * PAGE) == 0)
                for (size_t i = 0; i < old_nr; i++)
                    model[from + i].is_locked = on;
        }
        break;
    case 8: in_place(from, old_nr, new_nr); break;
    case 9: anywhere(from, old_nr); break;
    default: to_target(from, old_nr, new_nr, to);
    }
}

int main(int nr_arguments, char **arguments) {
    uint64_t first = nr_arguments > 1 ? strtoul(arguments[1], 0, 0) : 1;
    long nr_seeds = nr_arguments > 2 ? atol(arguments[2]) : 4, nr_calls = nr_arguments > 3 ? atol(arguments[3]) : 400;
    /* No mapping of anybody else's comes to lie within: there is a wall of 1 GiB on either side, far from all others. */
    base = (char *)0x100000000000 + (1ul << 30);
    /* Nothing grows beyond the end. */
    if (mmap(base + PAGES * PAGE, PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        fail("mmap", PAGES);
    for (seed = first; seed < first + nr_seeds; seed++) {
        state = seed;
        clear(0, PAGES);
        if (mmap(base, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != base)
            fail("mmap", 0);
        nr_mappings++;
        for (size_t i = 0; i < PAGES; i++)
            model[i] = (struct page){0, nr_mappings, i, WRITE, 0};
        for (size_t i = 0; i < PAGES; i += 1 + any(4))
            put(i, 1 + any(UINT32_MAX));
        for (nr_call = 0; nr_call < nr_calls;) {
            one_call();
            if (nr_call % 100 == 0)
                what = "all", check(0, PAGES);
        }
        what = "all", check(0, PAGES);
        munmap(base, PAGES * PAGE);
    }
    printf("ok %ld calls\n", nr_seeds * nr_calls);
    return 0;
}
