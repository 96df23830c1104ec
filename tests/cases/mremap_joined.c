// RUN: gcc -O2 -g -o mremap_joined mremap_joined.c && ./mremap_joined    EXPECT: exit 0
/* Two mappings of the same kind beside each other are one to the kernel, large and small ones, too: mremap makes them
   longer together. Mappings that the program has advised in different ways are two. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE (4ul << 20)
#define SMALL (64ul << 10)

static int failed(const char *why) {
    printf("FAIL %s: %s\n", why, strerror(errno));
    return 1;
}

static char *two(void) {
    char *first = mmap(NULL, 4 * LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (first == MAP_FAILED || munmap(first, 4 * LARGE) != 0)
        return NULL;
    if (mmap(first, LARGE, PROT_READ | PROT_WRITE, flags, -1, 0) != first)
        return NULL;
    if (mmap(first + LARGE, SMALL, PROT_READ | PROT_WRITE, flags, -1, 0) != first + LARGE)
        return NULL;
    return first;
}

int main(void) {
    for (int touched = 0; touched < 2; touched++) {
        char *both = two();
        if (!both)
            return failed("mmap");
        memset(both, touched ? 5 : 0, LARGE + SMALL);
        char *longer = mremap(both, LARGE + SMALL, 2 * LARGE, MREMAP_MAYMOVE);
        if (longer == MAP_FAILED)
            return failed("the two together");
        for (size_t at = 0; at < 2 * LARGE; at += 4096)
            if (longer[at] != (at < LARGE + SMALL && touched ? 5 : 0))
                return failed("content");
        munmap(longer, 2 * LARGE);
    }
    char *apart = two();
    if (!apart || madvise(apart + LARGE, SMALL, MADV_SEQUENTIAL) != 0)
        return failed("advice");
    if (mremap(apart, LARGE + SMALL, 2 * LARGE, MREMAP_MAYMOVE) != MAP_FAILED || errno != EFAULT)
        return failed("advised in different ways, and yet one");
    return 0;
}
