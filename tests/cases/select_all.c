// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// select on all descriptors that the limit permits, with a set for 1024, as old daemons call it: the kernel looks at no
// more than the process's table has. And with a longer set, for a descriptor beyond 1024.
#include "cold.h"
#include <sys/select.h>
static struct {
    fd_set set;
    unsigned char beyond[8192];
} all;
static void check(int descriptor, int by_number) {
    struct timeval limit = {0, 1000};
    FD_ZERO(&all.set);
    memset(all.beyond, descriptor < 1024 ? 0x55 : 0, sizeof all.beyond);
    ((unsigned char *)&all)[descriptor / 8] |= 1 << descriptor % 8;
    int count = getdtablesize();
    int result = by_number == 0   ? select(count, &all.set, NULL, NULL, &limit)
                 : by_number == 1 ? (int)syscall(SYS_select, count, &all.set, NULL, NULL, &limit)
                                  : pselect(count, &all.set, NULL, NULL, &(struct timespec){0, 1000000}, NULL);
    CHECK(result == 1 && ((unsigned char *)&all)[descriptor / 8] >> descriptor % 8 & 1, "%d for %d", result, descriptor);
    for (size_t i = 0; i < sizeof all.beyond && descriptor < 1024; i++)
        CHECK(all.beyond[i] == 0x55, "changed behind the set");
}
int main(int nr_words, char **words) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (nr_words == 1 && limit.rlim_max >= 4096) {
        limit.rlim_cur = 4096;
        setrlimit(RLIMIT_NOFILE, &limit);
        execl("/proc/self/exe", words[0], "again", NULL);
    }
    start_engine();
    int ends[2];
    if (pipe(ends) || write(ends[1], "x", 1) != 1) return 2;
    for (int by_number = 0; by_number < 3; by_number++) check(ends[0], by_number);
    if (dup2(ends[0], 1500) == 1500) check(1500, 0), check(1500, 1);
    DONE;
}
