// BUDGETS: 24M 96M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// Allocators reserve terabytes of addresses and advise the kernel on all of them. That takes no memory.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(cond) do { if (!(cond)) { printf("line %d: %s\n", __LINE__, #cond); fflush(stdout); _Exit(1); } } while (0)
enum { NR_MAPPINGS = 4 };
static const size_t size = (size_t)4 << 40;

static long resident_mib(void) {
    long pages, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE) >> 20;
}

int main(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *mappings[NR_MAPPINGS];
    for (int number = 0; number < NR_MAPPINGS; number++) {
        char *at = mappings[number] = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(at != MAP_FAILED && madvise(at, size, MADV_HUGEPAGE) == 0);
        for (size_t place = 0; place < size; place += size / 4) at[place] = 1;
        CHECK(madvise(at, size, MADV_NOHUGEPAGE) == 0 && madvise(at, size, MADV_COLD) == 0);
    }
    long taken = resident_mib();
    printf("%ld MiB\n", taken);
    CHECK(taken < 150);
    for (int number = 0; number < NR_MAPPINGS; number++) {
        for (size_t place = 0; place < size; place += size / 4) CHECK(mappings[number][place] == 1);
        CHECK(munmap(mappings[number], size) == 0);
    }
    puts("done");
    return 0;
}
