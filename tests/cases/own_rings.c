// EXPECT: exit 0, last line "ok"
/* The engine's threads read and write by rings of their own, where the kernel has io_uring. These do not lie where the
 * program has just unmapped something: it may map that again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether a descriptor in this folder is a ring. */
static int has_ring(const char *folder) {
    DIR *fds = opendir(folder);
    int found = 0;
    for (struct dirent *fd; fds && (fd = readdir(fds));) {
        char path[512], target[64] = "";
        snprintf(path, sizeof path, "%s/%s", folder, fd->d_name);
        if (readlink(path, target, sizeof target - 1) > 0) found |= !strcmp(target, "anon_inode:[io_uring]");
    }
    if (fds) closedir(fds);
    return found;
}

enum { NR_HOLES = 8, PAGE = 4096 };

/* Whether a ring is mapped at this address. */
static int has_ring_at(const char *addr) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    char line[512];
    while (fgets(line, sizeof line, maps)) {
        found |= strtoul(line, NULL, 16) == (unsigned long)addr && strstr(line, "io_uring");
    }
    fclose(maps);
    return found;
}

int main(void) {
    char params[256] = {0};
    int ring = syscall(SYS_io_uring_setup, 1, params);
    if (ring == -1) return puts("io_uring is not permitted here\nok"), 0;
    close(ring);
    if (!getenv("LD_PRELOAD")) return puts("ok"), 0;
    size_t size = 300 << 20;
    char *bytes = malloc(size), *left[NR_HOLES];
    /* The places that the kernel would choose next. */
    for (int i = 0; i < NR_HOLES; i++) left[i] = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < NR_HOLES; i++) munmap(left[i], PAGE);
    memset(bytes, 1, size);
    int found = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *thread; (thread = readdir(threads));) {
        char folder[512];
        snprintf(folder, sizeof folder, "/proc/self/task/%s/fd", thread->d_name);
        found |= has_ring(folder);
    }
    for (int i = 0; i < NR_HOLES; i++)
        if (has_ring_at(left[i])) return puts("a ring is in a hole"), 1;
    puts(found ? "ok" : "no thread of the engine has a ring");
    return !found;
}
