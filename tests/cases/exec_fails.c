// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A thread tries to execute a file that is no program, again and again, while memory first runs short. The kernel
// refuses new threads during each attempt, and the engine starts its own all the same.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096ul
#define BYTES (80ul << 20)

static char path[4096];
static volatile int is_over;

static void *execute(void *argument) {
    char *arguments[] = {path, NULL};
    while (!is_over) execv(path, arguments);
    return argument;
}

int main(void) {
    const char *folder = getenv("TEST_FOLDER") ? getenv("TEST_FOLDER") : "/tmp";
    snprintf(path, sizeof path, "%s/no-program.%d", folder, (int)getpid());
    int file = open(path, O_CREAT | O_WRONLY, 0700);
    if (file < 0 || write(file, "\1\2\3\4", 4) != 4 || close(file)) return 2;
    pthread_t other;
    if (pthread_create(&other, NULL, execute, NULL)) return 2;
    char *memory = malloc(BYTES);
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < BYTES; at += PAGE) {
            if (round && *(size_t *)(memory + at) != at + round) { printf("FAIL %zu\n", at); return 1; }
            *(size_t *)(memory + at) = at + round + 1;
        }
    is_over = 1;
    pthread_join(other, NULL);
    unlink(path);
    printf("ok\n");
    return 0;
}
