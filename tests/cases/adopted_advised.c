// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M 96M
// Memory that is to stay out of core dumps, or to be read in order or at random, can leave RAM, and stays so advised.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define M (1ul << 20)
#define P 4096ul
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
static const struct { int advice; const char *flag; } kinds[] = {
    {MADV_DONTDUMP, " dd"}, {MADV_SEQUENTIAL, " sr"}, {MADV_RANDOM, " rr"},
};
static char *map(size_t len) {
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}
static int has_flag(char *at, const char *flag) {
    char line[512];
    unsigned long start, end;
    int is_there = 0, has = 0;
    FILE *list = fopen("/proc/self/smaps", "r");
    CHECK(list);
    while (fgets(line, sizeof line, list)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_there = start <= (unsigned long)at && (unsigned long)at < end;
        else if (is_there && !strncmp(line, "VmFlags:", 8))
            has = strstr(line, flag) != 0;
    }
    fclose(list);
    return has;
}
int main(void) {
    const char *settings = getenv("FOLIOSWAP_RUN");
    size_t budget = settings && strstr(settings, "memory=") ? strtoul(strstr(settings, "memory=") + 7, 0, 10) : 0;
    size_t len = budget ? budget / 5 / P * P : 8 * M, most = budget ? 2 * budget : 64 * M;
    static unsigned char in_ram[64 * M / P];
    char *all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = map(len);
        map(P); /* apart */
        CHECK(madvise(all[i], len, kinds[i].advice) == 0);
        memset(all[i], i + 1, len);
    }
    char *more = map(most);
    for (size_t i = 0; i < most; i += P)
        more[i] = 1;
    for (int i = 0; i < 3; i++) {
        size_t there = 0;
        CHECK(mincore(all[i], len, in_ram) == 0);
        for (size_t page = 0; page < len / P; page++)
            there += in_ram[page] & 1;
        if (budget && there > len / P / 2) {
            printf("FAIL%s: %zu of %zu pages are in RAM\n", kinds[i].flag, there, len / P);
            return 1;
        }
        CHECK(has_flag(all[i], kinds[i].flag));
        for (size_t at = 0; at < len; at++)
            CHECK(all[i][at] == i + 1);
        CHECK(has_flag(all[i], kinds[i].flag));
    }
    puts("ok");
    return 0;
}
