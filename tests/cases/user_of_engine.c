// EXPECT: exit 0, last line "ok"
// BUDGETS: 64M
// NEEDS: root
/* A program that gives up its user and groups has them given up by all threads of the process, the engine's too. */
#define _GNU_SOURCE
#include <dirent.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

enum { NOBODY = 65534, LEN = 160 << 20 };

/* Whether a line of each thread's status is as expected. */
static int all_have(const char *expected) {
    DIR *threads = opendir("/proc/self/task");
    int nr = 0, nr_right = 0;
    for (struct dirent *thread; (thread = readdir(threads));) {
        char path[512], line[512];
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", thread->d_name);
        FILE *status = fopen(path, "r");
        nr++;
        while (status && fgets(line, sizeof line, status)) nr_right += !strncmp(line, expected, strlen(expected));
        if (status) fclose(status);
    }
    closedir(threads);
    return nr == nr_right;
}

int main(void) {
    char *bytes = malloc(LEN);
    memset(bytes, 1, LEN);
    gid_t groups[] = {7, 9};
    if (setgroups(2, groups) || !all_have("Groups:\t7 9")) return puts("groups of a thread"), 1;
    if (setegid(NOBODY) || setegid(0)) return puts("setegid"), 1;
    if (setresgid(NOBODY, NOBODY, NOBODY)) return puts("setresgid"), 1;
    if (!all_have("Gid:\t65534\t65534\t65534\t65534")) return puts("group of a thread"), 1;
    if (seteuid(NOBODY) || !all_have("Uid:\t0\t65534\t0\t65534")) return puts("effective user of a thread"), 1;
    /* The kernel then sends signals without what comes with them. */
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_SIGPENDING, &none)) return puts("limit"), 1;
    if (seteuid(0) || setuid(NOBODY)) return puts("setuid"), 1;
    if (!all_have("Uid:\t65534\t65534\t65534\t65534")) return puts("user of a thread"), 1;
    memset(bytes, 2, LEN);
    puts("ok");
    return 0;
}
