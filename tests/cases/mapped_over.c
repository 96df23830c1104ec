// EXPECT: exit 0, last line "ok"
// NEEDS: root
// Managed memory is replaced by huge pages of the kernel's pool, and by a file, 20 times. The pool has no page less
// afterwards, nor is a mapping left over. KSM advice and sealing leave the content as it is.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/prctl.h>
#include <unistd.h>

#define M (1ul << 20)
#define FAIL(x) do { printf("FAIL %s\n", x); return 1; } while (0)

static long number(const char *path, const char *name) {
    char line[256];
    long found = -1;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) sscanf(line + strlen(name), "%ld", &found);
    if (f) fclose(f);
    return found;
}

static void set_pool(long pages) {
    FILE *f = fopen("/proc/sys/vm/nr_hugepages", "w");
    if (f) fprintf(f, "%ld\n", pages), fclose(f);
}

static int is(const char *p, size_t len, int want) {
    for (size_t i = 0; i < len; i += 1000)
        if (p[i] != want) return 0;
    return 1;
}

int main(void) {
    char *p = mmap(0, 200 * M, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, 200 * M);
    char *block = (char *)(((unsigned long)p + 2 * M) & ~(2 * M - 1));
    int turn = open("/var/tmp/mapped_over.lock", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (turn < 0 || flock(turn, LOCK_EX)) FAIL("the pool is the machine's, so the programs take turns");
    long before = number("/proc/sys/vm/nr_hugepages", "");
    if (before == 0) set_pool(4);
    long free_before = number("/proc/meminfo", "HugePages_Free:");
    if (free_before > 0)
        for (int k = 0; k < 20; k++) {
            char *q = mmap(block, 2 * M, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED, -1, 0);
            if (q != block) FAIL("huge pages over managed memory");
            if (mmap(block, 2 * M, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != block) FAIL("back again");
            memset(block, 1, 2 * M);
        }
    if (number("/proc/meminfo", "HugePages_Free:") != free_before) FAIL("a huge page is lost");
    if (number("/proc/meminfo", "HugePages_Rsvd:") != 0) FAIL("a huge page is reserved");
    if (before == 0) set_pool(0);
    close(turn);
    char name[] = "/tmp/mapped_over.XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    if (write(fd, "x", 1) != 1 || ftruncate(fd, 4 * M)) FAIL("file");
    if (mmap(block, 4 * M, 3, MAP_PRIVATE | MAP_FIXED, fd, 0) != block || block[0] != 'x' || block[3 * M]) FAIL("a file");
    if (mmap(block, 4 * M, 3, MAP_PRIVATE | MAP_FIXED, -2, 0) != MAP_FAILED || block[0] != 'x') FAIL("no file");
    if (block[-1] != 1 || block[4 * M] != 1) FAIL("beside it");

    char *m = p + 40 * M;
    madvise(m, 60 * M, MADV_MERGEABLE);
    prctl(67, 1, 0, 0, 0);
    memset(m, 2, 60 * M), memset(m + 60 * M, 3, 80 * M);
    if (!is(m, 60 * M, 2) || !is(m + 60 * M, 80 * M, 3)) FAIL("mergeable");
    if (prctl(68, 0, 0, 0, 0) != (prctl(67, 1, 0, 0, 0) == 0)) FAIL("PR_GET_MEMORY_MERGE");
    long sealed = syscall(462, m, 8 * M, 0ul);
    if (!is(m, 60 * M, 2)) FAIL("sealed");
    if (sealed == 0 && (munmap(m, 4 * M) == 0 || !is(m, 8 * M, 2))) FAIL("munmap of what is sealed");
    memset(m + 8 * M, 4, 130 * M);
    if (!is(m, 8 * M, 2)) FAIL("sealed, in need of memory");
    puts("ok");
    return 0;
}
