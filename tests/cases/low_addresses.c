// EXPECT: exit 0, last line "ok"
// ARGS: unmapped
// ARGS: noreplace
// ARGS: hinted
// BUDGETS: 24M
// LIMIT_S: 60
/* A program takes all addresses from 1 to 2 GiB while its memory leaves RAM and comes back. Once the engine's rings had
 * to go, more threads wait for its devices. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, OTHERS = 64 << 20, PART = 16 << 20, MONITORS_WITHOUT_RINGS = 8 };

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

/* How many threads resolve faults of others. */
static int nr_monitors(void) {
    DIR *threads = opendir("/proc/self/task");
    int found = 0;
    for (struct dirent *thread; (thread = readdir(threads));) {
        char path[512], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file)) found += !strncmp(name, "folioswap-monit", 15);
        if (file) fclose(file);
    }
    closedir(threads);
    return found;
}

int main(int argc, char **argv) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, all = PROT_READ | PROT_WRITE;
    char *others = mmap(NULL, OTHERS, all, flags, -1, 0);
    fill(others, OTHERS);
    if (argc > 1 && !strcmp(argv[1], "unmapped") && munmap(low, len)) return puts("munmap failed"), 1;
    int is_hinted = argc > 1 && !strcmp(argv[1], "hinted");
    flags |= MAP_NORESERVE | (is_hinted ? 0 : argc > 1 ? MAP_FIXED_NOREPLACE : MAP_FIXED);
    if (mmap(low, len, all, flags, -1, 0) != low) return perror("mmap"), 1;
    fill(low, PART), fill(low + len - PART, PART);
    int is_kept = is_there(others, OTHERS);
    fill(others, OTHERS);
    is_kept &= is_there(low, PART) && is_there(low + len - PART, PART);
    int nr = nr_monitors();
    if (nr && nr != MONITORS_WITHOUT_RINGS) return printf("%d monitors\n", nr), 1;
    puts(is_kept ? "ok" : "something is lost");
    return !is_kept;
}
