// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A file gets the lowest number that is free. Other threads begin, end, resize memory, advise and select meanwhile, and
// open nothing: so a thread that has closed a number gets that number again, and what it puts there stays.
#include "check.h"
#include <sched.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <time.h>
enum { BYTES = 32 << 20 };
static char *volatile range;
static volatile int begun, ends;
static int self;
static void *touches(void *at) {
    for (size_t i = 0; i < 8; i++) range[((size_t)at * 8 + i) * 7919 % (BYTES / PAGE) * PAGE]++;
    return NULL;
}
static void look(void) {
    static unsigned long none[2000 / 64 + 1];
    struct timeval now = {0, 0};
    struct iovec list = {range, PAGE};
    CHECK(select(2000, (fd_set *)none, NULL, NULL, &now) == 0, "select");
    syscall(SYS_process_madvise, self, &list, 1, MADV_COLD, 0);
}
static void *begins(void *none) {
    free(malloc(1)); // glibc may open a file for the first block of a thread
    begun = 1;
    for (size_t i = 0; !ends; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, touches, (void *)i) == 0, "a thread");
        pthread_join(thread, NULL);
        char *grows = anonymous(4 * MIB);
        grows[MIB] = 1;
        grows = mremap(grows, 4 * MIB, 6 * MIB, MREMAP_MAYMOVE);
        CHECK(grows != MAP_FAILED && grows[MIB] == 1, "memory that grows");
        munmap(grows, 6 * MIB);
        look();
    }
    return none;
}
int main(void) {
    range = anonymous(BYTES);
    fill(range, BYTES);
    pthread_t thread;
    int ends_of_pipe[2];
    self = syscall(SYS_pidfd_open, getpid(), 0);
    if (pipe(ends_of_pipe)) return 2;
    pthread_create(&thread, NULL, begins, NULL);
    while (!begun) sched_yield();
    close(0);
    for (time_t end = time(NULL) + 3; time(NULL) < end && nr_wrong == 0;) {
        int got = open("/dev/null", O_RDONLY);
        CHECK(got == 0, "a file got %d", got);
        CHECK(close(got) == 0, "it was closed");
        char byte = 0;
        CHECK(write(ends_of_pipe[1], "x", 1) == 1 && dup2(ends_of_pipe[0], 0) == 0, "a pipe");
        CHECK(read(0, &byte, 1) == 1 && byte == 'x', "what was written is not there");
        CHECK(close(0) == 0, "the pipe was closed");
    }
    ends = 1;
    pthread_join(thread, NULL);
    DONE;
}
