// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A long preadv of a file that was empty, and grows meanwhile, reads from its place, not from the file's own position.
#include "cold.h"
#include <sys/uio.h>
#define LEN (6 * MIB)
static char source[LEN];
static int file;
static volatile int ends;
static void *grow(void *unused) {
    while (!ends) {
        if (ftruncate(file, 0) != 0 || pwrite(file, source, LEN, 0) != LEN) abort();
        usleep(1000);
    }
    return unused;
}
int main(void) {
    start_engine();
    char *target = anonymous(2 * LEN);
    fill(source, LEN);
    file = fileno(tmpfile());
    pthread_t thread;
    pthread_create(&thread, 0, grow, 0);
    long nr_long = 0;
    for (int turn = 0; turn < 100000 && nr_long < 300; turn++) {
        struct iovec parts[2] = {{target, LEN / 2}, {target + LEN, LEN / 2}};
        off_t at = PAGE;
        ssize_t len = turn % 2 ? syscall(SYS_preadv, file, parts, 2, at, 0) : preadv(file, parts, 2, at);
        CHECK(len >= 0, "read %zd", len);
        nr_long += len > (long)MIB;
        for (long from = 0; from + (long)PAGE <= len; from += PAGE) {
            char *page = target + (from < (long)LEN / 2 ? from : from + (long)LEN / 2);
            uint64_t number = *(uint64_t *)page;
            CHECK(number == from + PAGE + 1, "turn %d, byte %ld of %zd is %#lx", turn, from, len, number);
        }
    }
    CHECK(nr_long > 0, "only short ones");
    ends = 1;
    pthread_join(thread, 0);
    DONE;
}
