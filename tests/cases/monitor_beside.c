// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// The thread that resolves faults comes to the CPU of the thread that touches memory at random, and follows it to
// another one. It leaves if threads on two CPUs do.
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define PAGES 8192u

static unsigned char *memory;
static volatile int is_over;

static void touch(unsigned seed) {
    for (unsigned i = 0, page = seed; i < 200; i++) {
        page = (page * 5 + 12345) % PAGES;
        CHECK(memory[page * 4096L] == (unsigned char)(page * 7), "page %u is %d", page, memory[page * 4096L]);
    }
}

static void *touch_on_the_second(void *cpus) {
    sched_setaffinity(0, sizeof(cpu_set_t), cpus);
    for (unsigned seed = 7; !is_over; seed += 13) touch(seed);
    return NULL;
}

// The CPUs of the first thread with this name; none: there is no such thread.
static cpu_set_t cpus_of(const char *name) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], read_name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        int is_it = fgets(read_name, sizeof read_name, file) && strncmp(read_name, name, strlen(name)) == 0;
        fclose(file);
        if (is_it && sched_getaffinity(atoi(entry->d_name), sizeof cpus, &cpus) == 0) break;
    }
    closedir(tasks);
    return cpus;
}

// Touches memory until the resolving thread runs on these CPUs only, for some seconds.
static void wait_for(const cpu_set_t *wanted, const char *what) {
    for (time_t end = time(NULL) + 20; time(NULL) < end;) {
        touch(rand() % PAGES);
        cpu_set_t cpus = cpus_of("folioswap-monit");
        if (CPU_COUNT(&cpus) == 0 || CPU_EQUAL(&cpus, wanted)) return;
    }
    CHECK(0, "%s", what);
}

int main(void) {
    cpu_set_t all, first, second;
    sched_getaffinity(0, sizeof all, &all);
    if (CPU_COUNT(&all) < 2) {
        puts("ok");
        return 0;
    }
    CPU_ZERO(&first);
    CPU_ZERO(&second);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_SET(cpu++, &first);
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_SET(cpu, &second);
    memory = anonymous(PAGES * 4096ul);
    for (unsigned page = 0; page < PAGES; page++) memory[page * 4096L] = page * 7;
    sched_setaffinity(0, sizeof second, &second);
    wait_for(&second, "it does not come");
    sched_setaffinity(0, sizeof first, &first);
    wait_for(&first, "it does not follow");
    pthread_t thread;
    pthread_create(&thread, NULL, touch_on_the_second, &second);
    wait_for(&all, "it does not leave");
    is_over = 1;
    pthread_join(thread, NULL);
    DONE;
}
