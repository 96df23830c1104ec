// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
// Private mappings of /dev/zero are memory like any other: they are managed, so the program stays within its budget.
// What the kernel refuses for a file is refused. Shared mappings are shared.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define SIZE (160 * MIB)

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static long resident_kib(void) {
    char line[256];
    long found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %ld", &found);
    if (file) fclose(file);
    return found;
}

int main(void) {
    int fd = open("/dev/zero", O_RDWR), only_written = open("/dev/zero", O_WRONLY), path = open("/dev/zero", O_PATH);
    size_t *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    check(memory != MAP_FAILED, "mmap");
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < SIZE / 8; at += 64) {
            check(memory[at] == (round ? at * 5 + round - 1 : 0), "content");
            memory[at] = at * 5 + round;
        }
    if (getenv("LD_PRELOAD") && strstr(getenv("LD_PRELOAD"), "folioswap")) {
        printf("%ld KiB\n", resident_kib());
        check(resident_kib() < 100 * 1024, "it is managed");
    }
    char *later = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE, fd, 0);
    check(later != MAP_FAILED && mprotect(later, 4 * MIB, PROT_READ | PROT_WRITE) == 0, "reserved, then used");
    memset(later, 1, 4 * MIB);
    char *offset = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 40960);
    check(offset != MAP_FAILED && offset[77] == 0, "an offset has no effect");
    check(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, fd, 77) == MAP_FAILED && errno == EINVAL, "not within a page");
    check(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, only_written, 0) == MAP_FAILED && errno == EACCES, "not readable");
    check(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, path, 0) == MAP_FAILED && errno == EBADF, "a path only");
    check(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL, "nothing");
    char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(shared != MAP_FAILED, "shared");
    pid_t child = fork();
    if (child == 0) {
        shared[5] = 6;
        memory[64] = 1;
        _exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child");
    check(shared[5] == 6 && memory[64] == 64 * 5 + 2, "shared and private");
    puts("ok");
    return 0;
}
