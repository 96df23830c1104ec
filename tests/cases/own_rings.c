// EXPECT: exit 0, last line "ok"
/* The engine's threads read and write by rings of their own, where the kernel has io_uring. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void) {
    char params[256] = {0};
    int ring = syscall(SYS_io_uring_setup, 1, params);
    if (ring == -1) return puts("io_uring is not permitted here\nok"), 0;
    close(ring);
    if (!getenv("LD_PRELOAD")) return puts("ok"), 0;
    size_t size = 300 << 20;
    char *bytes = malloc(size);
    memset(bytes, 1, size);
    int found = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *thread; (thread = readdir(threads));) {
        char folder[512];
        snprintf(folder, sizeof folder, "/proc/self/task/%s/fd", thread->d_name);
        found |= has_ring(folder);
    }
    puts(found ? "ok" : "no thread of the engine has a ring");
    return !found;
}
