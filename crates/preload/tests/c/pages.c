/* Random calls on ranges of pages, checked against a simple model of each page's content and protection. The seed is
   the first argument. */
#include "access.h"

#define PAGE 4096
#define NR_PAGES ((size_t)16384)
#define STEPS 800

/* In place of a protection: not mapped. */
#define GONE (-1)

static char *region;
static int protection[NR_PAGES];
static uint32_t content[NR_PAGES]; /* 0: zeros */
static uint32_t last_content;
static size_t seed = 1, state;

#define HOLDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(2, "seed %zu, page %zu (%d): ", seed, page, protection[page]);                                     \
            CHECK(condition);                                                                                          \
        }                                                                                                              \
    } while (0)

static size_t below(size_t bound) { return next_random(&state) % bound; }

static void check(size_t page) {
    char *at = region + page * PAGE;
    HOLDS(can_read(at + below(PAGE)) == (protection[page] > 0));
    HOLDS(can_write(at + below(PAGE)) == (protection[page] == (PROT_READ | PROT_WRITE)));
    if (protection[page] <= 0)
        return;
    uint64_t *words = (uint64_t *)at;
    if (content[page])
        HOLDS(words[0] == content[page] && words[PAGE / 8 - 1] == content[page]);
    else
        HOLDS(is_zero(at, PAGE));
}

static void write_to(size_t page) {
    if (protection[page] != (PROT_READ | PROT_WRITE))
        return;
    uint64_t *words = (uint64_t *)(region + page * PAGE);
    content[page] = ++last_content;
    words[0] = words[PAGE / 8 - 1] = content[page];
}

static int all_mapped(size_t first, size_t count) {
    for (size_t page = first; page < first + count; page++)
        if (protection[page] == GONE)
            return 0;
    return 1;
}

static void set(size_t first, size_t count, int to, int drops) {
    for (size_t page = first; page < first + count; page++) {
        protection[page] = to;
        if (drops)
            content[page] = 0;
    }
}

static void protect(size_t first, size_t count) {
    int kinds[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE}, kind = kinds[below(4)];
    if (!all_mapped(first, count))
        return;
    size_t page = first;
    if (mprotect(region + first * PAGE, count * PAGE, kind) == 0)
        set(first, count, kind, 0);
    else
        HOLDS(errno == ENOMEM);
}

/* Moves pages, if source and target do not overlap and all pages are alike. */
static void move(size_t first, size_t count) {
    size_t target = below(NR_PAGES - count);
    if (!all_mapped(first, count) || (target < first + count && first < target + count))
        return;
    for (size_t page = first; page < first + count; page++)
        if (protection[page] != protection[first])
            return;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    size_t page = first;
    char *moved = mremap(region + first * PAGE, count * PAGE, count * PAGE, flags, region + target * PAGE);
    if (moved == MAP_FAILED) {
        HOLDS(errno == EFAULT || errno == ENOMEM); /* several mappings before Linux 6.17, or no room */
        return;
    }
    for (size_t at = 0; at < count; at++) {
        protection[target + at] = protection[first + at];
        content[target + at] = content[first + at];
    }
    set(first, count, GONE, 1);
}

static void step(void) {
    size_t bounds[] = {3, 40, 700, 2000};
    size_t count = 1 + below(bounds[below(4)]), first = below(NR_PAGES - count), page = first;
    char *at = region + first * PAGE;
    switch (below(12)) {
    case 0:
    case 1:
    case 2:
        protect(first, count);
        break;
    case 3:
        HOLDS(munmap(at, count * PAGE) == 0);
        set(first, count, GONE, 1);
        break;
    case 4:
    case 5:
        count = count < 200 ? count : 200; /* mostly small, so that whole runs remain */
        /* fall through */
    case 6: {
        int kind = below(4) ? PROT_READ | PROT_WRITE : PROT_NONE;
        HOLDS(mmap(at, count * PAGE, kind, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        set(first, count, kind, 1);
        break;
    }
    case 7:
        if (all_mapped(first, count)) {
            HOLDS(madvise(at, count * PAGE, MADV_DONTNEED) == 0);
            for (size_t page = first; page < first + count; page++)
                content[page] = 0;
        }
        break;
    case 8:
        if (all_mapped(first, count)) {
            HOLDS(mlock(at, count * PAGE) == 0 || errno == ENOMEM);
            HOLDS(munlock(at, count * PAGE) == 0);
        }
        break;
    case 9:
        if (below(4) == 0)
            move(first, count);
        break;
    default:
        break;
    }
    for (int touch = 0; touch < 60; touch++) {
        write_to(below(NR_PAGES));
        check(below(NR_PAGES));
    }
    check(first), check(first + count - 1), check(first ? first - 1 : 0), check(first + count);
}

int main(int count, char **arguments) {
    if (count > 1)
        seed = strtoul(arguments[1], NULL, 10);
    state = seed * 88172645463325252ull;
    catch_segv();
    region = map(NR_PAGES * PAGE);
    set(0, NR_PAGES, PROT_READ | PROT_WRITE, 1);
    for (size_t page = 0; page < NR_PAGES; page++)
        write_to(page);
    for (int done = 0; done < STEPS; done++)
        step();
    for (size_t page = 0; page < NR_PAGES; page++)
        check(page);
    return 0;
}
