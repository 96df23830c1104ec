// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M 96M
// A program's own pagemap: what it has written is in RAM or in swap, and in RAM for a scan, also what is out.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define M (1ul << 20)
#define P 4096ul
#define CHECK(x) do { \
    errno = 0; \
    if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } \
} while (0)
enum { FILE_PAGE = 4, PRESENT = 8, SWAPPED = 16, ZERO_PAGE = 32, HUGE_PAGE = 64 };
struct region { uint64_t start, end, categories; };
struct scan { uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any, wanted; };
#define SCAN _IOWR('f', 16, struct scan)
static char *memory; /* 48 MiB with content, 8 without, 8 with content, and 64 without */
static size_t len = 64 * M;
static uint64_t entries[64 * M / P];
static int file;
static int has_content(size_t page) { return page < 48 * M / P || page >= 56 * M / P; }
static void let_all_out(void) {
    size_t most = 160 * M;
    char *more = mmap(0, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, 1, most);
    madvise(memory, len, MADV_PAGEOUT);
    munmap(more, most);
}
static void check_entries(const char *how) {
    size_t wrong = 0;
    for (size_t page = 0; page < len / P; page++)
        wrong += (entries[page] >> 62 != 0) != has_content(page);
    if (wrong)
        printf("FAIL %s: %zu entries are wrong\n", how, wrong), exit(1);
    memset(entries, 0, sizeof entries);
}
static struct scan about(struct region *regions, size_t nr_regions) {
    uintptr_t start = (uintptr_t)memory;
    return (struct scan){.size = sizeof(struct scan), .start = start, .end = start + len + 64 * M,
                         .vec = (uintptr_t)regions, .vec_len = nr_regions, .inverted = FILE_PAGE | ZERO_PAGE,
                         .mask = FILE_PAGE | ZERO_PAGE | PRESENT, .wanted = PRESENT};
}
int main(void) {
    memory = mmap(0, len + 66 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memory += 2 * M - (uintptr_t)memory % (2 * M);
    for (size_t page = 0; page < len / P; page++)
        if (has_content(page))
            memset(memory + page * P, page % 200 + 1, P);
    CHECK((file = open("/proc/self/pagemap", O_RDONLY)) >= 0);
    uint64_t from = (uintptr_t)memory / P * 8;
    let_all_out();
    CHECK(pread(file, entries, sizeof entries, from) == sizeof entries);
    check_entries("pread");
    CHECK(syscall(SYS_pread64, file, entries, sizeof entries, from) == sizeof entries);
    check_entries("pread by number");
    CHECK(lseek(file, from, SEEK_SET) == (off_t)from && read(file, entries, sizeof entries) == sizeof entries);
    check_entries("read");
    FILE *stream = fopen("/proc/self/pagemap", "r");
    CHECK(stream && fseek(stream, from, SEEK_SET) == 0 && fread(entries, 8, len / P, stream) == len / P);
    check_entries("fread");
    struct region regions[8];
    struct scan scan = about(regions, 8);
    int nr = ioctl(file, SCAN, &scan);
    if (nr < 0 && errno == ENOTTY)
        return puts("ok"), 0; /* before Linux 6.7 */
    for (int round = 0; round < 2; round++) {
        CHECK(nr == 2 && scan.walk_end == scan.end && regions[0].categories == PRESENT);
        CHECK(regions[0].start == scan.start && regions[0].end == scan.start + 48 * M);
        CHECK(regions[1].start == scan.start + 56 * M && regions[1].end == scan.start + 64 * M);
        let_all_out();
        memset(regions, 0, sizeof regions);
        nr = syscall(SYS_ioctl, file, SCAN, &scan);
    }
    let_all_out();
    scan = about(regions, 1);
    CHECK(ioctl(file, SCAN, &scan) == 1 && regions[0].end == scan.start + 48 * M);
    CHECK(scan.walk_end == scan.start + 56 * M);
    let_all_out();
    scan = about(regions, 8);
    scan.start += 5 * P;
    scan.max_pages = 3000;
    CHECK(ioctl(file, SCAN, &scan) == 1 && scan.walk_end == scan.start + 3000 * P);
    CHECK(regions[0].start == scan.start && regions[0].end == scan.walk_end);
    scan.start = scan.start + 1;
    CHECK(ioctl(file, SCAN, &scan) == -1 && errno == EINVAL);
    /* What a scan calls present is zeroed, all else dropped. */
    scan = about(regions, 8);
    scan.max_pages = 1000;
    CHECK((nr = ioctl(file, SCAN, &scan)) >= 0);
    for (int i = 0; i < nr; i++)
        memset((char *)regions[i].start, 0, regions[i].end - regions[i].start);
    madvise((char *)scan.walk_end, scan.end - scan.walk_end, MADV_DONTNEED);
    for (size_t at = 0; at < len; at += P)
        CHECK(memory[at] == 0);
    puts("ok");
    return 0;
}
