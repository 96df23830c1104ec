// EXPECT: exit 0, last line "ok"
// ARGS: unmapped
// ARGS: noreplace
// BUDGETS: 24M
// LIMIT_S: 60
/* A program takes all addresses from 1 to 2 GiB while its memory leaves RAM and comes back. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, OTHERS = 64 << 20, PART = 16 << 20 };

static char *const low = (char *)(1L << 30);
static const size_t len = 1L << 30;

static void fill(char *bytes, size_t len) {
    for (size_t at = 0; at < len; at += PAGE) *(uint64_t *)(bytes + at) = (uintptr_t)bytes + at;
}

static int is_there(char *bytes, size_t len) {
    for (size_t at = 0; at < len; at += PAGE)
        if (*(uint64_t *)(bytes + at) != (uintptr_t)bytes + at) return 0;
    return 1;
}

int main(int argc, char **argv) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, all = PROT_READ | PROT_WRITE;
    char *others = mmap(NULL, OTHERS, all, flags, -1, 0);
    fill(others, OTHERS);
    if (argc > 1 && !strcmp(argv[1], "unmapped") && munmap(low, len)) return puts("munmap failed"), 1;
    flags |= MAP_NORESERVE | (argc > 1 ? MAP_FIXED_NOREPLACE : MAP_FIXED);
    if (mmap(low, len, all, flags, -1, 0) != low) return perror("mmap"), 1;
    fill(low, PART), fill(low + len - PART, PART);
    int is_kept = is_there(others, OTHERS);
    fill(others, OTHERS);
    is_kept &= is_there(low, PART) && is_there(low + len - PART, PART);
    puts(is_kept ? "ok" : "something is lost");
    return !is_kept;
}
