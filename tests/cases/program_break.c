// EXPECT: exit 0, last line "ok"
// ARGS: number
// BUDGETS: 24M
// LIMIT_S: 60
// What a program gets by sbrk and brk stays within the budget: it grows, shrinks, reads zero again, and is a child's.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define M (1ul << 20)
#define LARGEST (96 * M)
#define MOST_RESIDENT (56 * M)

static int by_number;
static char array[4 * M];

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static char *end_now(void) { return by_number ? (char *)syscall(SYS_brk, 0) : sbrk(0); }

static void move(long more) {
    char *old = end_now();
    if (by_number)
        check((char *)syscall(SYS_brk, old + more) == old + more, "brk by number");
    else
        check(sbrk(more) == old, "sbrk returns the old end");
    check(end_now() == old + more, "the new end");
}

static size_t resident(void) {
    size_t pages, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    check(file && fscanf(file, "%zu %zu", &pages, &resident) == 2, "statm");
    fclose(file);
    return resident * 4096;
}

static int is_right(const char *memory, size_t from, size_t to, int seed) {
    for (size_t at = from; at < to; at += 4096)
        if (memory[at] != (char)(at / 4096 * 3 + seed)) return 0;
    return 1;
}

static void fill(char *memory, size_t from, size_t to, int seed) {
    for (size_t at = from; at < to; at += 4096) {
        check(memory[at] == 0, "new memory is zero");
        memset(memory + at, (int)(at / 4096 * 3 + seed), 4096);
    }
}

int main(int argc, char **argv) {
    array[5000] = 3;
    by_number = argc > 1 && argv[0] != NULL;
    move((long)(4096 - (unsigned long)end_now() % 4096));
    char *memory = end_now();
    for (size_t bytes = 0; bytes < LARGEST; bytes += 192 * 1024) {
        move(192 * 1024);
        fill(memory, bytes, bytes + 192 * 1024, 1);
    }
    check(is_right(memory, 0, LARGEST, 1), "what was written");
    if (getenv("LD_PRELOAD")) check(resident() < MOST_RESIDENT, "resident memory is limited");

    char *full = end_now();
    move(-(long)(full - memory - 10 * M - 100)); /* within a page */
    check(is_right(memory, 0, 10 * M, 1), "what is left");
    move(30 * M);
    fill(memory, 10 * M + 4096, 40 * M, 2);
    check(is_right(memory, 0, 10 * M, 1) && is_right(memory, 10 * M + 4096, 40 * M, 2), "after it grew again");

    pid_t child = fork();
    if (child == 0) {
        move(8 * M);
        _exit(is_right(memory, 0, 10 * M, 1) && is_right(memory, 10 * M + 4096, 40 * M, 2) ? 0 : 1);
    }
    int status = -1;
    check(waitpid(child, &status, 0) == child && status == 0, "a child has it");

    char *kept = end_now();
    if (by_number)
        check((char *)syscall(SYS_brk, 1) == kept, "the end goes no lower than it began, by number");
    else
        sbrk(-(1l << 30));
    check(end_now() == kept && is_right(memory, 0, 10 * M, 1) && array[5000] == 3, "what is below stays");

    struct rlimit limit = {64 * M, 64 * M};
    char *end = end_now();
    check(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
    errno = 0;
    check(sbrk(128 * M) == (void *)-1 && errno == ENOMEM, "sbrk beyond a limit");
    errno = 7;
    check(brk(end + 128 * M) == -1 && errno == ENOMEM, "brk beyond a limit");
    check(end_now() == end && is_right(memory, 0, 10 * M, 1), "nothing has changed");
    errno = 7;
    check(brk(end) == 0 && errno == 7, "brk leaves errno");
    free(malloc(1000));
    puts("ok");
    return 0;
}
