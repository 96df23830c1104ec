// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// A process that touches memory at random gives up its rights: no thread of it is left with the lowest priority, and
// none stays on one CPU.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define PAGES 8192

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void touch(unsigned char *memory, double seconds) {
    unsigned page = 1;
    for (double end = now() + seconds; now() < end;) {
        page = (page * 5 + 12345) % PAGES;
        CHECK(memory[page * 4096L] == (unsigned char)(page * 7), "page %u is %d", page, memory[page * 4096L]);
    }
}

// How many threads are SCHED_IDLE, or may use fewer CPUs than this one.
static int nr_low(void) {
    cpu_set_t mine, theirs;
    CHECK(sched_getaffinity(0, sizeof mine, &mine) == 0, "affinity");
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks, "tasks");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        int thread = atoi(entry->d_name);
        if (thread == 0 || sched_getaffinity(thread, sizeof theirs, &theirs)) continue;
        count += sched_getscheduler(thread) == SCHED_IDLE || CPU_COUNT(&theirs) < CPU_COUNT(&mine);
    }
    closedir(tasks);
    return count;
}

int main(void) {
    unsigned char *memory = anonymous(PAGES * 4096L);
    for (unsigned page = 0; page < PAGES; page++) memory[page * 4096L] = page * 7;
    for (int i = 0; i < 40 && nr_low() == 0; i++) touch(memory, 0.02);
    if (geteuid() == 0) CHECK(setresuid(65534, 65534, 65534) == 0, "setresuid");
    touch(memory, 0.3);
    int least = 100;
    for (int i = 0; i < 20; i++) {
        int low = nr_low();
        if (low < least) least = low;
        usleep(2000);
    }
    CHECK(least == 0, "%d threads", least);
    DONE;
}
